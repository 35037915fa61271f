"""Cycles of whole training steps, as the core model counted them: instructions, cycles and DRAM bytes per phase."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from csd_emu.profiles.calibration.table_fit import spread_of
from firmware_agent.common.errors import CalibrationError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.measure_frames import LayerTime, LayerTimes


class PhaseCycles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Counters of one phase: instructions retired, cycles that they took, bytes that crossed the DRAM bus."""

    instructions: int = 0
    cycles: int = 0
    dram_bytes: int = 0

    def __add__(self, other: PhaseCycles) -> PhaseCycles:
        """Return the sums."""
        return PhaseCycles(*map(sum, zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)))

    @property
    def per_instruction(self) -> float:
        """Cycles per instruction; 0 of none."""
        return self.cycles / self.instructions if self.instructions else 0.0


class StepCycles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counters of one step, per phase."""

    forward: PhaseCycles
    backward: PhaseCycles
    update: PhaseCycles

    @property
    def total(self) -> PhaseCycles:
        """The whole step."""
        return self.forward + self.backward + self.update


class RowCycles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the core model counted at one batch size.

    Attributes:
        core: digest of the core's parameters (`csd_emu.cycles.parameters.CoreParameters`).
        steps: whole steps after a warm-up.
        encodes: of copying the weights out, each time.
    """

    core: str
    steps: tuple[StepCycles, ...]
    encodes: tuple[PhaseCycles, ...]

    def per_instruction(self) -> dict[str, float]:
        """Return the cycles per instruction of each phase: the median over the steps, for an interrupt costs some."""
        phases = {
            name: statistics.median(getattr(step, name).per_instruction for step in self.steps)
            for name in StepCycles.__struct_fields__
        }
        return phases | {"encode": statistics.median(counts.per_instruction for counts in self.encodes)}

    @property
    def spread(self) -> float | None:
        """How far the cycles per instruction of whole steps scatter (see `spread_of`); None of a single step."""
        ratios = [step.total.per_instruction for step in self.steps]
        return spread_of(ratios) if len(ratios) > 1 else None


def scaled(seconds: PhaseSeconds, factors: Mapping[str, float]) -> PhaseSeconds:
    """Return the seconds of each phase times its factor."""
    return PhaseSeconds(**{phase: getattr(seconds, phase) * factor for phase, factor in factors.items()})


def scaled_layers(layers: LayerTimes, factors: Mapping[str, float]) -> LayerTimes:
    """Return layers of which each takes as much longer as its whole phase does."""
    longer = [
        LayerTime(one.name, one.forward_seconds * factors["forward"], one.backward_seconds * factors["backward"])
        for one in layers.layers
    ]
    return LayerTimes(longer, scaled(layers.watched, factors), layers.passes)


def split_steps(
    phases: Sequence[tuple[str, PhaseCycles]],
) -> tuple[tuple[StepCycles, ...], tuple[PhaseCycles, ...]]:
    """Return the counters of each step but the first, which warms the model's caches, and of each encoding.

    Args:
        phases: in order, each phase's name with its counters; a step ends with ``update``.

    Raises:
        CalibrationError: these are not the phases of two steps or more and an encoding.
    """
    steps, encode = list(_steps(phases)), [counts for name, counts in phases if name == "encode"]
    if len(steps) < 2 or not encode:
        raise CalibrationError(
            f"the machine's cycle marks tell of {len(steps)} whole steps and {len(encode)} encodings, where two steps "
            "or more and an encoding were asked for; measure again"
        )
    return tuple(steps[1:]), tuple(encode)


def _steps(phases: Sequence[tuple[str, PhaseCycles]]) -> Iterator[StepCycles]:
    sums = dict.fromkeys(StepCycles.__struct_fields__, PhaseCycles())
    for name, counts in phases:
        if name in sums:
            sums[name] += counts
            if name == "update":
                yield StepCycles(**sums)
                sums = dict.fromkeys(sums, PhaseCycles())
