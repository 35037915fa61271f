"""Seeds of the figures of `bench planner`. They are run once a version of the rules is finished, not before."""

SEEDS = tuple(range(62_001, 62_011))
