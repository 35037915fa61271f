"""What smaller global batches do to learning: device seconds until a target loss, and accuracy at equal records.

Gradients of a step are weighted by batch, so devices with batches that sum to B learn as one process with batches of B
(bench `gradients`); one process is what trains here. Seconds are modelled: steps times the plan's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from csd_emu.profiles.calibration.table_store import SHIPPED, CalibrationStore
from csd_lab.bench.harness import array_of
from firmware_agent.common.datafiles.record_set import IMAGE, LABEL
from firmware_agent.common.models import build_model
from firmware_agent.common.shipped_code import ShippedCode
from host.config.sync_section import SyncSection, TuningSection
from host.core.datasets import Dataset, load_digits
from host.policies.batching.device_speeds import device_classes, speed_tables
from host.policies.batching.stannis import BatchPlan, plan_batches

MODEL, SHAPE, LARGEST = ShippedCode("digits_cnn"), (1, 8, 8), 64
# As a job has them that says nothing else. The loss is that of the held-out records.
LEARNING_RATE, MOMENTUM, TARGET_LOSS = 0.05, 0.9, 0.2
SEEDS = tuple(range(10))
# Records of training that a run sees, and how often its loss is looked at.
RECORDS, LOOKS = 60_000, 100


@dataclass(frozen=True, order=True)
class Learnt:
    """A run; one that was sooner at its target comes first.

    Attributes:
        target_records: seen until the loss was reached; infinite if it never was.
        accuracy: on held-out records, after all.
    """

    target_records: float
    accuracy: float


def plans() -> tuple[BatchPlan, BatchPlan]:
    """Return batches of four classes that hold 64 records: as STANNIS chooses them, and at the slow class's knee."""
    config = array_of(
        "learning",
        [{"profile": profile} for profile in ("newport", "solana", "generic-a53")],
        "native",
        host={"trains": True},
        core_model="cycles",
    )
    store = CalibrationStore(SHIPPED, core_model="cycles").of(MODEL, SHAPE)
    tuning = TuningSection(largest_batch=LARGEST)
    tables = list(speed_tables(device_classes(config, store, SyncSection(tuning=tuning))).values())
    slow = max(tables, key=lambda table: table.seconds(table.knee(tuning.knee)))
    at_knee = tuning.model_copy(update={"slow_batch": slow.knee(tuning.knee)})
    return plan_batches(tables, tuning), plan_batches(tables, at_knee)


def learn(global_batch: int, seed: int, learning_rate: float = LEARNING_RATE) -> Learnt:
    """Train on the bundled digits with batches of `global_batch`."""
    data = load_digits(seed)
    torch.manual_seed(seed)
    model, generator = build_model(MODEL), np.random.default_rng(seed)
    optimiser = torch.optim.SGD(model.parameters(), learning_rate, MOMENTUM)
    images, labels = tensors_of(data.fields, data.input_scale)
    seen, looks, reached = 0, 1, float("inf")
    while seen < RECORDS:
        for batch in np.array_split(generator.permutation(len(labels)), max(1, round(len(labels) / global_batch))):
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            seen += len(batch)
            if reached == float("inf") and seen >= looks * RECORDS / LOOKS:
                looks = int(seen * LOOKS / RECORDS) + 1
                if held_out(model, data)[0] <= TARGET_LOSS:
                    reached = float(seen)
    return Learnt(reached, held_out(model, data)[1])


def held_out(model: torch.nn.Module, data: Dataset) -> tuple[float, float]:
    """Return loss and accuracy on held-out records."""
    model.eval()
    with torch.no_grad():
        images, labels = tensors_of(data.held_out, data.input_scale)
        logits = model(images)
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
    model.train()
    return float(loss), float((logits.argmax(dim=1) == labels).float().mean())


def compare_learning(seeds: Sequence[int] = SEEDS) -> dict[str, float]:
    """Return the gain in rate and in time to the target loss, and what accuracy is lost at equal records; means.

    `learning_time_gain` is over the larger batch at the same learning rate; `learning_time_gain_best` over the better
    one, seed by seed, of that rate and one that is larger in proportion to the batch (Goyal et al. 2017).
    """
    chosen, knee = plans()
    batch, larger = int(chosen.batches.sum()), int(knee.batches.sum())
    own, same, scaled = (
        [learn(size, seed, rate) for seed in seeds]
        for size, rate in ((batch, LEARNING_RATE), (larger, LEARNING_RATE), (larger, LEARNING_RATE * larger / batch))
    )

    def gain(others: Sequence[Learnt]) -> float:
        shares = [other.target_records / run.target_records for other, run in zip(others, own, strict=True)]
        return float(np.mean(shares)) * chosen.records_per_second / knee.records_per_second

    accuracy = float(np.mean([run.accuracy for run in own]))
    return {
        "learning_rate_gain": chosen.records_per_second / knee.records_per_second,
        "learning_time_gain": gain(same),
        "learning_time_gain_best": gain([min(each) for each in zip(same, scaled, strict=True)]),
        "learning_accuracy_lost": max(float(np.mean([run.accuracy for run in runs])) for runs in (same, scaled))
        - accuracy,
    }


def tensors_of(fields: Mapping[str, npt.NDArray[Any]], scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images as the model takes them, and labels."""
    return torch.from_numpy(fields[IMAGE] * np.float32(scale)), torch.from_numpy(fields[LABEL])
