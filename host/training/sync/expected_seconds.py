"""Seconds that devices' parts of a step should take, by their tables and what the tuner believes of them. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from host.core.states.peer_servers import DevicePart
from host.core.tuning.batch_tuner import Batches, Floats
from host.policies.batching.device_speeds import DeviceClass
from host.training.screening import believed_seconds

# A device that was late so often in a row is waited for.
_MOST_LATE_STEPS = 3


class ExpectedSeconds:
    """What is expected of each device, and what was observed, for batches of other sizes too.

    Attributes:
        late_steps: how many steps in a row each device was late.
    """

    def __init__(self, nodes: Sequence[str], classes: Mapping[str, DeviceClass]) -> None:
        """Begin with nobody late; `classes` have the tables of the nodes that have one."""
        self._nodes, self._classes = list(nodes), classes
        self.late_steps: Counter[str] = Counter()

    def count_late(self, devices: Collection[str], late: Collection[str]) -> None:
        """Note who of the `devices` of a step was late."""
        for device in devices:
            self.late_steps[device] = self.late_steps[device] + 1 if device in late else 0

    def of_step(self, records: Mapping[str, int], slowdowns: Floats) -> dict[str, float] | None:
        """Return what each device's part of a step should take; None if one has no table.

        One that was late several steps in a row is waited for, whatever it takes: nobody else has its private records.

        Args:
            records: device -> how many it computes.
            slowdowns: (nodes,) what their tables' seconds are multiplied by.
        """
        if any(device not in self._classes for device in records):
            return None
        slow = dict(zip(self._nodes, slowdowns, strict=True))
        return {
            device: math.inf
            if self.late_steps[device] >= _MOST_LATE_STEPS
            else float(slow[device]) * self._table_seconds(device, count)
            for device, count in records.items()
        }

    def observed(self, parts: Sequence[DevicePart], batches: Batches) -> Floats:
        """Return (nodes,) seconds that each would have taken with its whole batch: an epoch's last step is smaller.

        Args:
            parts: what devices computed in a step.
            batches: (nodes,) records of a whole batch.
        """
        seconds, expected = np.full((2, len(self._nodes)), np.nan)
        for part in parts:
            node = self._nodes.index(part.device)
            whole = int(batches[node]) or 1  # of a parked device one record is expected
            scale = 1.0
            if whole != part.records and part.device in self._classes:
                scale = self._table_seconds(part.device, whole) / self._table_seconds(part.device, part.records)
            seconds[node] = part.compute_seconds * scale
            if part.device in self._classes:
                expected[node] = self._table_seconds(part.device, whole)
        return believed_seconds(seconds, expected)

    def _table_seconds(self, device: str, records: int) -> float:
        speed = self._classes[device].speed
        return speed.seconds(min(records, speed.largest_batch))
