"""Benches of hostile drives, hostile files, and what the checks cost."""
