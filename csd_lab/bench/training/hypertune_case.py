"""One case of `bench hypertune_world`: an array, a course of disturbances, and a tuner that is driven through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from csd_lab.bench.training.hypertune_disturbances import DisturbanceCourse, draw_course, join_periods
from csd_lab.bench.training.hypertune_drives import HOST_KIND, Seconds, WorldArray, draw_array, scaled
from csd_lab.bench.training.hypertune_oracle import Watts, Whole, best_batches
from csd_lab.bench.training.hypertune_ranges import KINDS, WattRanges, WorldRanges
from host.config.sync_section import TuningSection
from host.core.tuning.batch_tuner import BatchTuner
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.make import TunerArguments, make_rules, make_tuner
from host.policies.batching.stannis import plan_batches
from host.policies.batching.step_watts import StepWatts

MakeTuner = Callable[[TunerArguments], BatchTuner]


@dataclass(frozen=True)
class WorldCase:
    """What a tuner is put into.

    Attributes:
        array: the devices.
        course: what happens to them.
        arguments: what the tuner is told.
        exchange_seconds: what is true of each step.
        watts: of the array.
    """

    array: WorldArray
    course: DisturbanceCourse
    arguments: TunerArguments
    exchange_seconds: float
    watts: Watts

    @property
    def records(self) -> int:
        """Of the plan's step: the most that a step may have."""
        return int(self.arguments.batches.sum())


@dataclass(frozen=True)
class WorldOutcome:
    """What came of a case.

    Attributes:
        period_records, period_seconds, period_joules: of each period.
        retunes: (step, seconds that the step took, batches from the next one on) of each retune.
        retunes_before: before the first disturbance.
        retunes_per_disturbance: from the beginning of each to that of the next, long bursts included.
    """

    period_records: tuple[float, ...]
    period_seconds: tuple[float, ...]
    period_joules: tuple[float, ...]
    retunes: tuple[tuple[int, float, tuple[int, ...]], ...]
    retunes_before: int
    retunes_per_disturbance: tuple[int, ...]

    def over(self, rates: Sequence[float]) -> float:
        """Return its records over those that an oracle with these rates does in the same seconds of each period."""
        possible = sum(rate * seconds for rate, seconds in zip(rates, self.period_seconds, strict=True))
        return sum(self.period_records) / possible

    def energy_over(self, rates: Sequence[float]) -> float:
        """Return the same of an oracle with these records per joule, in the same joules of each period."""
        possible = sum(rate * joules for rate, joules in zip(rates, self.period_joules, strict=True))
        return sum(self.period_records) / possible


def draw_case(seed: int, kind: str, ranges: WorldRanges | None = None) -> WorldCase:
    """Draw a case of a kind of disturbance; all of it follows from the seed."""
    ranges = ranges or WorldRanges()
    draw = np.random.default_rng([seed, KINDS.index(kind)])
    array = draw_array(draw, ranges.array)
    # Watts are drawn apart, so that the rest is as it was before there were any.
    return make_case(
        array,
        lambda step_seconds: draw_course(draw, kind, array, step_seconds, ranges.disturbance),
        _draw_watts(seed, array, ranges.watts),
    )


def make_case(array: WorldArray, course_for: Callable[[float], DisturbanceCourse], watts: Watts) -> WorldCase:
    """Return the case of an array; `course_for` takes the compute seconds of the plan's step."""
    tables = {id(table): SpeedTable(f"class {number}", table) for number, table in enumerate(array.tables)}
    own = [tables[id(table)] for table in array.tables]
    if array.slow_batch is not None:
        fits = min(table.largest_batch for table in own)
        tuning = TuningSection(slow_batch=min(array.slow_batch, fits))
    else:
        tuning = TuningSection()
    # The exchange is a share of the step's compute seconds, which depend on the plan: it is planned without it first.
    first = plan_batches(own, tuning)
    exchange = array.exchange_share * float(first.compute_seconds.max())
    told = exchange * array.told_exchange
    plan = plan_batches(own, tuning, told)
    course = course_for(float(plan.compute_seconds.max()))
    names = [f"csd-{number:02}" for number in range(len(own))]
    arguments = TunerArguments(own, plan.batches, names, len(course.factors), told, make_rules(tuning), True)
    return WorldCase(array, course, arguments, exchange, watts)


def for_energy(case: WorldCase) -> WorldCase:
    """Return the same case with a tuner that is told the watts, and to save joules."""
    rules = make_rules(TuningSection(objective="energy"), StepWatts(*case.watts))
    return replace(case, arguments=replace(case.arguments, tuning_rules=rules))


def _draw_watts(seed: int, array: WorldArray, ranges: WattRanges) -> Watts:
    """Draw what the classes of an array draw; the host waits whether it trains or not."""
    draw = np.random.default_rng([seed, len(KINDS)])
    drives = [(scaled(draw, ranges.drive_waiting), scaled(draw, ranges.drive_computing)) for _ in range(2)]
    host = scaled(draw, ranges.host_waiting), scaled(draw, ranges.host_computing)
    own = [host if kind == HOST_KIND else drives[kind] for kind in array.kinds]
    waiting = sum(idle for idle, _ in own) + (0.0 if HOST_KIND in array.kinds else host[0])
    return waiting, np.array([computing for _, computing in own])


def play(case: WorldCase, make: MakeTuner | None = None) -> WorldOutcome:
    """Drive a tuner through a case as synchronous training does: every device is waited for.

    Raises:
        AssertionError: it gives a device a negative batch, or a step more records than the plan's.
    """
    tuner = make_tuner("hypertune", case.arguments) if make is None else make(case.arguments)
    steps = len(case.course.factors)
    charged = _Clock(case)
    records, lengths, busy = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    retunes: list[tuple[int, float, tuple[int, ...]]] = []
    for first, end, period in join_periods(case.course.periods):
        for number in range(first, end):
            batches = np.asarray(tuner.batches)
            assert (batches >= 0).all(), batches
            assert int(batches.sum()) <= case.records, batches
            probes = np.where(batches > 0, 0, tuner.probes(number + 1))
            seconds = charged.seconds(period.seconds, np.maximum(batches, probes), number)
            lengths[number] += float(seconds[batches > 0].max(initial=0.0)) + case.exchange_seconds
            records[number] = batches.sum()
            busy[number] = float(case.watts[1] @ seconds)
            observed = np.where(np.maximum(batches, probes) > 0, seconds, np.nan)
            retune = tuner.observe(number + 1, observed, steps - number - 1)
            if retune is not None:
                lengths[number] += case.array.retune_steps * lengths[number]
                retunes.append((number + 1, float(lengths[number]), tuple(map(int, retune.batches))))
    return _outcome(case, records, lengths, busy, retunes)


def oracle(case: WorldCase, energy: bool = False) -> list[tuple[float, Whole]]:
    """Return the highest rate of each period, records per second or per joule, and the batches that have it.

    It knows when each period begins and what all in it will take, and changes batches for nothing. Its steps have no
    more records than the plan's, and no device more than its memory holds.
    """
    largest = np.array([len(seconds) for seconds in case.array.seconds])
    return [
        best_batches(
            period,
            case.course.factors[first:end],
            case.exchange_seconds,
            case.records,
            largest,
            case.watts if energy else None,
        )
        for first, end, period in join_periods(case.course.periods)
    ]


def describe(case: WorldCase) -> Mapping[str, Any]:
    """Return what was drawn, for a report."""
    return {
        "batches": case.arguments.batches.tolist(),
        "exchange_share": case.array.exchange_share,
        "noise": case.array.noise,
        "periods": [{"steps": each.steps, "disturbed": each.disturbed} for each in case.course.periods],
    }


class _Clock:
    """The seconds of the devices of a case, step after step."""

    def __init__(self, case: WorldCase) -> None:
        self._case, self._last = case, case.arguments.batches.copy()

    def seconds(self, curves: tuple[Seconds, ...], batches: Whole, step: int) -> Seconds:
        """Return what devices take, (devices,); a first step with another batch takes longer."""
        own = [curve[batch - 1] if batch else 0.0 for curve, batch in zip(curves, batches, strict=True)]
        longer = np.where(batches != self._last, 1 + self._case.array.first_step, 1.0)
        self._last = batches.copy()
        return np.asarray(np.array(own) * longer * self._case.course.factors[step])


def _outcome(
    case: WorldCase,
    records: Seconds,
    lengths: Seconds,
    busy: Seconds,
    retunes: list[tuple[int, float, tuple[int, ...]]],
) -> WorldOutcome:
    spans = join_periods(case.course.periods)
    joules = case.watts[0] * lengths + busy
    sums = [tuple(float(values[first:end].sum()) for first, end, _ in spans) for values in (records, lengths, joules)]
    edges = [0, *case.course.beginnings, len(records) + 1]
    before, *counts = np.histogram([step for step, *_ in retunes], edges)[0].tolist()
    return WorldOutcome(sums[0], sums[1], sums[2], tuple(retunes), before, tuple(counts))
