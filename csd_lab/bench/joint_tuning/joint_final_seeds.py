"""Seeds of the scenarios of `bench together` whose figures are reported; they run once for a version of the rules.

Drawn with the ranges of `csd_lab.bench.joint_tuning.joint_cases`, and committed before the first of them was run.
"""

FINAL_SEEDS = tuple(range(320_001, 320_201))
