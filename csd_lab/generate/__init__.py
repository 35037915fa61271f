"""Generators of documentation, dashboards and trained files."""
