"""Seeds of `bench stannis_world --quick`: those that the tuner was developed with."""

DEVELOPMENT_SEEDS = (101, 102, 103, 104, 105, 106)
