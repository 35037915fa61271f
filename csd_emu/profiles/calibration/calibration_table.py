"""A calibration table: batch size -> seconds per step and phase, and memory, with the raw steps behind them."""

from __future__ import annotations

import functools
import hashlib
import itertools
import statistics
from collections.abc import Sequence

import msgspec

from csd_emu.profiles import Profile, get_profile
from csd_emu.profiles.calibration.cycle_counts import PhaseCycles, RowCycles, scaled, scaled_layers
from csd_emu.profiles.calibration.table_fit import has_kernels, predict
from csd_emu.profiles.calibration.table_key import CYCLES_CORE, CalibrationKey
from csd_emu.profiles.profile import RATIO_DRIVE, RatioName
from firmware_agent.common.errors import CalibrationError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.measure_frames import LayerTime, LayerTimes


def layers_at(points: Sequence[tuple[int, Sequence[float]]], batch_size: int, whole_seconds: float) -> list[float]:
    """Return the seconds of each layer at `batch_size`; they add up to `whole_seconds`.

    Each layer follows its own points as a step does its own (`csd_emu.profiles.calibration.table_fit.predict`), and all
    are scaled. With one point the layers have the same shares of any batch. If none takes any time, all take as long.

    Args:
        points: (batch size, (layers,) seconds >= 0), at least one, batch sizes strictly increasing.
        batch_size: at least 1.
        whole_seconds: of all layers, at this batch size.
    """
    batches = [batch for batch, _ in points]
    columns = list(zip(*(seconds for _, seconds in points), strict=True))
    weights = [
        column[0] if len(points) == 1 else predict(list(zip(batches, column, strict=True)), batch_size)
        for column in columns
    ]
    if (total := sum(weights)) <= 0:
        return [whole_seconds / len(weights)] * len(weights)
    return [whole_seconds * weight / total for weight in weights]


FORMAT = 1
PHASES = PhaseSeconds.__struct_fields__


class Versions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What ran in the drive or the host that was measured, and on which processors; empty of older ones."""

    agent: str
    python: str
    torch: str
    numpy: str
    kernel: str
    processor: str = ""


class CalibrationRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, omit_defaults=True):
    """One batch size.

    Attributes:
        of: `CalibrationTable.row_mark` of the table that it was measured for.
        batch_size: samples per step.
        steps: seconds of each measured step, per phase, on the table's core.
        peak_memory_bytes: the most that the agent's process had in RAM, interpreter and torch included.
        wall_seconds: what measuring it cost here; it says nothing of a drive.
        layers: what each layer takes of the median step, on the table's core; None if that was not measured.
        cycles: what the core model counted; None if it was not asked, and of a real drive.
    """

    of: str
    batch_size: int
    steps: tuple[PhaseSeconds, ...]
    peak_memory_bytes: int
    wall_seconds: float
    layers: LayerTimes | None = None
    cycles: RowCycles | None = None

    @functools.cached_property
    def seconds(self) -> PhaseSeconds:
        """The median step (see `median_step`)."""
        return median_step(self.steps)

    def in_cycles(self) -> CalibrationRow:
        """Return the row with seconds of a core that takes a nanosecond a cycle, instead of one an instruction.

        Raises:
            CalibrationError: its cycles were not measured.
        """
        if self.cycles is None:
            raise CalibrationError(f"batch {self.batch_size}: its cycles were not measured")
        factors = self.cycles.per_instruction()
        layers = None if self.layers is None else scaled_layers(self.layers, factors)
        return msgspec.structs.replace(self, steps=tuple(scaled(step, factors) for step in self.steps), layers=layers)


class CalibrationTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, omit_defaults=True):
    """What one model costs on one core at one input size.

    Attributes:
        format: of the file, `FORMAT`.
        model, arguments, source_sha256, input_shape, core, task: see `CalibrationKey`.
        classes: of the logits; 1 of a model that gives no row of logits for a record.
        parameters: trainable values.
        clock: that the seconds are of: ``counted`` or ``wall``.
        image: hash of the ARM image that ran; empty for a real drive or a host.
        versions: in the drive.
        seed: of the first weights, the images and the order of samples.
        encode_seconds: copying the weights out of the model, once per measured batch size.
        memory_source: where peak memory was read: ``VmHWM`` or ``ru_maxrss``.
        rows: by increasing batch size, at least two.
    """

    format: int
    model: str
    arguments: dict[str, int | float | str | bool]
    source_sha256: str | None
    input_shape: tuple[int, ...]
    classes: int
    parameters: int
    clock: str
    core: str
    image: str
    versions: Versions
    seed: int
    encode_seconds: tuple[float, ...]
    memory_source: str
    rows: tuple[CalibrationRow, ...]
    task: str = ""

    @property
    def key(self) -> CalibrationKey:
        """What the table is of."""
        return CalibrationKey(self.model, self.arguments, self.source_sha256, self.input_shape, self.core, self.task)

    @property
    def row_mark(self) -> str:
        """What its rows carry, so that a row of another model, shape, core or image does not pass for its own."""
        return row_mark(self.key, self.image)

    @property
    def batches(self) -> list[int]:
        """The measured batch sizes, in order."""
        return [row.batch_size for row in self.rows]

    @property
    def encode_seconds_median(self) -> float:
        """Seconds of copying the weights out once, on the table's core."""
        return statistics.median(self.encode_seconds)

    def step_seconds(self, batch_size: int) -> PhaseSeconds:
        """Return the seconds of one step of `batch_size` samples, per phase, on the table's core; encode is 0.

        Measured batches have the medians of their steps; others as `csd_emu.profiles.calibration.table_fit.predict`
        says, phase by phase.

        Raises:
            CalibrationError: `batch_size` is below 1.
        """
        _check_batch(batch_size)
        medians = [(row.batch_size, row.seconds) for row in self.rows]
        return PhaseSeconds(
            *(predict([(batch, getattr(seconds, phase)) for batch, seconds in medians], batch_size) for phase in PHASES)
        )

    def layer_seconds(self, batch_size: int) -> tuple[LayerTime, ...] | None:
        """Return what each layer takes of a step of `batch_size` samples, in forward order, on the table's core.

        They add up to the forward and backward seconds of `step_seconds`.

        Returns:
            The layers, or None if no row has them.

        Raises:
            CalibrationError: `batch_size` is below 1.
        """
        whole = self.step_seconds(batch_size)
        if not (rows := [(row.batch_size, row.layers.layers) for row in self.rows if row.layers is not None]):
            return None
        forward = [(batch, [layer.forward_seconds for layer in layers]) for batch, layers in rows]
        backward = [(batch, [layer.backward_seconds for layer in layers]) for batch, layers in rows]
        return tuple(
            LayerTime(layer.name, *seconds)
            for layer, *seconds in zip(
                rows[0][1],
                layers_at(forward, batch_size, whole.forward),
                layers_at(backward, batch_size, whole.backward),
                strict=True,
            )
        )

    def device_seconds(self, batch_size: int, profile: Profile) -> PhaseSeconds:
        """Return the seconds of one step on a drive of `profile`.

        Those of a virtual machine are scaled, those of a real drive are taken as they are.

        Raises:
            CalibrationError: the table is of a drive of another profile.
        """
        seconds = self.step_seconds(batch_size)
        if self.clock == "wall" and self.core != profile.name:
            raise CalibrationError(
                f"{self.key.file_name}: was measured on a {self.core}, not on a {profile.name}; calibrate that one"
            )
        return PhaseSeconds(*(getattr(seconds, phase) * self.scale(profile, phase) for phase in PHASES))

    def speed_of(self, profile: Profile, ratio: RatioName = "middle") -> tuple[Profile, float]:
        """Return of which profile's drive the table's seconds are, and how many of it a node of `profile` is worth.

        A drive is worth one of its own, and so is a host that was measured itself. Any other host is worth as many
        `RATIO_DRIVE` as its profile's ratio says.
        """
        if profile.ratio is None or (self.clock == "wall" and self.core == profile.name):
            return profile, 1.0
        return get_profile(RATIO_DRIVE), float(getattr(profile.ratio, ratio).value)

    def scale(self, profile: Profile, phase: str) -> float:
        """Return what the table's seconds of `phase` are multiplied by to become those of a drive of `profile`."""
        if self.core == CYCLES_CORE:
            return profile.cycle_scale(phase, self._dram_bytes_per_cycle[phase])
        return 1.0 if self.clock == "wall" else profile.scale(phase)

    @functools.cached_property
    def _dram_bytes_per_cycle(self) -> dict[str, float]:
        """What one core asks of DRAM in each phase; in one that was not counted by itself, as in whole steps."""
        steps = [step for row in self.rows if row.cycles for step in row.cycles.steps]
        return {
            phase: whole.dram_bytes / whole.cycles if whole.cycles else 0.0
            for phase in PHASES
            for whole in [sum((getattr(step, phase, step.total) for step in steps), PhaseCycles())]
        }

    def in_instructions(self) -> CalibrationTable:
        """Return the same table without cycles: a run that does not rest on them goes on whatever they are."""
        return msgspec.structs.replace(self, rows=tuple(msgspec.structs.replace(row, cycles=None) for row in self.rows))

    def in_cycles(self) -> CalibrationTable:
        """Return the same table with seconds of a core that takes a nanosecond a cycle: `CYCLES_CORE`.

        That of a real drive, whose own clock was measured, is returned as it is.

        Raises:
            CalibrationError: the cycles of a row were not measured.
        """
        if self.clock == "wall" or self.core == CYCLES_CORE:
            return self
        try:
            rows = tuple(row.in_cycles() for row in self.rows)
        except CalibrationError as error:
            raise CalibrationError(
                f"{self.key.file_name}: {error}; measure with csd-emu calibrate {self.model} "
                f"--input {self.key.shape_text}, or leave core_model: cycles out"
            ) from error
        encodes = [row.cycles.per_instruction()["encode"] for row in self.rows if row.cycles is not None]
        factor = statistics.median(encodes)
        encode_seconds = tuple(seconds * factor for seconds in self.encode_seconds)
        return msgspec.structs.replace(self, core=CYCLES_CORE, rows=rows, encode_seconds=encode_seconds)

    def peak_memory_bytes(self, batch_size: int) -> int:
        """Return the most memory that training at `batch_size` takes in the drive, never less than at a smaller batch.

        Raises:
            CalibrationError: `batch_size` is below 1.
        """
        _check_batch(batch_size)
        most = map(float, itertools.accumulate((row.peak_memory_bytes for row in self.rows), max))
        return round(predict(list(zip(self.batches, most, strict=True)), batch_size))

    def covers(self, batch_size: int) -> bool:
        """Return whether a row ran the kernels that torch has for `batch_size` (see `fit.KERNEL_CHANGES`).

        If not, a model with 1x1 filters may take half as long again as the table says; measure such a batch too.
        """
        return has_kernels(self.batches, batch_size)

    def error_estimate(self) -> dict[int, float]:
        """Return what the table would have said of each measured batch without its row, against that row.

        Relative errors of seconds per step, signed; ends are extrapolated, the others interpolated. A table needs
        three rows for one; with two it is empty.
        """
        if len(self.rows) < 3:
            return {}
        errors = {}
        for number, row in enumerate(self.rows):
            rest = msgspec.structs.replace(self, rows=(*self.rows[:number], *self.rows[number + 1 :]))
            errors[row.batch_size] = rest.step_seconds(row.batch_size).total / row.seconds.total - 1
        return errors


def median_step(steps: Sequence[PhaseSeconds]) -> PhaseSeconds:
    """Return the median of each phase over `steps`, at least one."""
    return PhaseSeconds(*(statistics.median(getattr(step, phase) for step in steps) for phase in PHASES))


def row_mark(key: CalibrationKey, image: str) -> str:
    """Return the mark of rows that are measured for `key` with `image`: 16 hex digits."""
    return hashlib.sha256(f"{key.digest} {image}".encode()).hexdigest()[:16]


def _check_batch(batch_size: int) -> None:
    if batch_size < 1:
        raise CalibrationError(f"a step of {batch_size} samples has no cost; ask for a batch size of 1 or more")
