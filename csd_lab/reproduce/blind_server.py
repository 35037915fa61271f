"""The server of the published experiments under given circumstances: a drive in cycles, a host from published rates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import msgspec
import numpy as np

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.timeline import Link
from csd_emu.profiles import Profile, Sourced, get_profile
from csd_emu.profiles.calibration import CalibrationStore, CalibrationTable, load_table
from csd_emu.profiles.calibration.cycle_counts import scaled
from csd_emu.profiles.calibration.table_key import CYCLES_CORE
from csd_lab.reproduce.blind_inputs import BlindInputs
from csd_lab.simulate.nodes import NodeKind, Nodes, make_nodes
from firmware_agent.common.models import ZOO
from firmware_agent.common.shipped_code import ShippedCode
from host.config.sync_section import SyncSection, TuningSection
from host.core.device_time import ASSUMED_CYCLES
from host.core.model_facts import Load, inspect_load
from host.core.tuning.speed_table import Seconds, SpeedTable
from host.policies.batching.device_speeds import accumulated

DRIVES, DRIVE, HOST_PROFILE = 36, "newport", "xeon-4108"
SERVER = f"{HOST_PROFILE} with up to {DRIVES} {DRIVE} drives"
# The host's batch is a drive's times the ratio.
LARGEST_BATCH = 32768
TUNING = TuningSection(largest_batch=LARGEST_BATCH)
MEASURED, ASSUMED = "measured", "assumed"
# Which throughput relatives are of.
REFERENCE_MODEL = "resnet50"
# Name of an input -> its value: those of `BlindFigures`, `published_rate`, and `relative` of a model that has one.
Circumstances = Mapping[str, float]
CentredBand = tuple[float, float, float]
"""Low, middle and high."""


@cache
def model_load(model: str) -> Load:
    """Return the bytes of a model of the zoo at its full size."""
    return inspect_load(ShippedCode(model), ZOO[model].input_shape)


@dataclass(frozen=True)
class CycleTable:
    """A calibration table in cycles, and whether they were ``measured`` or ``assumed`` (`ASSUMED_CYCLES`)."""

    table: CalibrationTable
    basis: str

    @property
    def input_name(self) -> str:
        """Which input says how far its cycles are off."""
        return f"{self.basis}_cycles"


def cycle_table(table: CalibrationTable) -> CycleTable:
    """Return a table of the reference core in cycles: its rows that were counted, if two were; else assumed ones."""
    counted = tuple(row for row in table.rows if row.cycles is not None)
    if len(counted) >= 2:
        return CycleTable(msgspec.structs.replace(table, rows=counted).in_cycles(), MEASURED)
    rows = tuple(
        msgspec.structs.replace(row, steps=tuple(scaled(step, ASSUMED_CYCLES) for step in row.steps), layers=None)
        for row in table.rows
    )
    encodes = tuple(seconds * ASSUMED_CYCLES["encode"] for seconds in table.encode_seconds)
    return CycleTable(msgspec.structs.replace(table, core=CYCLES_CORE, rows=rows, encode_seconds=encodes), ASSUMED)


def input_bands(inputs: BlindInputs, model: str, table: CycleTable) -> dict[str, CentredBand]:
    """Return (low, value, high) of each input that the predictions of a model rest on.

    `published_rate` is the geometric mean of what was published of the model, scaled to the host's nominal peak, images
    per second; its ends are how far published rates of resnet50 lie from their own mean once they are scaled.
    """
    own = [entry.per_gigaflop for entry in inputs.throughputs if entry.model == model]
    reference = [entry.per_gigaflop for entry in inputs.throughputs if entry.model == REFERENCE_MODEL]
    mean = statistics.geometric_mean(reference)
    rate = inputs.host.gigaflops * statistics.geometric_mean(own or reference)
    bands = {"published_rate": (rate * min(reference) / mean, rate, rate * max(reference) / mean)}
    if not own:
        relative = inputs.relatives[model]
        bands["relative"] = (relative.low, relative.value, relative.high)
    unused = {"measured_cycles", "assumed_cycles"} - {table.input_name}
    for name in inputs.figures.__struct_fields__:
        if name not in unused:
            entry = getattr(inputs.figures, name)
            bands[name] = (entry.low, entry.value, entry.high)
    return bands


def host_rate(at: Circumstances) -> float:
    """Return images that the host trains on per second."""
    return at["published_rate"] * at.get("relative", 1.0) * at["host_clock"] * at["host_software"]


class BlindServer:
    """One model on the server; `nodes` has it under any circumstances.

    No more records are computed at once than calibration has measured, on a drive and on the host; larger batches
    accumulate gradients. So no figure rests on an extrapolated table.
    """

    def __init__(self, model: str, store: CalibrationStore, inputs: BlindInputs) -> None:
        """Read the table of the reference core.

        Raises:
            CalibrationError: it is missing or damaged.
        """
        self.model, self.load, self._store = model, model_load(model), store
        path, _ = store.locate(self.load.spec, self.load.shape)
        self.cycles = cycle_table(load_table(path))  # the store leaves cycles out, or asks for all of them
        self.at_once = self.cycles.table.batches[-1]
        self.bands = input_bands(inputs, model, self.cycles)
        self._sources = {name: entry.source for name, entry in inputs.ranges()}
        self._bases: dict[int, Nodes] = {}

    def drive_seconds(self, at: Circumstances) -> Seconds:
        """Return forward and backward of 1 to `at_once` records on a drive, (at_once,) float64."""
        drive, factor = self._drive(at), at[self.cycles.input_name]
        steps = [self.cycles.table.device_seconds(batch, drive) for batch in range(1, self.at_once + 1)]
        return np.array([(step.forward + step.backward) * factor for step in steps])

    def ratio(self, at: Circumstances) -> float:
        """Return how many drives the host is worth: their rates at the largest batch that is computed at once."""
        return host_rate(at) * float(self.drive_seconds(at)[-1]) / self.at_once

    def nodes(self, at: Circumstances, ratio: float | None = None) -> Nodes:
        """Return the server's nodes; with `ratio`, the host is worth so many drives, whatever was published.

        Raises:
            ConfigurationError: the smallest batch does not fit into a device.
        """
        worth = self.ratio(at) if ratio is None else ratio
        base, drive, host = self._base(round(at["drives"])), self._drive(at), self._host(at)
        table, factor = self.cycles.table, at[self.cycles.input_name]
        seconds, encode = self.drive_seconds(at), table.encode_seconds_median * table.scale(drive, "encode") * factor
        kinds = [
            _kind(profile, kind, seconds / share, encode / share)
            for profile, kind, share in zip((drive, host), base.kinds, (1.0, worth), strict=True)
        ]
        link = Link(at["host_link"] * 1e9, base.link.latency_seconds, shared=base.link.shared)
        return replace(base, kinds=kinds, link=link, ratio=worth)

    def _base(self, drives: int) -> Nodes:
        if drives not in self._bases:
            sync = SyncSection(micro_batch=self.at_once, tuning=TUNING)
            self._bases[drives] = make_nodes(server_config(drives), self.load, self._store, sync)
        return self._bases[drives]

    def _drive(self, at: Circumstances) -> Profile:
        profile = get_profile(DRIVE)
        return replace(
            profile,
            clock_hertz=self._figure(at, "drive_clock", 1e9),
            parallel_efficiency=self._figure(at, "parallel_efficiency"),
            dram_bytes_per_second=None,  # what cores gain is an input, DRAM's part in it included
            link_bytes_per_second=self._figure(at, "drive_link", 1e9),
            power=replace(
                profile.power,
                idle_watts=self._figure(at, "drive_idle"),
                core_watts=self._figure(at, "drive_core"),
                dram_watts=self._figure(at, "drive_dram"),
            ),
        )

    def _host(self, at: Circumstances) -> Profile:
        """Return the host: all that its server draws without training is the chassis'."""
        profile, none = get_profile(HOST_PROFILE), Sourced(0.0, "by definition: part of server_idle and host_added")
        return replace(
            profile,
            ratio=None,
            link_bytes_per_second=self._figure(at, "host_link", 1e9),
            power=replace(
                profile.power,
                idle_watts=none,
                core_watts=self._figure(at, "host_added", 1 / profile.cores.value),
                dram_watts=none,
            ),
            chassis_watts=self._figure(at, "server_idle"),
        )

    def _figure(self, at: Circumstances, name: str, unit: float = 1.0) -> Sourced:
        return Sourced(at[name] * unit, self._sources[name])


def _kind(profile: Profile, base: NodeKind, seconds: Seconds, encode_seconds: float) -> NodeKind:
    known = base.costs.speed
    speed = SpeedTable(known.name, accumulated(seconds, encode_seconds, known.largest_batch), known.error)
    return NodeKind(profile, replace(base.costs, speed=speed, micro_batch=len(seconds)), encode_seconds)


def server_config(drives: int = DRIVES) -> ArrayConfig:
    """Return the array: the host trains, all drives are there."""
    return ArrayConfig.model_validate(
        {
            "name": "reproduce",
            "engine": "native",
            "host": {"profile": HOST_PROFILE, "trains": True},
            "devices": [{"profile": DRIVE, "count": drives}],
        }
    )


def middle_of(bands: Mapping[str, CentredBand]) -> dict[str, float]:
    """Return the circumstances in which each input has its value."""
    return {name: value for name, (_, value, _) in bands.items()}


def combine(middle: float, ends: Mapping[str, tuple[float, float]]) -> CentredBand:
    """Return (low, middle, high) of a result whose inputs are off independently of each other.

    Each input's two results are logarithms off the middle; those below it add up as the root of the sum of squares, and
    so do those above it.

    Args:
        middle: the result with each input at its value, above 0.
        ends: input -> the result with that input alone at its one end and at its other.
    """
    down = up = 0.0
    for pair in ends.values():
        offsets = [math.log(result / middle) for result in pair]
        down += min(0.0, *offsets) ** 2
        up += max(0.0, *offsets) ** 2
    return middle * math.exp(-math.sqrt(down)), middle, middle * math.exp(math.sqrt(up))
