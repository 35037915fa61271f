"""Seeds of `bench federated --quick`: those with which target, learning rate and strategies' keys were chosen."""

DEVELOPMENT_SEEDS = (1, 101, 102)
