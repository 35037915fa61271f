"""Speeds of drives by the calibration tables, at the work that a round gave them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from host.core.device_time import StepModel, batch_counts, micro_batch_counts, pass_seconds
from host.core.records import RoundRecord


@dataclass(frozen=True)
class Calibrated:
    """The tables of a run's devices.

    Attributes:
        models: device -> what its steps cost undisturbed; those without a table are missing.
        epochs: passes over its shard that a drive does in a federated round.
        micro_batches: device -> so many records at most are computed at a time in a synchronous step.
    """

    models: Mapping[str, StepModel] = field(default_factory=dict)
    epochs: int = 1
    micro_batches: Mapping[str, int] = field(default_factory=dict)

    def records_per_second(self, record: RoundRecord) -> Mapping[tuple[str, ...], float]:
        """Return (device, clock) -> records per second of compute, had each done its part as its table says.

        Devices whose table does not cover the batch sizes of the round are left out, and those that were late.
        """
        clocks = {part.device: part.clock for part in record.in_time}
        return {
            (device, clocks[device]): samples / seconds
            for device, samples, seconds in (self._steps(record) if record.steps else self._round(record))
            if device in clocks and samples and seconds > 0
        }

    def _round(self, record: RoundRecord) -> Iterator[tuple[str, int, float]]:
        for part in record.devices:
            model = self.models.get(part.device)
            batches = batch_counts(part.samples, self.epochs, max(1, part.batch_size))
            if model is not None and all(map(model.covers, batches)):
                yield part.device, part.samples, pass_seconds(model, batches).total

    def _steps(self, record: RoundRecord) -> Iterator[tuple[str, int, float]]:
        for device, parts in record.step_parts.items():
            if all(self._covers(device, size) for size in {part.batch_size for part in parts}):
                yield device, sum(part.batch_size for part in parts), math.fsum(part.expected_seconds for part in parts)

    def _covers(self, device: str, batch_size: int) -> bool:
        model = self.models.get(device)
        batches = micro_batch_counts(batch_size, self.micro_batches.get(device, batch_size))
        return model is not None and all(map(model.covers, batches))
