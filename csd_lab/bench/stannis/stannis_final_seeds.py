"""Seeds of the published figures of `bench stannis_world`. They run once, when the tuner is finished."""

FINAL_SEEDS = (31_001, 31_002, 31_003, 31_004, 31_005, 31_006, 31_007, 31_008, 31_009, 31_010)
