"""Cycles of whole training steps, as the core model counted them: instructions, cycles and DRAM bytes per phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

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
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return PhaseCycles(*(mine + theirs for mine, theirs in pairs))


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
        encode: of copying the weights out once.
    """

    core: str
    steps: tuple[StepCycles, ...]
    encode: PhaseCycles

    def per_instruction(self) -> PhaseSeconds:
        """Return the cycles per instruction of each phase over all steps: ratios, in the fields of seconds."""
        phases = {name: sum_cycles(getattr(step, name) for step in self.steps) for name in StepCycles.__struct_fields__}
        return PhaseSeconds(**{name: _ratio(counts) for name, counts in phases.items()}, encode=_ratio(self.encode))

    @property
    def spread(self) -> float:
        """The largest less the smallest cycles per instruction of a whole step, over their mean."""
        ratios = [_ratio(step.total) for step in self.steps]
        return (max(ratios) - min(ratios)) / (sum(ratios) / len(ratios))


def sum_cycles(counts: Iterable[PhaseCycles]) -> PhaseCycles:
    """Return the sums of several counters."""
    return sum(counts, PhaseCycles())


def _ratio(counts: PhaseCycles) -> float:
    return counts.cycles / counts.instructions if counts.instructions else 0.0


def scaled(seconds: PhaseSeconds, factors: PhaseSeconds) -> PhaseSeconds:
    """Return the seconds of each phase times its factor."""
    return PhaseSeconds(
        *(getattr(seconds, phase) * getattr(factors, phase) for phase in PhaseSeconds.__struct_fields__)
    )


def scaled_layers(layers: LayerTimes, factors: PhaseSeconds) -> LayerTimes:
    """Return layers of which each takes as much longer as its whole phase does."""
    return LayerTimes(
        [
            LayerTime(layer.name, layer.forward_seconds * factors.forward, layer.backward_seconds * factors.backward)
            for layer in layers.layers
        ],
        scaled(layers.watched, factors),
        layers.passes,
    )


def split_steps(phases: Sequence[tuple[str, PhaseCycles]]) -> tuple[tuple[StepCycles, ...], PhaseCycles]:
    """Return the counters of each step but the first, which warms the model's caches, and of the encoding.

    Args:
        phases: in order, each phase's name with its counters; a step ends with ``update``, the last is ``encode``.

    Raises:
        CalibrationError: these are not the phases of two steps or more and an encoding.
    """
    steps, encode = list(_steps(phases)), [counts for name, counts in phases if name == "encode"]
    if len(steps) < 2 or len(encode) != 1:
        raise CalibrationError(
            f"the machine's cycle marks tell of {len(steps)} whole steps and {len(encode)} encodings, where two steps "
            "or more and one encoding were asked for; measure again"
        )
    return tuple(steps[1:]), encode[0]


def _steps(phases: Sequence[tuple[str, PhaseCycles]]) -> Iterator[StepCycles]:
    sums = dict.fromkeys(StepCycles.__struct_fields__, PhaseCycles())
    for name, counts in phases:
        if name not in sums:
            continue
        sums[name] += counts
        if name == "update":
            yield StepCycles(**sums)
            sums = dict.fromkeys(sums, PhaseCycles())
