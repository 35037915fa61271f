"""Seconds of a device: the guest's counted ones, all or samples, scaled by its profile; modelled ones; the wall's."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import structs

from csd_emu.config.array_file import NATIVE, REMOTE, SAMPLED, ArrayConfig
from csd_emu.profiles import Profile, get_profile
from csd_emu.profiles.calibration import CalibrationStore, CalibrationTable
from csd_emu.profiles.calibration.cycle_counts import scaled
from csd_emu.profiles.profile import End
from csd_emu.util.node_names import HOST
from csd_emu.util.record_shape import Shape
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.shipped_code import ShippedCode

log = logging.getLogger(__name__)
COUNTED, MODELLED, WALL = "counted", "modelled", "wall"
# Cycles per instruction, assumed: about the middle of the rows of the shipped tables that have cycles, which are 1.5 to
# 3.0 forward, 1.4 to 2.7 backward, 2.8 to 3.0 in the update and 1.9 to 2.1 in encoding (docs/cycles.md).
ASSUMED_CYCLES = {"forward": 1.9, "backward": 2.0, "update": 3.0, "encode": 2.0}
# What phases of models have: how far the assumed ones may be off.
_LEAST_CYCLES, _MOST_CYCLES = 1.4, 3.6
# Text of the event of a run in which the host was measured itself; a report looks for it.
MEASURED_HOST = (
    "the host's seconds are modelled by its own calibration table, and not by its profile's ratio: a report "
    "does not compare it with a host alone"
)
# Of DRAM's bandwidth, that traffic of the host leaves to the cores; assumed, of a controller that serves both by turns.
LEAST_DRAM_SHARE = 0.25
# A competing task's weight is given against this one of the trainer.
TRAINER_WEIGHT = 100


class StepModel(Protocol):
    """What one device's steps cost, in its own seconds."""

    def step_seconds(self, batch_size: int) -> PhaseSeconds:
        """Return the seconds of one step at this batch size, per phase."""

    @property
    def encode_seconds(self) -> float:
        """Seconds of taking the weights out."""

    def covers(self, batch_size: int) -> bool:
        """Return whether steps of this size were measured, or ones that run the same kernels."""

    def at(self, end: End | None, /) -> StepModel:
        """Return the same with the profile's figures, and errors of cycles, at one end of their bands."""


class CountedCycles(Protocol):
    """What the counted seconds of one device, a nanosecond per instruction, are in cycles."""

    def device_seconds(self, counted: PhaseSeconds, batches: Mapping[int, int], /) -> PhaseSeconds:
        """Return the device's seconds for `counted` ones of a pass of these batches (batch size -> steps)."""

    def at(self, end: End, /) -> CountedCycles:
        """Return the same with the profile's figures, and the cycles, at one end of their bands."""


@dataclass(frozen=True)
class TableModel:
    """A calibration table, read for a profile."""

    table: CalibrationTable
    profile: Profile

    def step_seconds(self, batch_size: int) -> PhaseSeconds:
        """Return the profile's seconds of one step at this batch size, per phase."""
        return self.table.device_seconds(batch_size, self.profile)

    @property
    def encode_seconds(self) -> float:
        """The profile's seconds of taking the weights out."""
        return self.table.encode_seconds_median * self.table.scale(self.profile, "encode")

    def covers(self, batch_size: int) -> bool:
        """Return whether the table has rows of the kernels that run at this batch size."""
        return self.table.covers(batch_size)

    def at(self, end: End | None) -> TableModel:
        """Return the same with the profile's figures, and errors of cycles, at one end of their bands."""
        return replace(self, profile=self.profile.at(end))


@dataclass(frozen=True)
class CycleModel:
    """Seconds of a drive for counted ones, by the cycles that its table's steps took for their instructions.

    Attributes:
        instructions: the calibration table as it was counted.
        cycles: the same table in cycles.
        profile: the drive's.
    """

    instructions: CalibrationTable
    cycles: CalibrationTable
    profile: Profile

    def device_seconds(self, counted: PhaseSeconds, batches: Mapping[int, int]) -> PhaseSeconds:
        """Return the drive's seconds for `counted` ones of a pass of these batches (batch size -> steps)."""
        shares = batches or {self.instructions.batches[0]: 1}
        tables = (TableModel(table, self.profile) for table in (self.instructions, self.cycles))
        before, after = (pass_seconds(model, shares) for model in tables)
        ratios = {name: growth(getattr(after, name), getattr(before, name)) for name in before.__struct_fields__}
        seconds = self.profile.device_seconds(counted)
        return PhaseSeconds(**{name: getattr(seconds, name) * ratio for name, ratio in ratios.items()})

    def at(self, end: End) -> CycleModel:
        """Return the same with the profile's figures, and the cycles, at one end of their bands."""
        return replace(self, profile=self.profile.at(end))


@dataclass(frozen=True)
class AssumedCycles:
    """Seconds of a drive for counted ones of a model that was never calibrated.

    Attributes:
        profile: the drive's.
        cycles: phase -> cycles per instruction.
    """

    profile: Profile
    cycles: Mapping[str, float] = field(default_factory=lambda: ASSUMED_CYCLES)

    def device_seconds(self, counted: PhaseSeconds, _: Mapping[int, int]) -> PhaseSeconds:
        """Return the drive's seconds for `counted` ones of a pass; it is taken to ask nothing of DRAM."""
        scales = {phase: cycles * self.profile.cycle_scale(phase, 0.0) for phase, cycles in self.cycles.items()}
        return scaled(counted, scales)

    def at(self, end: End) -> AssumedCycles:
        """Return the same with the profile's figures, and the cycles, at one end of their bands."""
        cycles = dict.fromkeys(self.cycles, _LEAST_CYCLES if end == "low" else _MOST_CYCLES)
        return AssumedCycles(self.profile.at(end), cycles)


def growth(after: float, before: float) -> float:
    """Return what a figure was multiplied by; 1 of one that was 0."""
    return after / before if before else 1.0


@dataclass(frozen=True)
class HostModel:
    """The host's steps: those of a drive, so many times as fast; or its own, once as fast.

    Attributes:
        drive: the drive; of a host that was measured itself, that host.
        ratio: how many times as fast.
    """

    drive: StepModel
    ratio: float

    def step_seconds(self, batch_size: int) -> PhaseSeconds:
        """Return the host's seconds of one step at this batch size, per phase."""
        seconds = self.drive.step_seconds(batch_size)
        return PhaseSeconds(*(getattr(seconds, phase) / self.ratio for phase in seconds.__struct_fields__))

    @property
    def encode_seconds(self) -> float:
        """The host's seconds of taking the weights out."""
        return self.drive.encode_seconds / self.ratio

    def covers(self, batch_size: int) -> bool:
        """Return whether the drive's table has rows of the kernels that run at this batch size."""
        return self.drive.covers(batch_size)

    def at(self, end: End | None) -> HostModel:
        """Return the same with the drive at one end of its bands, and as many times as fast."""
        return replace(self, drive=self.drive.at(end))


class DeviceTime:
    """Turns what a device's stopwatch saw into seconds of its profile."""

    def __init__(
        self,
        profiles: Mapping[str, Profile],
        models: Mapping[str, StepModel],
        cycles: Mapping[str, CountedCycles] = MappingProxyType({}),
        sampled: Collection[str] = (),
    ) -> None:
        """Take the profile of each device, and the models of those that are to be modelled.

        Without a model the seconds of a device without a counted clock are the wall's. Counted ones are of
        instructions, but for devices in `cycles`. What is passed for those `sampled` was counted on virtual machines.
        """
        self._profiles, self._models, self._cycles, self._sampled = profiles, models, cycles, sampled
        self._competitors: dict[str, int] = {}
        self._traffic: dict[str, float] = {}
        # Device -> what its seconds of the last pass were multiplied by for that traffic.
        self.growths: dict[str, float] = {}

    def at(self, end: End) -> DeviceTime:
        """Return the same, with the same competitors, with all profiles at one end of their bands."""
        there = DeviceTime(
            {device: profile.at(end) for device, profile in self._profiles.items()},
            {device: model.at(end) for device, model in self._models.items()},
            {device: cycles.at(end) for device, cycles in self._cycles.items()},
            self._sampled,
        )
        there._competitors, there._traffic = self._competitors, self._traffic
        return there

    def change_models(self, other: DeviceTime) -> None:
        """Take the models, and cycles, of `other` for the same devices."""
        self._models, self._cycles = other._models, other._cycles

    def phase_growth(self, there: DeviceTime, device: str, hello_clock: str, batch_size: int) -> PhaseSeconds:
        """Return what a device's seconds of each phase of a step are multiplied by, `there` in place of here."""
        step = PhaseSeconds(1.0, 1.0, 1.0, 1.0), {max(1, batch_size): 1}
        each = (structs.astuple(time.seconds(device, hello_clock, *step)) for time in (there, self))
        return PhaseSeconds(*map(growth, *each))

    def clock(self, device: str, hello_clock: str) -> str:
        """Return the clock that the seconds of a device with this stopwatch will have."""
        if device in self._sampled:
            return SAMPLED
        return MODELLED if hello_clock == WALL and device in self._models else hello_clock

    def set_competitor(self, device: str, weight: int) -> None:
        """Note that a task of this cgroup weight competes with the trainer, as a model or a sampler must know."""
        self._competitors[device] = weight

    def competitor(self, device: str) -> int:
        """Return the cgroup weight of the task that was noted to compete with the trainer; 0 for none."""
        return self._competitors.get(device, 0)

    def set_traffic(self, traffic: Mapping[str, float]) -> None:
        """Note, device -> bytes per second, what else moves through its DRAM."""
        self._traffic.update(traffic)

    def seconds(
        self, device: str, hello_clock: str, measured: PhaseSeconds, batches: Mapping[int, int]
    ) -> PhaseSeconds:
        """Return the device's seconds of a pass.

        Args:
            device: its name.
            hello_clock: what its stopwatch shows.
            measured: what the stopwatch saw, or a sampler counted, seconds per phase.
            batches: batch size -> number of steps of that size.
        """
        clock, own = self.clock(device, hello_clock), (self._models.get(device), self._cycles.get(device))
        alone = self._seconds(device, clock, measured, batches, *own)
        if not (traffic := self._traffic.get(device)):
            self.growths.pop(device, None)
            return alone
        beside = (each if each is None else beside_traffic(each, traffic) for each in own)
        seconds = self._seconds(device, clock, measured, batches, *beside)
        self.growths[device] = growth(seconds.total, alone.total)
        return seconds

    def _seconds(
        self, device: str, clock: str, measured: PhaseSeconds, batches: Mapping[int, int], *own: Any
    ) -> PhaseSeconds:
        model, cycles = own
        if clock == MODELLED:
            share = (TRAINER_WEIGHT + self.competitor(device)) / TRAINER_WEIGHT
            return pass_seconds(model, batches, share)
        if clock == WALL:
            return measured
        profile = self._profiles[device]
        return profile.device_seconds(measured) if cycles is None else cycles.device_seconds(measured, batches)


def beside_traffic(model: StepModel | CountedCycles, bytes_per_second: float) -> StepModel | CountedCycles:
    """Return a model of which the cores share DRAM with so much more; one of instructions alone is the same."""
    if not isinstance(model, TableModel | CycleModel) or (bus := model.profile.dram_bytes_per_second) is None:
        return model
    left = replace(bus, value=max(bus.value - bytes_per_second, LEAST_DRAM_SHARE * bus.value))
    return replace(model, profile=replace(model.profile, dram_bytes_per_second=left))


def batch_counts(samples: int, epochs: int, batch_size: int) -> dict[int, int]:
    """Return batch size -> steps for `samples` records, repetitions counted, in `epochs` equal passes."""
    full, rest = divmod(samples // max(1, epochs), batch_size)
    return {size: steps for size, steps in {batch_size: full * epochs, rest: epochs}.items() if size and steps}


def micro_batch_counts(records: int, micro_batch: int) -> dict[int, int]:
    """Return batch size -> steps of a gradient over `records`, computed in equal parts of at most `micro_batch`."""
    return equal_batches(records, -(-records // micro_batch))


def equal_batches(records: int, batches: int) -> dict[int, int]:
    """Return batch size -> how many, of so many records in batches whose sizes differ by one at the most."""
    small, larger = divmod(records, max(1, batches))
    return {size: count for size, count in {small + 1: larger, small: batches - larger}.items() if size and count}


def gradient_seconds(model: StepModel, batches: Mapping[int, int]) -> PhaseSeconds:
    """Return the seconds of one gradient, computed in these batches and encoded once: no update, the host steps."""
    return structs.replace(pass_seconds(model, batches), update=0.0)


def pass_seconds(model: StepModel, batches: Mapping[int, int], share: float = 1.0) -> PhaseSeconds:
    """Return the seconds of steps of these batches, `share` times as long each, with one encoding behind them."""
    sums = dict.fromkeys(PhaseSeconds.__struct_fields__, 0.0)
    for batch_size, steps in batches.items():
        step = model.step_seconds(batch_size)
        for phase in sums:
            sums[phase] += steps * share * getattr(step, phase)
    sums["encode"] += share * model.encode_seconds
    return PhaseSeconds(**sums)


def find_models(config: ArrayConfig, spec: ShippedCode, shape: Shape, store: CalibrationStore) -> dict[str, StepModel]:
    """Return the models of the devices whose seconds are to be modelled, as the array's `clock` says.

    A host that trains beside virtual machines is always modelled; real drives never are.

    Args:
        config: the array.
        spec: what will be trained.
        shape: (channels, height, width) of an image.
        store: the calibration tables.

    Raises:
        CalibrationError: the clock is to be modelled and there is no table, or a table is damaged.
    """
    models = _drive_models(config, spec, shape, store)
    counted = config.counted_engine in config.engines
    if not config.host.trains or (not counted and config.clock == WALL):
        return models
    table = store.require(spec, shape, config.host.profile) if counted or models else None
    return models if table is None else models | {HOST: host_model(table, get_profile(config.host.profile))}


def find_cycles(
    config: ArrayConfig, spec: ShippedCode, shape: Shape, store: CalibrationStore
) -> Mapping[str, CountedCycles]:
    """Return what turns counted seconds into those of cycles, for the drives of an array that asks for it.

    Of a model without a table cycles are assumed, with a warning.

    Raises:
        CalibrationError: the model has a table without cycles.
    """
    machines = [device for device in config.list_devices() if device.engine == config.counted_engine]
    if config.core_model != "cycles" or not machines:
        return {}
    found = {name: store.find_counted(spec, shape, name) for name in {device.profile for device in machines}}
    if None in found.values():
        log.warning(
            "model %r was never calibrated: %s cycles per instruction are assumed, models have 1.4 to 3.6; measure "
            "them with csd-emu calibrate",
            *(spec.name, ", ".join(f"{phase} {ratio}" for phase, ratio in ASSUMED_CYCLES.items())),
        )
    of_profiles = {
        name: AssumedCycles(get_profile(name)) if tables is None else CycleModel(*tables, get_profile(name))
        for name, tables in found.items()
    }
    return {device.name: of_profiles[device.profile] for device in machines}


def table_models(config: ArrayConfig, spec: ShippedCode, shape: Shape, store: CalibrationStore) -> dict[str, StepModel]:
    """Return what steps should cost on each node of the array that has a calibration table, undisturbed.

    Of a real drive only a table says it that was measured on one.
    """
    models: dict[str, StepModel] = {}
    for node in config.list_nodes():
        profile = get_profile(node.profile)
        table = store.find(spec, shape, node.profile)
        if table is not None and (node.engine != REMOTE or table.clock == WALL):
            models[node.name] = host_model(table, profile) if node.name == HOST else TableModel(table, profile)
    return models


def host_model(table: CalibrationTable, host: Profile) -> HostModel:
    """Return what steps cost on the host: as measured on it, or a drive's seconds over the profile's ratio."""
    unit, worth = table.speed_of(host)
    return HostModel(TableModel(table, unit), worth)


def _drive_models(
    config: ArrayConfig, spec: ShippedCode, shape: Shape, store: CalibrationStore
) -> dict[str, StepModel]:
    devices = [device for device in config.list_devices() if device.engine == NATIVE]
    if config.clock in (WALL, SAMPLED):
        return {}
    find = store.require if config.clock == MODELLED else store.find
    tables = {name: find(spec, shape, name) for name in {device.profile for device in devices}}
    return {
        device.name: TableModel(table, get_profile(device.profile))
        for device in devices
        if (table := tables[device.profile]) is not None
    }
