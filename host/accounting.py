"""From what devices returned to time, bytes and energy of a round of the array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from csd_emu.profiles import get_profile
from firmware_agent.wire import Trained
from host.array_state import DeviceState
from host.device_time import DeviceTime, batch_counts
from host.records import DeviceRound, Span


@dataclass(frozen=True)
class Returned:
    """What one device returned from a round, before anything is composed.

    Attributes:
        device: its name.
        hello_clock: what its stopwatch shows.
        trained: its own report.
        epochs: passes over its shard.
        batch_size: records per step.
        sent_bytes: host to device.
        received_bytes: device to host.
    """

    device: str
    hello_clock: str
    trained: Trained
    epochs: int
    batch_size: int
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class Accounted:
    """A round of the array: its devices' records, its composed time, and the energy of host and chassis."""

    devices: list[DeviceRound]
    array_seconds: float
    spans: list[Span] = field(default_factory=list)
    energy_joules: dict[str, dict[str, float]] = field(default_factory=dict)


class Accountant:
    """Composes rounds; keeps the array's time. One instance per run."""

    def __init__(self, time: DeviceTime) -> None:
        """Begin at array time 0."""
        self.time = time
        self.array_seconds = 0.0

    def account(self, returned: Sequence[Returned]) -> Accounted:
        """Return the round made of what devices returned, and move the array's time on by its length."""
        devices = [self._device(part) for part in returned]
        seconds = max(part.device_seconds.total for part in devices)
        spans = [
            Span(part.device, phase, self.array_seconds, self.array_seconds + value)
            for part in devices
            for phase, value in phases(part).items()
        ]
        self.array_seconds += seconds
        return Accounted(devices, seconds, spans)

    def _device(self, part: Returned) -> DeviceRound:
        trained = part.trained
        batches = batch_counts(trained.samples, part.epochs, part.batch_size)
        return DeviceRound(
            device=part.device,
            clock=self.time.clock(part.hello_clock),
            samples=trained.samples,
            steps=trained.steps,
            batch_size=part.batch_size,
            loss=trained.loss,
            stopwatch_seconds=trained.seconds,
            device_seconds=self.time.seconds(part.device, part.hello_clock, trained.seconds, batches),
            flash_read_bytes=trained.read_bytes,
            sent_bytes=part.sent_bytes,
            received_bytes=part.received_bytes,
        )


def phases(part: DeviceRound) -> Mapping[str, float]:
    """Return a device's compute seconds per phase."""
    seconds = part.device_seconds
    return {phase: getattr(seconds, phase) for phase in seconds.__struct_fields__}


def make_accountant(devices: Sequence[DeviceState]) -> Accountant:
    """Return what composes the time and energy of a run on `devices`."""
    return Accountant(DeviceTime({device.name: get_profile(device.profile) for device in devices}, None))
