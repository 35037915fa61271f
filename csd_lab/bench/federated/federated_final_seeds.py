"""Seeds of the published figures of `bench federated`. They run once, when target and strategies' keys are chosen."""

FINAL_SEEDS = (47_001, 47_002, 47_003, 47_004, 47_005, 47_006, 47_007, 47_008, 47_009, 47_010)
