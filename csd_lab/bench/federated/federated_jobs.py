"""The jobs that `bench federated` compares. Chosen on the development seeds, at alpha 0.3, before the first final run.

The drives' learning rate is the best for FedAvg of 0.02, 0.05, 0.1 and 0.2 on the first of these seeds, and of 0.2, 0.3
and 0.4 on the others. There `mu` of FedProx is the better one of 0.1 and 1, and FedAdam's `learning_rate` the smaller
of the two that did best of 0.01, 0.03 and 0.06. All have the job file's other defaults: one epoch a round, batches of
32, momentum 0.9, all drives in every round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from csd_lab.bench.federated.federated_runs import HeldTarget

# What all others are compared with.
BASELINE = "fedavg"
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    BASELINE: {},
    "fedprox": {"mu": 1.0},
    "fednova": {},
    "fedadam": {"learning_rate": 0.03},
    "trimmed_mean": {"discard": 1},
}
# Concentration of the Dirichlet distribution: a few classes on each drive, some of each, and all alike.
ALPHAS = (0.05, 0.3, 100.0)
# Records of digits to train on, about half of them, so that a round is cheap here.
RECORDS = 700
LEARNING_RATE = 0.2
TARGET = HeldTarget(accuracy=0.85, rounds=60)


def job_keys(strategy: str) -> dict[str, Any]:
    """Return the keys of a job file with one of `STRATEGIES`."""
    return {"strategy": {"name": strategy, **STRATEGIES[strategy]}, "learning_rate": LEARNING_RATE}
