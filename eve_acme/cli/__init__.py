"""The command line: one file for each command. Flags live here alone."""
