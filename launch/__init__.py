"""The command line and the programs behind it; the only place with flags."""
