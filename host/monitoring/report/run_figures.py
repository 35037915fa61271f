"""Sums over the records of a run. Numbers in, numbers out; every name carries its unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from csd_emu.perfmodel.power import CHASSIS, sum_energy
from csd_emu.util.node_names import HOST
from host.core.records import DeviceRound, RoundRecord
from host.monitoring.report.competing import counted_parts

# Who draws what, in the order in which it is stacked.
GROUPS = ("drives: idle", "drives: cpu", "drives: dram", "drives: flash", "drives: link", HOST, CHASSIS)


@dataclass(frozen=True)
class DeviceTotals:
    """What one drive did in a run.

    Attributes:
        device: its name.
        clocks: of its seconds.
        rounds: in which it returned weights.
        lost: rounds in which it should have and did not.
        stragglers: rounds whose deadline it missed.
        samples: records trained on in time, repetitions counted: what a late drive did is discarded.
        device_seconds: of compute, in time.
        read_bytes: from its flash, late or not.
        sent_bytes: host to drive.
        received_bytes: drive to host.
        peak_memory_bytes: the most that its agent held, 0 if it does not know.
        energy_joules: per component.
    """

    device: str
    clocks: tuple[str, ...] = ()
    rounds: int = 0
    lost: int = 0
    stragglers: int = 0
    samples: int = 0
    device_seconds: float = 0.0
    read_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    peak_memory_bytes: int = 0
    energy_joules: Mapping[str, float] = field(default_factory=dict)

    @property
    def records_per_device_second(self) -> float:
        """Its mean rate, 0 if it did nothing."""
        return self.samples / self.device_seconds if self.device_seconds else 0.0


@dataclass(frozen=True)
class RunTotals:
    """What a whole run did; see `DeviceTotals`. `wall_seconds` is the cost of emulating its rounds.

    `read_bytes` are of the records in `samples`; link bytes and energy are of everything, late drives included.
    """

    clock: str
    rounds: int
    samples: int
    device_seconds: float
    array_seconds: float
    wall_seconds: float
    read_bytes: int
    sent_bytes: int
    received_bytes: int
    energy_joules: float

    @property
    def link_bytes(self) -> int:
        """Over the host link, both directions."""
        return self.sent_bytes + self.received_bytes

    @property
    def records_per_device_second(self) -> float:
        """Mean rate of a drive."""
        return self.samples / self.device_seconds if self.device_seconds else 0.0

    @property
    def records_per_array_second(self) -> float:
        """Rate of the whole array: compute, flash and link."""
        return self.samples / self.array_seconds if self.array_seconds else 0.0

    @property
    def joules_per_record(self) -> float:
        """Energy of the whole array per record trained on; 0 if the records know no energy."""
        return self.energy_joules / self.samples if self.samples else 0.0


def total_run(rounds: Sequence[RoundRecord]) -> RunTotals:
    """Return the sums over all rounds and devices."""
    parts, counted = [part for record in rounds for part in record.devices], list(counted_parts(rounds))
    return RunTotals(
        clock="+".join(sorted({part.clock for part in parts})),
        rounds=len(rounds),
        samples=sum(part.samples for part in counted),
        device_seconds=sum(part.device_seconds.total for part in counted),
        array_seconds=sum(record.array_seconds for record in rounds),
        wall_seconds=sum(record.wall_seconds for record in rounds),
        read_bytes=sum(part.flash_read_bytes for part in counted),
        sent_bytes=sum(part.sent_bytes for part in parts),
        received_bytes=sum(part.received_bytes for part in parts),
        energy_joules=sum(record.total_joules for record in rounds),
    )


def total_devices(devices: Iterable[str], rounds: Sequence[RoundRecord]) -> list[DeviceTotals]:
    """Return the sums per drive: the array's `devices` in their order, then others that the records name."""
    parts: dict[str, list[DeviceRound]] = {name: [] for name in devices}
    lost: dict[str, int] = {}
    energies: dict[str, list[Mapping[str, float]]] = {}
    for record in rounds:
        for part in record.devices:
            parts.setdefault(part.device, []).append(part)
        for name in record.lost:
            parts.setdefault(name, [])
            lost[name] = lost.get(name, 0) + 1
        for node, joules in record.energy_joules.items():
            energies.setdefault(node, []).append(joules)
    return [
        _total_device(name, mine, lost.get(name, 0), [part.energy_joules for part in mine] + energies.get(name, []))
        for name, mine in parts.items()
    ]


def _total_device(
    name: str, parts: Sequence[DeviceRound], lost: int, energies: Sequence[Mapping[str, float]]
) -> DeviceTotals:
    return DeviceTotals(
        device=name,
        clocks=tuple(sorted({part.clock for part in parts})),
        rounds=len(parts),
        lost=lost,
        stragglers=sum(part.straggler for part in parts),
        samples=sum(part.samples for part in parts if not part.straggler),
        device_seconds=sum(part.device_seconds.total for part in parts if not part.straggler),
        read_bytes=sum(part.flash_read_bytes for part in parts),
        sent_bytes=sum(part.sent_bytes for part in parts),
        received_bytes=sum(part.received_bytes for part in parts),
        peak_memory_bytes=max((part.peak_memory_bytes for part in parts), default=0),
        energy_joules=sum_energy(energies),
    )


def node_energy(rounds: Sequence[RoundRecord]) -> dict[str, dict[str, float]]:
    """Return node -> component -> joules of a whole run: drives, host and chassis."""
    found: dict[str, list[Mapping[str, float]]] = {}
    for record in rounds:
        for part in record.devices:
            found.setdefault(part.device, []).append(part.energy_joules)
        for node, joules in record.energy_joules.items():
            found.setdefault(node, []).append(joules)
    summed = {node: sum_energy(parts) for node, parts in found.items()}
    return {node: parts for node, parts in summed.items() if parts}


def group_energy(record: RoundRecord) -> dict[str, float]:
    """Return group -> joules of one round; see `GROUPS`. What is of no known group goes by its own component name."""
    joules = dict.fromkeys(GROUPS, 0.0)
    nodes: list[tuple[str, Mapping[str, float]]] = [(part.device, part.energy_joules) for part in record.devices]
    for node, parts in [*nodes, *record.energy_joules.items()]:
        for component, value in parts.items():
            group = _group(node, component)
            joules[group] = joules.get(group, 0.0) + value
    return joules


def _group(node: str, component: str) -> str:
    if CHASSIS in (node, component):
        return CHASSIS
    return HOST if node == HOST else f"drives: {component}"
