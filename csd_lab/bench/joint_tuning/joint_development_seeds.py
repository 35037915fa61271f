"""Seeds of the scenarios with which `bench together` and what it judges were developed."""

DEVELOPMENT_SEEDS = tuple(range(1, 25))
