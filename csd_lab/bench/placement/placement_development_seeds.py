"""Seeds of `bench placement_world` that may be looked at while a policy is worked on."""

SEEDS = tuple(range(310_100, 310_110))
