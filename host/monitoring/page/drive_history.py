"""Totals of each drive of a run so far, by the records of its rounds. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from host.core.records import DeviceRound, RoundRecord

MOST_CHANGES = 64


@dataclass
class DriveLog:
    """One drive, or the host.

    Attributes:
        clock: of its device seconds; empty before its first round.
        rounds: from which it returned in time.
        samples: records trained on in time.
        compute_seconds: device seconds in which it computed, in time.
        joules: energy charged to it.
        batch_size: records per step, as last seen; None before.
        records_per_device_second: in the last round, if it took part in time.
        watts: mean over the array seconds of the last round, if energy was charged to it.
        slowdown: observed over expected seconds of its last synchronous step; None without a table.
        straggler: its last part came too late.
        batches: (array seconds, batch) wherever its batch changed, the last `MOST_CHANGES`.
    """

    clock: str = ""
    rounds: int = 0
    samples: int = 0
    compute_seconds: float = 0.0
    joules: float = 0.0
    batch_size: int | None = None
    records_per_device_second: float | None = None
    watts: float | None = None
    slowdown: float | None = None
    straggler: bool = False
    batches: list[tuple[float, int]] = field(default_factory=list)

    def add_training(self, part: DeviceRound) -> None:
        """Take its part in a round, if that came in time."""
        seconds = part.device_seconds.total
        self.rounds += 1
        self.samples += part.samples
        self.compute_seconds += seconds
        self.records_per_device_second = part.samples / seconds if seconds > 0 else None

    def add_joules(self, joules: Mapping[str, float], array_seconds: float) -> None:
        """Take what a round of that length charges to it, per component."""
        if joules:
            total = math.fsum(joules.values())
            self.joules += total
            self.watts = total / array_seconds if array_seconds > 0 else 0.0

    def set_batch(self, array_seconds: float, batch_size: int) -> None:
        """Note that it has this batch from that moment on."""
        if batch_size != self.batch_size:
            self.batch_size = batch_size
            self.batches = [*self.batches[1 - MOST_CHANGES :], (array_seconds, batch_size)]


def add_round(logs: Mapping[str, DriveLog], record: RoundRecord) -> None:
    """Add a round to the drives' logs; a node that has none is left out."""
    for each in logs.values():
        each.records_per_device_second = each.watts = each.slowdown = None
        each.straggler = False
    for part in record.devices:
        if (log := logs.get(part.device)) is not None:
            log.clock, log.straggler = part.clock, part.straggler
            if not record.steps:
                log.set_batch(record.start_seconds, part.batch_size)
    for part in record.in_time:
        if (log := logs.get(part.device)) is not None:
            log.add_training(part)
    for node, joules in record.node_joules.items():
        if (log := logs.get(node)) is not None:
            log.add_joules(joules, record.array_seconds)
    _add_steps(logs, record)


def _add_steps(logs: Mapping[str, DriveLog], record: RoundRecord) -> None:
    """Add what a synchronous round's steps say; batches follow the retunes, for an epoch's last step is smaller."""
    now = record.start_seconds
    for step in record.steps:
        for part in step.devices:
            if (log := logs.get(part.device)) is not None:
                log.slowdown = part.slowdown
                if log.batch_size is None:
                    log.set_batch(now, part.batch_size)
        _add_retunes(logs, record, step.step, now)
        now += step.array_seconds
    if record.steps:  # one that follows the last step
        _add_retunes(logs, record, record.steps[-1].step + 1, now)


def _add_retunes(logs: Mapping[str, DriveLog], record: RoundRecord, step: int, now_seconds: float) -> None:
    for retune in record.retunes:
        if retune.step == step:
            for device, batch in retune.after.items():
                if (log := logs.get(device)) is not None:
                    log.set_batch(now_seconds, batch)
