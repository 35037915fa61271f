"""Seeds of the figures of `bench hypertune_world`. They are run once a version of the rules is finished, not before."""

SEEDS = tuple(range(83_001, 83_026))
