"""Paths, files, deadlines, processes and other small parts that every layer above uses."""
