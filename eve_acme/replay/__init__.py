"""Replay in memory, n-step windows, and when what is drawn."""
