"""The nodes of a distributed run; see `launch.program` for how they are wired."""
