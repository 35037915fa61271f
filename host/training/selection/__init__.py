"""The planner in a run: which drives take part."""
