"""What the page remembers of each drive beside its sums: its last round, and its batches over time. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from host.core.records import RoundRecord, StepRecord

MOST_CHANGES = 64


@dataclass
class DriveLog:
    """One drive, or the host.

    Attributes:
        clock: of its device seconds; empty before its first round.
        batch_size: records per step, as last seen; None before.
        records_per_device_second: in the last round, if it took part in time.
        watts: mean over the array seconds of the last round, if energy was charged to it.
        slowdown: observed over expected seconds of its last synchronous step; None without a table.
        straggler: its last part came too late.
        batches: (array seconds, batch) wherever its batch changed, the last `MOST_CHANGES`.
    """

    clock: str = ""
    batch_size: int | None = None
    records_per_device_second: float | None = None
    watts: float | None = None
    slowdown: float | None = None
    straggler: bool = False
    batches: list[tuple[float, int]] = field(default_factory=list)

    def set_batch(self, array_seconds: float, batch_size: int) -> None:
        """Note that it has this batch from that moment on."""
        if batch_size != self.batch_size:
            self.batch_size = batch_size
            self.batches = [*self.batches[1 - MOST_CHANGES :], (array_seconds, batch_size)]


def add_step(logs: Mapping[str, DriveLog], record: StepRecord) -> None:
    """Add a synchronous step to the drives' logs; a node that has none is left out."""
    for part in record.devices:
        if (log := logs.get(part.device)) is not None:
            log.slowdown = part.slowdown


def add_round(logs: Mapping[str, DriveLog], record: RoundRecord) -> None:
    """Add a round, whose steps were added."""
    stepped = {part.device for step in record.steps for part in step.devices}
    for name, each in logs.items():
        each.records_per_device_second = each.watts = None
        each.straggler = False
        if name not in stepped:
            each.slowdown = None
    for part in record.devices:
        if (log := logs.get(part.device)) is not None:
            log.clock, log.straggler = part.clock, part.straggler
    for part in record.in_time:
        if (log := logs.get(part.device)) is not None and part.device_seconds.total > 0:
            log.records_per_device_second = part.samples / part.device_seconds.total
    for node, joules in record.node_joules.items():
        if (log := logs.get(node)) is not None and joules:
            log.watts = math.fsum(joules.values()) / record.array_seconds if record.array_seconds > 0 else 0.0
