"""Tasks by name, engines that run them, and what a run leaves behind."""
