"""The Launchpad program, its nodes, and what keeps them running."""
