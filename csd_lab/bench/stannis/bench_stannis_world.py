"""STANNIS' batches on drawn arrays of unlike drives, against the best split by brute force."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, spread_over
from csd_lab.bench.intervals import lower_end
from csd_lab.bench.stannis.stannis_arrays import DrawnArray, draw_array, measured_seconds
from csd_lab.bench.stannis.stannis_development_seeds import DEVELOPMENT_SEEDS
from csd_lab.bench.stannis.stannis_final_seeds import FINAL_SEEDS
from csd_lab.bench.stannis.stannis_learning import SEEDS as LEARNING_SEEDS
from csd_lab.bench.stannis.stannis_learning import compare_learning
from csd_lab.bench.stannis.stannis_ranges import ARRAYS_PER_SEED
from host.config.sync_section import TuningSection
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.stannis import BatchPlan, plan_batches

TUNING = TuningSection()
# Resampled sets of cases, of which the intervals are.
RESAMPLES = 4000
_ROOM = 1 << 20


def bench_stannis_world(bench: Bench, quick: bool = False) -> BenchReport:
    """STANNIS' batches on drawn arrays of unlike drives, against the best split by brute force.

    Plan batches for 1,000 drawn arrays: 2 to 4 classes whose curves have different shapes and knees, an exchange, and
    memory limits. With `--quick` for the 600 of the development seeds.

    Figures, records per second over those of the best batches, mean of the cases: `over_best_unlimited`, where no class
    is kept by its memory from what STANNIS would give it; `over_best_limited`, where one is; `worst` of all. Best is
    any split, every device with a record at least, of no more records a step than STANNIS gives, or would give without
    limits, or than give every device 95 % of its best rate without limits. `..._low` is the lower end of the 95 %
    interval over the cases (bootstrap); of `worst`, of the mean of each seed's worst case. `over_best_measured`: it
    is given lines between eight batches measured with 0.5 % noise in place of the curves; `equal_over_best`: the same
    records dealt out equally; `over_best_any_batch`: against the best of all splits, however large the global batch;
    `over_best_with_idle`: devices may stand idle in the best. `learning_...`: one array at its limit, see
    `csd_lab.bench.stannis.stannis_learning.compare_learning`.
    """
    began = time.monotonic()
    seeds = [bench.seed + seed for seed in (DEVELOPMENT_SEEDS if quick else FINAL_SEEDS)]
    bench.progress.stage(f"{len(seeds) * ARRAYS_PER_SEED} drawn arrays")
    rows: list[dict[str, Any]] = []
    with spread_over(2) as spread:
        for number, part in enumerate(spread(judge_seed, seeds, repeat(ARRAYS_PER_SEED)), start=1):
            rows += part
            bench.progress.advance(number / len(seeds))
    samples = {"by_shape_of_the_limited": by_shape(rows), "cases": rows, "wall_seconds": time.monotonic() - began}
    bench.progress.stage("what smaller batches do to learning")
    figures = summarise(rows) | compare_learning(LEARNING_SEEDS[:3] if quick else LEARNING_SEEDS)
    return bench.report("modelled", figures, samples, "none")


def judge_seed(seed: int, arrays: int) -> list[dict[str, Any]]:
    """Return what came of the arrays drawn from a seed: see `judge`."""
    generators = np.random.default_rng(seed).spawn(arrays)
    return [{"seed": seed, "number": number} | judge(one) for number, one in enumerate(generators)]


def judge(generator: np.random.Generator) -> dict[str, Any]:
    """Return STANNIS' rates on a drawn array over those of the best batches."""
    array = draw_array(generator)
    free = _plan(array, [one.step_seconds for one in array.classes])
    own = _plan(array, [one.within_memory for one in array.classes])
    measured = _plan(array, [measured_seconds(one.step_seconds, generator)[: one.limit] for one in array.classes])
    limited = [batch >= one.limit for one, batch in zip(array.classes, free, strict=True)]
    rate = array.rate(own)
    most = max(array.records(free), array.records(own), array.saturated_records())
    best = array.best_rate(most)
    most_measured = max(most, array.records(measured))
    return {
        "limited": any(limited),
        "limited_shapes": [one.shape for one, kept in zip(array.classes, limited, strict=True) if kept],
        "shapes": [one.shape for one in array.classes],
        "devices": [one.devices for one in array.classes],
        "limits": [one.limit for one in array.classes],
        "batches": own,
        "batches_without_limits": free,
        "over_best": rate / best,
        "over_best_measured": array.rate(measured) / array.best_rate(most_measured),
        "equal_over_best": _equal_rate(array, array.records(own)) / best,
        "over_best_any_batch": rate / array.best_rate(_ROOM),
        "over_best_with_idle": rate / array.best_rate(most, least=0),
    }


def _plan(array: DrawnArray, seconds: Sequence[npt.NDArray[np.float64]]) -> list[int]:
    """Return the product's batches, one for each class, if its tables say these seconds."""
    tables = [SpeedTable(f"class-{number}", one) for number, one in enumerate(seconds)]
    of_devices = [table for table, one in zip(tables, array.classes, strict=True) for _ in range(one.devices)]
    plan: BatchPlan = plan_batches(of_devices, TUNING, array.exchange_seconds)
    first = np.cumsum([0, *(one.devices for one in array.classes[:-1])])
    return [int(batch) for batch in plan.batches[first]]


def _equal_rate(array: DrawnArray, records: int) -> float:
    share = max(1, records // array.devices)
    return array.rate([min(share, one.limit) for one in array.classes])


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of cases."""
    over = np.array([row["over_best"] for row in rows])
    limited = np.array([row["limited"] for row in rows])
    seeds = np.array([row["seed"] for row in rows])
    worst = np.array([over[seeds == seed].min() for seed in np.unique(seeds)])
    figures = _with_low("over_best_unlimited", over[~limited]) | _with_low("over_best_limited", over[limited])
    figures |= {
        "worst": float(over.min()),
        "worst_of_seed_mean": float(worst.mean()),
        "worst_low": lower_end(worst, draws=RESAMPLES),
    }
    for name in ("over_best_measured", "equal_over_best", "over_best_any_batch", "over_best_with_idle"):
        figures |= _with_low(name, np.array([row[name] for row in rows]))
    return figures | {"cases_unlimited": float((~limited).sum()), "cases_limited": float(limited.sum())}


def by_shape(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return how the limited cases fare, by the shape of a class at its limit."""
    shapes = sorted({shape for row in rows for shape in row["limited_shapes"]})
    found = {shape: [row["over_best"] for row in rows if shape in row["limited_shapes"]] for shape in shapes}
    return {shape: {"cases": len(own), "mean": float(np.mean(own)), "worst": min(own)} for shape, own in found.items()}


def _with_low(name: str, values: npt.NDArray[np.float64]) -> dict[str, float]:
    return {name: float(values.mean()), f"{name}_low": lower_end(values, draws=RESAMPLES)}
