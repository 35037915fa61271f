"""Experiment trackers: what a job's `track` names is told a run's settings, metrics and files as they come."""
