"""Benchmark of what a drive accepts: tasks, losses, client programs and strategies of the user's own."""
