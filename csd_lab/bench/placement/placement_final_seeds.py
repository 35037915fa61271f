"""Seeds of `bench placement_world` for the figures that are published: run once, when nothing is changed any more."""

SEEDS = tuple(range(319_700, 319_710))
