"""The Launchpad program, its nodes and their supervisor."""
