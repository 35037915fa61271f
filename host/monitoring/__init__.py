"""Output of a run: its directory, metrics, live page and report."""
