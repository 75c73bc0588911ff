"""Replay in memory, n-step windows, the schedule of rounds, and the log of a distributed run."""
