"""Seeds of the figures of `bench hypertune_world`. They are run once a version of the rules is finished, not before."""

SEEDS = tuple(range(97_101, 97_126))
