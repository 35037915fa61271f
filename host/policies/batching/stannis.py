"""STANNIS: batch sizes with which unequal devices finish a step together, and shards with which an epoch ends so. Pure.

After STANNIS (Heydarigorji et al., DAC 2020), of which the abstract could be read: work is tuned for unequal nodes
before training, private data stay in place. How is ours: the slow device gets the batch at which its rate saturates,
the others as many records as they compute in the time that it takes; public records fill up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from firmware_agent.common.errors import ConfigurationError
from host.config.sync_section import TuningSection
from host.core.plain_text import counted
from host.core.tuning.batch_tuner import Batches, Floats
from host.core.tuning.speed_table import SpeedTable
from host.core.tuning.stannis_rule import BALANCED, plan_classes


@dataclass(frozen=True)
class BatchPlan:
    """Batch sizes of all devices, in participant order, and what the tables expect of them.

    Attributes:
        batches: (devices,) records per step, each at least 1.
        compute_seconds: (devices,) device seconds in which each computes its batch.
        pace: number of the device that sets the pace.
        bounded: numbers of devices whose largest batch is done early: more memory would let them do more.
        sync_seconds: what the exchange adds to a step.
    """

    batches: Batches
    compute_seconds: Floats
    pace: int
    bounded: tuple[int, ...]
    sync_seconds: float

    @property
    def step_seconds(self) -> float:
        """Length of a step: the slowest device, and the exchange."""
        return float(self.compute_seconds.max()) + self.sync_seconds

    @property
    def imbalance(self) -> float:
        """(max - min) / max of the compute seconds."""
        return float(1 - self.compute_seconds.min() / self.compute_seconds.max())

    @property
    def records_per_second(self) -> float:
        """Records of a step over its length: X = sum b_i / T."""
        return int(self.batches.sum()) / self.step_seconds


def plan_batches(
    tables: Sequence[SpeedTable], settings: TuningSection, sync_seconds: float = 0.0, record_seconds: float = 0.0
) -> BatchPlan:
    """Return batches with which all devices finish a step together.

    The slow device c is the one that takes longest at its own knee. Its batch
    b_c is that knee, or the given `slow_batch`; the others get ``max{b : tau_i(b) <= (1 - margin) tau_c(b_c)}``, at
    least 1. Whole batches leave the others up to one record early, which is much where batches are small. So of the
    batches b_c from the knee to twice the knee (or 16), at which neither c nor all together, the exchange included, are
    slower than the knee allows, the smallest is taken with which all finish within `BALANCED` of each other; if none
    does, the one nearest to it. Shorter and longer steps that are faster are looked for then (see `plan_classes`).

    Args:
        tables: of each device, in participant order; devices of a class share one.
        settings: knee, slow_batch and margin.
        sync_seconds: what the exchange adds to each step.
        record_seconds: what each record of all devices adds beside.

    Raises:
        ConfigurationError: there is no device, or `slow_batch` does not fit into the slow one.
    """
    if not tables:
        raise ConfigurationError("there is no device to plan batches for; add one to the array")
    classes = list({id(table): table for table in tables}.values())
    counts = [sum(own is table for own in tables) for table in classes]
    batches, slow = plan_classes(classes, counts, settings, sync_seconds, record_seconds)
    own = {id(table): int(batch) for table, batch in zip(classes, batches, strict=True)}
    pace = next(number for number, table in enumerate(tables) if table is classes[slow])
    every = [own[id(table)] for table in tables]
    return cost_batches(tables, every, sync_seconds + record_seconds * sum(every), pace)


def cost_batches(
    tables: Sequence[SpeedTable], batches: Sequence[int], sync_seconds: float = 0.0, pace: int | None = None
) -> BatchPlan:
    """Return given batches, one for each table, as a plan; `pace` is who sets it where several take longest."""
    seconds = np.array([table.seconds(batch) for table, batch in zip(tables, batches, strict=True)])
    longest = seconds.max()
    bounded = tuple(
        number
        for number, (table, batch) in enumerate(zip(tables, batches, strict=True))
        if batch == table.largest_batch and seconds[number] < (1 - BALANCED) * longest
    )
    first = int(seconds.argmax()) if pace is None or seconds[pace] < longest else pace
    return BatchPlan(np.array(batches, np.int64), seconds, first, bounded, sync_seconds)


Overflow = Literal["repeat", "subsample"]


@dataclass(frozen=True)
class ShardPlan:
    """What each device sees in an epoch, with batches that stay as they are. Arrays are in participant order.

    Attributes:
        steps: of an epoch; the last one may be smaller.
        private: (devices,) private records that lie on each.
        private_seen: (devices,) of those, how many an epoch has room for.
        public: (devices,) public records that each sees: an index range of the pool that lies on every drive.
        repeated: public records that are seen again in the same epoch, all devices together.
        overflowing: numbers of devices with more private records than equal steps have room for.
        action: what was done about them, for people; empty if there are none.
    """

    steps: int
    private: Batches
    private_seen: Batches
    public: Batches
    repeated: int
    overflowing: tuple[int, ...]
    action: str


def plan_shards(
    batches: Sequence[int], private_sizes: Sequence[int], public_size: int, overflow: Overflow
) -> ShardPlan:
    """Return shards with which all devices take the same number of steps per epoch.

    In K = (sum p + U) / sum b steps device i sees K b_i records: its p_i private ones, and K b_i - p_i of the U public
    ones. If p_i > K b_i for some i, equal steps have no room for all. With ``repeat`` the epoch has K' = max p_i / b_i
    steps, and the others see public records again. With ``subsample`` such a device leaves records out: then
    K'' = (U + sum p_j) / sum b_j over the devices j that see all of theirs. A device for which there is no record
    takes no part.

    Args:
        batches: (devices,) records per step, at least 1.
        private_sizes: (devices,) private records, p.
        public_size: public records, U.
        overflow: ``repeat`` or ``subsample``.

    Raises:
        ConfigurationError: there is no record.
    """
    p = np.array(private_sizes, np.int64)
    b = np.where(p + public_size > 0, np.array(batches, np.int64), 0)
    records, total = int(p.sum()) + public_size, int(b.sum())
    if records == 0:
        raise ConfigurationError("there is no record to train on; add data")
    if not (overflowing := tuple(int(number) for number in np.flatnonzero(p * total > records * b))):
        return ShardPlan(-(-records // total), p, p, apportion(records, b) - p, 0, (), "")
    if overflow == "repeat":
        return _repeat(b, p, public_size, overflowing)
    return _subsample(b, p, public_size)


def _repeat(b: Batches, p: Batches, public_size: int, overflowing: tuple[int, ...]) -> ShardPlan:
    longest = max(range(len(b)), key=lambda number: float(p[number] / max(1, int(b[number]))))
    steps = int(-(-p[longest] // b[longest]))
    public = -(-p[longest] * b // b[longest]) - p if public_size else np.zeros_like(p)
    if public.sum() > (most := steps * public_size):  # no public record is in one step twice
        public = apportion(most, public)
    repeated = max(0, int(public.sum()) - public_size)
    action = f"an epoch has {counted(steps, 'step')}, for that many private records; " + (
        f"public records are seen again in it, {repeated} in all"
        if public_size
        else "there is no public record to fill up with, so the others' batches are smaller"
    )
    return ShardPlan(steps, p, p, public, repeated, overflowing, action)


def _subsample(b: Batches, p: Batches, public_size: int) -> ShardPlan:
    records, total, inside = water_level(b, p, public_size)
    steps = max(1, -(-records // total))
    seen = np.where(inside, p, np.minimum(p, np.maximum(1, records * b // total)))
    public = np.zeros_like(p)
    public[inside] = apportion(records, b[inside]) - p[inside]
    over = tuple(int(number) for number in np.flatnonzero(~inside))
    action = f"an epoch leaves {counted(int((p - seen).sum()), 'private record')} out, others in each epoch"
    return ShardPlan(steps, p, seen, public, 0, over, action)


Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


def water_level(b: Batches, p: Batches, public_size: int, filled: Mask | None = None) -> tuple[int, int, Mask]:
    """Return in how many steps the public records fill all devices to the same level, as a fraction, and who is below.

    The level K solves sum over i of max(0, K b_i - p_i) = U: a device with p_i > K b_i gets no public record.

    Args:
        b: (devices,) records per step, at least 1.
        p: (devices,) private records.
        public_size: public records, U.
        filled: (devices,) who can get public records, one at least; None for all.

    Returns:
        Numerator and denominator of K, and (devices,) whether p_i <= K b_i.
    """
    inside = np.ones(len(b), bool) if filled is None else filled.copy()
    while True:
        records, total = int(p[inside].sum()) + public_size, int(b[inside].sum())
        above = inside & (p * total > records * b)
        if not above.any():
            return records, total, inside
        inside &= ~above


def apportion(records: int, b: Batches) -> Batches:
    """Return whole numbers that sum to `records`, in proportion to `b`, by the largest remainders."""
    shares, rest = np.divmod(records * b, int(b.sum()))
    shares[np.argsort(-rest, kind="stable")[: records - int(shares.sum())]] += 1
    return np.asarray(shares)
