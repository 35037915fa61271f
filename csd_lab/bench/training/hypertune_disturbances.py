"""Disturbances of `bench hypertune_world`: what devices' steps take, period by period and step by step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from csd_lab.bench.training.hypertune_drives import Seconds, WorldArray, scaled, whole
from csd_lab.bench.training.hypertune_ranges import DisturbanceRanges

# A burst of so many steps is a disturbance like others; a shorter one is a blip.
LONG_BURST = 3


@dataclass(frozen=True)
class Period:
    """Steps in which nothing but noise and bursts changes.

    Attributes:
        steps: how many.
        seconds: of each device those of batches of 1 to its largest.
        disturbed: numbers of the devices that a disturbance slows.
    """

    steps: int
    seconds: tuple[Seconds, ...]
    disturbed: tuple[int, ...]


@dataclass(frozen=True)
class DisturbanceCourse:
    """What happens to an array.

    Attributes:
        periods: quiet, disturbed, quiet, ...
        factors: (steps, devices) noise and bursts: what a device's seconds are multiplied by in a step.
        bursts: the first steps of those of `LONG_BURST` steps or more, counted from 0.
    """

    periods: tuple[Period, ...]
    factors: Seconds
    bursts: tuple[int, ...]

    @property
    def beginnings(self) -> list[int]:
        """First steps of all disturbances, long bursts included, in order and counted from 0."""
        return sorted({*self.bursts, *(first for first, _, period in join_periods(self.periods) if period.disturbed)})


def draw_course(
    draw: np.random.Generator, kind: str, array: WorldArray, step_seconds: float, ranges: DisturbanceRanges
) -> DisturbanceCourse:
    """Draw what happens to an array; `step_seconds` are the compute seconds of its plan."""
    returns = kind == "bursts"
    count = whole(draw, ranges.return_count if returns else ranges.count)
    quiet, lasting = (
        (ranges.return_quiet_steps, ranges.return_disturbed_steps)
        if returns
        else (ranges.quiet_steps, ranges.disturbed_steps)
    )
    back = int(draw.integers(len(array.seconds)))
    periods = [Period(whole(draw, quiet), array.seconds, ())]
    for _ in range(count):
        most = max(1, int(ranges.devices_share * len(array.seconds)))
        chosen = [back] if returns else draw.permutation(len(array.seconds))[: whole(draw, (1, most))].tolist()
        curves = list(array.seconds)
        for device in chosen:
            curves[device] = _disturb(draw, kind, curves[device], step_seconds, ranges)
        periods.append(Period(whole(draw, lasting), tuple(curves), tuple(chosen)))
        periods.append(Period(whole(draw, quiet), array.seconds, ()))
    steps = sum(period.steps for period in periods)
    factors, bursts = _factors(draw, kind, (steps, len(array.seconds)), array.noise, ranges)
    return DisturbanceCourse(tuple(periods), factors, tuple(bursts))


def _disturb(
    draw: np.random.Generator, kind: str, seconds: Seconds, step_seconds: float, ranges: DisturbanceRanges
) -> Seconds:
    if kind == "factor":
        return seconds * scaled(draw, ranges.factor)
    if kind == "bursts":
        return seconds * scaled(draw, ranges.return_factor)
    if kind == "extra":
        return seconds + scaled(draw, ranges.extra) * step_seconds
    factor, records = scaled(draw, ranges.bandwidth_factor), scaled(draw, ranges.bandwidth_records)
    beyond = np.arange(len(seconds))  # records beyond the first
    shape = str(draw.choice(["slope", "cliff", "saturating"]))
    if shape == "slope":
        return np.asarray(seconds[0] + factor * (seconds - seconds[0]))
    if shape == "cliff":
        calm = min(len(seconds), round(records)) - 1
        return np.asarray(seconds + (factor - 1) * np.maximum(0.0, seconds - seconds[calm]))
    return np.asarray(seconds * (1 + (factor - 1) * beyond / (beyond + records)))


def _factors(
    draw: np.random.Generator, kind: str, shape: tuple[int, int], noise: float, ranges: DisturbanceRanges
) -> tuple[Seconds, list[int]]:
    steps, devices = shape
    logs = noise * draw.standard_normal(shape)
    bursts: list[int] = []
    if kind != "bursts":
        return np.exp(logs), bursts
    memory, deviation = draw.uniform(*ranges.drift_memory), scaled(draw, ranges.drift_noise)
    wander = deviation * draw.standard_normal(devices)
    for step in range(steps):
        wander = memory * wander + deviation * (1 - memory**2) ** 0.5 * draw.standard_normal(devices)
        logs[step] += wander
    gap = scaled(draw, ranges.burst_gap_steps)
    at = draw.exponential(gap)
    while at < steps:
        length = whole(draw, ranges.burst_steps)
        logs[int(at) : int(at) + length, draw.integers(devices)] += np.log(scaled(draw, ranges.burst_factor))
        if length >= LONG_BURST:
            bursts.append(int(at))
        at += length + draw.exponential(gap)
    return np.exp(logs), bursts


def join_periods(periods: Sequence[Period]) -> list[tuple[int, int, Period]]:
    """Return (first step, step after the last, period), steps counted from 0."""
    ends = np.cumsum([period.steps for period in periods]).tolist()
    return [(end - period.steps, end, period) for end, period in zip(ends, periods, strict=True)]
