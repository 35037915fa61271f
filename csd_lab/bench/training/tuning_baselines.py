"""Baselines of HyperTune: other ways to choose batches. For many arrays at once, (rows, devices). Pure.

Of LB-BSP and of dynamic batching the abstracts were read, not the algorithms' text; what is ours is said at each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from host.core.tuning.batch_tuner import Batches, Floats
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.allocation import Allocator
from host.policies.batching.detector import Flags
from host.policies.batching.hypertune_rule import RetuneDecision


class Policy(Protocol):
    """Chooses batches step by step, as `Retuner` does. Arrays are (rows, devices)."""

    @property
    def batches(self) -> Batches:
        """Records per step as of now; 0 for a device that is parked or gone."""

    @property
    def expected_seconds(self) -> Floats:
        """Believed compute seconds of the present batches."""

    def probes(self, step: int) -> Batches:
        """Return records that parked devices should compute beside this step."""

    def observe(self, step: int, compute_seconds: Floats) -> Sequence[RetuneDecision]:
        """Take what a step cost, NaN where nothing came; return what is decided, in force already."""

    def leave(self, which: Flags) -> None:
        """Take devices away."""

    def join(self, which: Flags) -> None:
        """Take devices back."""


class Static:
    """The same batches for ever: equal ones, or STANNIS' (Heydarigorji et al., DAC 2020), as they are given."""

    def __init__(self, tables: Sequence[SpeedTable], batches: Batches, rows: int) -> None:
        """Keep the batches, (devices,)."""
        self._allocator, self._initial = Allocator(tables, 0.0), batches
        self._batches = np.broadcast_to(batches, (rows, len(tables))).copy()

    @property
    def batches(self) -> Batches:
        """Records per step."""
        return self._batches

    @property
    def expected_seconds(self) -> Floats:
        """The tables' compute seconds."""
        return self._allocator.table_seconds(self._batches)

    def probes(self, step: int) -> Batches:
        """Return nothing to compute: no device is ever parked."""
        return np.zeros_like(self._batches)

    def observe(self, step: int, compute_seconds: Floats) -> Sequence[RetuneDecision]:
        """Change nothing."""
        return ()

    def leave(self, which: Flags) -> None:
        """Take devices away; the others keep their batches."""
        self._batches = np.where(which, 0, self._batches)

    def join(self, which: Flags) -> None:
        """Take devices back with their batches."""
        self._batches = np.where(which, self._initial, self._batches)


class Balancing(Static):
    """What LB-BSP and the proportional controller share: a global batch that is kept, dealt out by measured speeds.

    No device gets more than its memory holds, and each that is there gets a record at least. A step of all at the same
    time is the goal, so nothing is parked.

    Both are charged for a change of batches as HyperTune is. They were made for systems in which a change is free, so
    each has a dead band: it changes batches only if the longest predicted compute time falls by more than `dead_band`
    of itself. That is ours, with the value of the best mean over oracle in `csd_lab.bench.training.bench_hypertune_sim`
    (see docs/hypertune.md).
    """

    def __init__(
        self, tables: Sequence[SpeedTable], batches: Batches, rows: int, dead_band: float, memory: float
    ) -> None:
        """Begin with the plan's batches, (devices,).

        Args:
            tables: of each device; only their largest batches are used, and the first speeds.
            batches: of the plan; their sum is kept.
            rows: how many arrays.
            dead_band: least share by which the predicted longest time must fall.
            memory: weight of the past in the moving average of a device's seconds per record, 0 to 1.
        """
        super().__init__(tables, batches, rows)
        self._dead_band, self._memory = dead_band, memory
        self._global = int(batches.sum())
        self._most = np.array([table.largest_batch for table in tables])
        self._first = self._allocator.table_seconds(batches) / np.maximum(batches, 1)
        self._pace = np.broadcast_to(self._first, self._batches.shape).copy()
        self._alive = np.ones(self._batches.shape, dtype=np.bool_)

    @property
    def expected_seconds(self) -> Floats:
        """Predicted compute seconds."""
        seconds: Floats = self._batches * self._pace
        return seconds

    def observe(self, step: int, compute_seconds: Floats) -> Sequence[RetuneDecision]:
        """Take what a step cost; return which rows have new batches."""
        seen = np.isfinite(compute_seconds) & (self._batches > 0)
        pace = np.where(seen, compute_seconds, 0.0) / np.maximum(self._batches, 1)
        self._pace = np.where(seen, self._memory * self._pace + (1 - self._memory) * pace, self._pace)
        wanted = self._wanted()
        now = (self._batches * self._pace).max(axis=1)
        then = (wanted * self._pace).max(axis=1)
        decided = []
        for row in np.flatnonzero(then < (1 - self._dead_band) * now).tolist():
            before = self._batches[row].copy()
            self._batches[row] = self._deal(wanted[row], self._alive[row])
            decided.append(RetuneDecision(row, before, self._batches[row], 0.0))
        return decided

    def leave(self, which: Flags) -> None:
        """Take devices away; the others share out their records after the step."""
        self._alive &= ~which
        self._share_out(which)

    def join(self, which: Flags) -> None:
        """Take devices back, as fast as their tables until they are seen."""
        self._alive |= which
        self._pace = np.where(which, self._first, self._pace)
        self._share_out(which)

    def _share_out(self, which: Flags) -> None:
        """Deal the records of arrays that lost or got a device out anew, by speed; that is not charged to anyone."""
        for row in np.flatnonzero(which.any(axis=1)):
            speeds = np.where(self._alive[row], 1 / self._pace[row], 0.0)
            if speeds.any():
                self._batches[row] = self._deal(speeds * (self._global / speeds.sum()), self._alive[row])
            else:
                self._batches[row] = 0

    def _wanted(self) -> Floats:
        """Return the batches to aim for, (rows, devices), as real numbers whose sum is the global batch."""
        raise NotImplementedError

    def _scaled(self, shares: Floats) -> Floats:
        total = shares.sum(axis=1, keepdims=True)
        scaled: Floats = shares * (self._global / np.where(total > 0, total, 1.0))
        return scaled

    def _deal(self, wanted: Floats, alive: Flags) -> Batches:
        """Return whole batches, (devices,), whose sum is the global batch, or all that memory holds."""
        low, high = alive.astype(np.int64), np.where(alive, self._most, 0)
        batches = np.clip(np.floor(wanted).astype(np.int64), low, high)
        total = min(self._global, int(high.sum()))
        order = np.argsort(batches - wanted, kind="stable")
        while (missing := total - int(batches.sum())) != 0:
            room = order[(batches < high)[order]] if missing > 0 else order[::-1][(batches > low)[order[::-1]]]
            if not len(room):
                break
            batches[room[: abs(missing)]] += np.sign(missing)
        return batches


class LoadBalanced(Balancing):
    """LB-BSP (Chen et al., 1806.02508): at a barrier each worker gets a batch in proportion to its predicted speed.

    The paper predicts with a recurrent network (NARX) from past speeds, CPU and memory use; here the prediction is a
    moving average of the measured speed.
    """

    def _wanted(self) -> Floats:
        return self._scaled(np.where(self._alive, 1 / self._pace, 0.0))


class Proportional(Balancing):
    """Dynamic batching (Tyagi and Sharma, ACSOS 2020, 2305.12213): a proportional controller of iteration times.

    A device's error is its time against the mean, e_i = t_i - mean t; its batch moves by -gain x e_i / (seconds per
    record), and all are scaled to the global batch. Gain, moving average and dead band are ours.
    """

    def __init__(
        self,
        tables: Sequence[SpeedTable],
        batches: Batches,
        rows: int,
        dead_band: float,
        memory: float,
        gain: float,
    ) -> None:
        """Begin with the plan's batches; see `Balancing`."""
        super().__init__(tables, batches, rows, dead_band, memory)
        self._gain = gain

    def _wanted(self) -> Floats:
        seconds = self._batches * self._pace
        mean = seconds.sum(axis=1, keepdims=True) / np.maximum(1, self._alive.sum(axis=1, keepdims=True))
        moved = self._batches - self._gain * (seconds - mean) / self._pace
        return self._scaled(np.where(self._alive, np.maximum(moved, 1.0), 0.0))
