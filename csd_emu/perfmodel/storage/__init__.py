"""Drives in service: what their host's reads and writes and their own training do to each other, in device time."""
