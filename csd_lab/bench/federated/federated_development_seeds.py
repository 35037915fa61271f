"""Seeds of `bench federated --quick`: those with which target and strategies' keys were chosen."""

DEVELOPMENT_SEEDS = (101, 102)
