"""The batches that make an array fastest, given how slow its devices are. Pure.

With slowdowns s_i, a target T gives every device ``b_i(T) = max{b <= cap_i : s_i tau_i(b) <= T}``, and the array the
rate ``X(T) = min(sum b_i(T), most) / (max_i s_i tau_i(b_i(T)) + sync)``. Between
two T at which some b_i grows, X is constant, so the best T is one of the ``s_i tau_i(b)``: all are tried. A device
whose batch is 0 there is parked.

With the watts of the array the *rate* is per joule in place of per second: ``sum b_i / (W (max_i s_i tau_i + sync)
+ sum_i P_i s_i tau_i)``, with W watts of all that waits and P_i more of a device that computes. W = 1, P = 0: records
per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from host.core.tuning.batch_tuner import Batches, Floats
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.stannis import apportion
from host.policies.batching.step_watts import StepWatts

# A batch that takes exactly the target must not be lost to rounding.
_ROUNDING = 1 + 1e-9


class Allocator:
    """Answers for one array, of which it knows tables and largest batches."""

    def __init__(self, tables: Sequence[SpeedTable], sync_seconds: float, watts: StepWatts | None = None) -> None:
        """Take the array's devices.

        Args:
            tables: of each device, in participant order; devices of a class share one.
            sync_seconds: what the exchange adds to each step.
            watts: of the array, for records per joule; None for records per second.
        """
        self.watts = watts or StepWatts(1.0, np.zeros(len(tables)))
        classes = list({id(table): table for table in tables}.values())
        self.tables, self.sync_seconds = list(tables), sync_seconds
        self._curves = [table.step_seconds for table in classes]
        self._class_of = np.array(list(map(list(map(id, classes)).index, map(id, tables))))
        self._members = [np.flatnonzero(self._class_of == number) for number in range(len(classes))]
        self._lookup = np.full((len(classes), max(map(len, self._curves)) + 1), np.inf)
        for row, curve in zip(self._lookup, self._curves, strict=True):
            row[0], row[1 : len(curve) + 1] = 0.0, curve

    def replaced(self, own: Mapping[int, Floats]) -> Allocator:
        """Return that of an array in which some devices have seconds of their own, (batches,) by the device."""
        if not own:
            return self
        tables = [SpeedTable(each.name, own[n]) if n in own else each for n, each in enumerate(self.tables)]
        return Allocator(tables, self.sync_seconds, self.watts)

    def table_seconds(self, batches: Batches) -> Floats:
        """Return tau_i(b_i), (..., devices); 0 for a batch of 0."""
        return np.asarray(self._lookup[self._class_of, batches])

    def step_seconds(self, batches: Batches, slowdowns: Floats) -> Floats:
        """Return the length of a step, (...): the slowest device's seconds, and the exchange."""
        return np.asarray((self.table_seconds(batches) * slowdowns).max(axis=-1) + self.sync_seconds)

    def rate(self, batches: Batches, slowdowns: Floats) -> float:
        """Return records per second, or per joule; 0 if no device has any."""
        total, busy = int(batches.sum()), float(self.watts.computing @ (self.table_seconds(batches) * slowdowns))
        cost = self.watts.waiting * float(self.step_seconds(batches, slowdowns)) + busy
        return total / cost if total else 0.0

    def fill(self, target_seconds: float, slowdowns: Floats, caps: Batches) -> Batches:
        """Return b_i(T), (devices,)."""
        batches = np.zeros_like(caps)
        for curve, members in zip(self._curves, self._members, strict=True):
            limits = target_seconds * _ROUNDING / slowdowns[members]
            batches[members] = np.minimum(np.searchsorted(curve, limits, side="right"), caps[members])
        return batches

    def best_target(self, slowdowns: Floats, caps: Batches, most_records: int | None = None) -> float:
        """Return the T with the highest rate, the largest of several; 0 if there is no device.

        Args:
            slowdowns: (devices,) what the tables' seconds are multiplied by.
            caps: (devices,) largest batches.
            most_records: of a step; None for no bound.
        """
        if not (curves := self._groups(slowdowns, caps)):
            return 0.0
        # Done by T: every point of a curve up to T stands for one record of each of its devices, and more computing.
        points = np.concatenate([curve for curve, *_ in curves])
        order = np.argsort(points)
        counts = np.repeat([count for _, count, _ in curves], [len(curve) for curve, *_ in curves])
        joules = np.concatenate([count * watts * np.diff(curve, prepend=0.0) for curve, count, watts in curves])
        done, busy = (np.concatenate([[0], np.cumsum(each[order])]) for each in (counts, joules))
        targets = np.unique(points)
        upto = np.searchsorted(points[order], targets * _ROUNDING, side="right")
        records = np.minimum(done[upto], done[-1] if most_records is None else most_records)
        rates = records / (self.watts.waiting * (targets + self.sync_seconds) + busy[upto])
        return float(targets[len(rates) - 1 - int(rates[::-1].argmax())])

    @staticmethod
    def trim(batches: Batches, plan: Batches) -> Batches:
        """Return batches with no more records than the plan: devices above theirs give up the rest, in proportion."""
        excess = int(batches.sum() - plan.sum())
        return batches - apportion(excess, np.maximum(0, batches - plan)) if excess > 0 else batches

    def _groups(self, slowdowns: Floats, caps: Batches) -> list[tuple[Floats, int, float]]:
        """Return of each kind of device the seconds of 1 to its largest batch, how many there are, and its watts."""
        kinds = np.stack([self._class_of, slowdowns, caps, self.watts.computing], axis=1)[caps > 0]
        each, counts = np.unique(kinds, axis=0, return_counts=True)
        return [
            (self._curves[int(kind)][: int(cap)] * slow, count, watts)
            for (kind, slow, cap, watts), count in zip(each, counts, strict=True)
        ]
