"""Policies that a job file names: the registries, and the user's own, checked before anything starts."""
