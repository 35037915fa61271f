"""Sums over the rounds of a run, which summary, page and report read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from csd_emu.perfmodel.power import sum_energy
from firmware_agent.common.health.drive_health import DriveHealth
from host.core.figure_bands import Band, add_bands, rate_band, scale_band, span_of
from host.core.records import DeviceRound, RoundRecord
from host.core.sampling.sampling_record import SamplingRecord, add_sampling


@dataclass
class DeviceStats:
    """Sums of one device, the host's own part included.

    Attributes:
        clocks: of its seconds.
        rounds: in which it returned something.
        lost: rounds in which it should have and did not.
        stragglers: rounds in which it came too late.
        samples: records trained on in time, repetitions counted.
        steps: optimiser steps in time.
        read_bytes: from its flash, late or not.
        sent_bytes: host to device.
        received_bytes: device to host.
        peak_memory_bytes: the most that its agent held, 0 if it does not know.
        metrics: of its client program, as it returned them last in time.
        health: what its own logs said last; None if they never said anything.
        log_joules: of its whole rounds, by the power that its log had at the end of each; None without one.
    """

    clocks: set[str] = field(default_factory=set)
    rounds: int = 0
    lost: int = 0
    stragglers: int = 0
    samples: int = 0
    steps: int = 0
    read_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    peak_memory_bytes: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    health: DriveHealth | None = None
    log_joules: float | None = None

    def add(self, part: DeviceRound, round_seconds: float) -> None:
        """Add its part in a round that took so long."""
        self.clocks.add(part.clock)
        self.rounds += 1
        self.stragglers += part.straggler
        self.read_bytes += part.flash_read_bytes
        self.sent_bytes += part.sent_bytes
        self.received_bytes += part.received_bytes
        self.peak_memory_bytes = max(self.peak_memory_bytes, part.peak_memory_bytes)
        self.health = part.health or self.health
        if part.health is not None and part.health.power_watts is not None:
            self.log_joules = (self.log_joules or 0.0) + part.health.power_watts * round_seconds

    def add_training(self, part: DeviceRound) -> None:
        """Add what it did in time."""
        self.samples += part.samples
        self.steps += part.steps
        self.metrics = part.metrics


@dataclass
class RunStats:
    """Sums of a run. What came too late counts in bytes and energy, not in samples and seconds.

    Attributes:
        devices: device -> its sums; those named at the beginning first, then as they appear.
        rounds: how many.
        steps: synchronous ones.
        retunes: times that batch sizes were changed.
        device_seconds: device -> seconds in which it computed, of those that were in time at all.
        node_joules: node -> component -> joules.
        array_seconds: composed: compute, flash and link.
        wall_seconds: the cost of emulation.
        energy_joules: of everything in the array.
        machine_joules: of this machine's processors; None without counters.
        read_bytes: from flash, of the records in `samples`.
        servers: those that took part in any step, in the order in which they appeared; empty of one that is alone.
        servers_samples: records of all servers.
        last: round; None before the first.
        bands, device_bands: see `RoundRecord`; empty if those of a round are not known.
        sampling: of all rounds on the clock ``sampled``, each weighing what its array seconds do; None without one.
    """

    devices: dict[str, DeviceStats] = field(default_factory=dict)
    rounds: int = 0
    steps: int = 0
    retunes: int = 0
    device_seconds: dict[str, float] = field(default_factory=dict)
    node_joules: dict[str, dict[str, float]] = field(default_factory=dict)
    array_seconds: float = 0.0
    wall_seconds: float = 0.0
    energy_joules: float = 0.0
    machine_joules: float | None = None
    read_bytes: int = 0
    servers: dict[str, None] = field(default_factory=dict)
    servers_samples: int = 0
    last: RoundRecord | None = None
    bands: dict[str, Band] = field(default_factory=dict)
    device_bands: dict[str, dict[str, Band]] = field(default_factory=dict)
    sampling: SamplingRecord | None = None

    @classmethod
    def of(cls, rounds: Iterable[RoundRecord], devices: Iterable[str] = ()) -> Self:
        """Return the sums over `rounds`, which are gone through once; `devices` are listed first."""
        stats = cls({name: DeviceStats() for name in devices})
        for record in rounds:
            stats.add(record)
        return stats

    def add(self, record: RoundRecord) -> None:
        """Add one more round."""
        known = record.bands and (self.bands or not self.rounds)
        self.bands = add_bands(self.bands, record.bands) if known else {}
        for node in {**self.device_bands, **record.device_bands}:
            own = add_bands(self.device_bands.pop(node, {}), record.device_bands.get(node, {}))
            self.device_bands.update({node: own} if known else {})
        before = self.sampling, self.array_seconds
        self.sampling = add_sampling([before, (record.sampling, record.array_seconds)])
        self.rounds += 1
        self.steps += len(record.steps)
        self.retunes += len(record.retunes)
        self.array_seconds += record.array_seconds
        self.wall_seconds += record.wall_seconds
        self.energy_joules += record.total_joules
        if record.machine_joules is not None:
            self.machine_joules = (self.machine_joules or 0.0) + record.machine_joules
        for part in record.devices:
            self._device(part.device).add(part, record.array_seconds)
        for part in record.in_time:
            self._device(part.device).add_training(part)
            self.read_bytes += part.flash_read_bytes
            self.device_seconds[part.device] = self.device_seconds.get(part.device, 0.0) + part.device_seconds.total
        for name in record.lost:
            self._device(name).lost += 1
        for node, joules in record.node_joules.items():
            self.node_joules[node] = sum_energy([self.node_joules.get(node, {}), joules])
        for step in record.steps:
            if step.servers is not None:
                self.servers.update(dict.fromkeys(step.servers.present))
                self.servers_samples += step.samples
        self.last = record

    def _device(self, name: str) -> DeviceStats:
        return self.devices.setdefault(name, DeviceStats())

    @property
    def clock(self) -> str:
        """Clock of the devices' seconds; several are joined by ``+``."""
        return "+".join(sorted({clock for device in self.devices.values() for clock in device.clocks}))

    @property
    def samples(self) -> int:
        """Records trained on in time, repetitions counted."""
        return sum(device.samples for device in self.devices.values())

    @property
    def device_steps(self) -> int:
        """Steps of all devices in time."""
        return sum(device.steps for device in self.devices.values())

    @property
    def compute_seconds(self) -> float:
        """Device seconds of all devices."""
        return sum(self.device_seconds.values())

    @property
    def sent_bytes(self) -> int:
        """Host to devices."""
        return sum(device.sent_bytes for device in self.devices.values())

    @property
    def received_bytes(self) -> int:
        """Devices to host."""
        return sum(device.received_bytes for device in self.devices.values())

    @property
    def link_bytes(self) -> int:
        """Over the host link, both directions."""
        return self.sent_bytes + self.received_bytes

    @property
    def records_per_device_second(self) -> float:
        """Mean rate of a device."""
        return _over(self.samples, self.compute_seconds)

    @property
    def records_per_array_second(self) -> float:
        """Rate of the whole array: compute, flash and link."""
        return _over(self.samples, self.array_seconds)

    @property
    def joules_per_record(self) -> float:
        """Energy of the whole array per record trained on."""
        return _over(self.energy_joules, self.samples)

    @property
    def all_bands(self) -> dict[str, Band]:
        """The bands of sums, and of rates and mean ``watts`` if no sum may be 0; empty if they are not known."""
        if not self.samples or not self.bands or min(band.low for band in self.bands.values()) <= 0:
            return self.bands
        joules, seconds = self.bands["energy_joules"], self.bands["array_seconds"]
        watts = _over(self.energy_joules, self.array_seconds), joules.low / seconds.low, joules.high / seconds.high
        return self.bands | {
            "records_per_device_second": rate_band(self.samples, self.bands["device_seconds"]),
            "records_per_array_second": rate_band(self.samples, seconds),
            "joules_per_record": scale_band(joules, 1 / self.samples),
            "watts": span_of(watts),
        }

    @property
    def link_bytes_per_record(self) -> float:
        """Bytes over the host link per record trained on."""
        return _over(self.link_bytes, self.samples)


def _over(above: float, below: float) -> float:
    return above / below if below else 0.0
