"""The critical batch of a small model, measured: records until a target loss with steps of unlike sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from csd_lab.bench.stannis.stannis_learning import learn

# Steps of so many records of `digits_cnn` until its held-out loss is 0.2; of each the best learning rate counts.
BATCHES, RATES, SEEDS = (32, 64, 128), (0.05, 0.1), (0, 1, 2)


def measure(
    batches: Sequence[int] = BATCHES, rates: Sequence[float] = RATES, seeds: Sequence[int] = SEEDS
) -> dict[int, float]:
    """Return batch -> records until the loss is reached with the better learning rate, mean over seeds; or infinity."""
    return {
        batch: min(float(np.mean([learn(batch, seed, rate).target_records for seed in seeds])) for rate in rates)
        for batch in batches
    }


def fit_critical_batch(records: Mapping[int, float]) -> float:
    """Return C of E = E_min (1 + B / C), least squares of E over B (McCandlish et al. 2018, arXiv:1812.06162).

    Infinite where a larger batch needs no more records, NaN where the line says that none are needed at a batch of 0.
    """
    slope, least = np.polyfit(list(records), list(records.values()), 1).tolist()
    if slope <= 0:
        return float("inf")
    return float(least / slope) if least > 0 else float("nan")
