"""The charts of synchronous steps: batch sizes, records per second, imbalance; decisions and disturbances marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import numpy as np

from host.core.records import RoundRecord, StepRecord
from host.monitoring.charts.chart import (
    MOST_LINES,
    MOST_POINTS,
    Chart,
    Curve,
    Mark,
    Pane,
    Point,
    chunk,
    make_curve,
    make_lines,
)
from host.monitoring.report.charts.batch_courses import Course, change_points, choose_courses, list_courses
from host.monitoring.report.run_decisions import RunDecision
from host.monitoring.report.step_spans import list_steps, mean_imbalance, share_of_possible

# More marks of a kind than this hide what they mark; the last ones stay.
_MOST_MARKS = 60


def step_charts(rounds: Sequence[RoundRecord], decisions: Sequence[RunDecision], clock: str) -> list[Chart]:
    """Return the charts of all steps; none of a run without steps. `clock` is that of the array's seconds."""
    if not (steps := list_steps(rounds)):
        return []
    marks = make_marks(steps, decisions)
    return [_batch_chart(steps, marks), _rate_chart(steps, marks, clock), _imbalance_chart(steps, marks, clock)]


def make_marks(steps: Sequence[StepRecord], decisions: Sequence[RunDecision]) -> list[Mark]:
    """Return the last times of competing work, and the last decisions of those taken on the way, with their texts."""
    grouped = [(disturbed, list(run)) for disturbed, run in groupby(steps, key=lambda step: step.disturbed)]
    spells = []
    for disturbed, run in grouped:
        first, last = run[0].step, run[-1].step
        work = ", ".join(f"{name} (weight {weight})" for name, weight in disturbed.items())
        text = f"competing work in steps {first} to {last}: {work}"
        spells += [Mark("competing work", first - 0.5, last + 0.5, text)] if disturbed else []
    changes = [
        Mark(each.knob, each.step - 0.5, each.step - 0.5, _tell(each))
        for each in decisions
        if each.step > steps[0].step
    ]
    return [*spells[-_MOST_MARKS:], *changes[-_MOST_MARKS:]]


def _tell(decision: RunDecision) -> str:
    measured = f" Measured: {decision.rate_ratio:.3f} times the records/s." if decision.rate_ratio else ""
    reason = decision.reason or "why is not recorded"
    return f"step {decision.step}: {decision.knob}: {decision.value}. {reason.rstrip('.')}.{measured}"


def _chart(
    name: str, title: str, caption: str, told: str, marks: list[Mark], pane: Pane, steps: Sequence[StepRecord]
) -> Chart:
    return Chart(
        name=name,
        title=title,
        caption=caption + " Triangles: decisions of tuners (their reasons are in the table below).",
        told=f"{title}: {told}.",
        x_title="step",
        panes=[pane],
        marks=marks,
        x_range=(steps[0].step - 0.5, steps[-1].step + 0.5),
        whole=True,
        wide=True,
    )


def _batch_chart(steps: Sequence[StepRecord], marks: list[Mark]) -> Chart:
    courses = list_courses(steps)
    lines, others = choose_courses(courses, MOST_LINES)
    numbers = [float(step.step) for step in steps]
    first, last, count = steps[0].samples, steps[-1].samples, sum(len(course.devices) for course in others)
    told = f"{sum(len(course.devices) for course in courses)} devices, global batch {first} first and {last} at the end"
    caption = "Records per step of each device; devices that always had the same share a line."
    caption += f" The area spans the other {count} devices." if others else ""
    curves = [
        *([_band(numbers, others, f"{count} others, smallest to largest")] if others else []),
        *make_lines(((course.label, _held(numbers, course)) for course in lines), steps=True),
    ]
    sizes = np.array([size for course in courses for size in course.sizes])
    positive, largest = sizes[sizes > 0], float(np.nanmax(sizes, initial=1.0))
    # Batches of a host and of drives differ tenfold: a logarithmic axis shows both, and 0 at its foot.
    log = bool(positive.size) and largest > 8 * positive.min()
    foot = positive.min() / 1.6 if log and not (sizes == 0).any() else 0.0
    pane = Pane(curves=curves, unit="records per step", low=foot, high=largest * (1.6 if log else 1.1), log=log)
    return _chart("batches", "Batch sizes over steps", caption, told, marks, pane, steps)


def _held(numbers: Sequence[float], course: Course) -> list[Point]:
    """Return the course where it changes, and its last value at the end of the last step."""
    points = [(numbers[at] - 0.5, course.sizes[at]) for at in change_points(course.sizes)]
    return [*points, (numbers[-1] + 0.5, course.sizes[-1])]


def _band(numbers: Sequence[float], courses: Sequence[Course], name: str) -> Curve:
    """Return the area between the smallest and the largest of the courses, where any of them changes."""
    every = np.array([course.sizes for course in courses])
    low, high = np.nan_to_num(every, nan=np.inf).min(axis=0), np.nan_to_num(every).max(axis=0)
    places = sorted({at for course in courses for at in change_points(course.sizes)})
    places = places[:: math.ceil(len(places) / (4 * MOST_POINTS))]
    points = [(numbers[at] - 0.5, min(low[at], high[at]), high[at]) for at in places]
    return make_curve(name, points, "s8", steps=True, fill="band")


def _rate_chart(steps: Sequence[StepRecord], marks: list[Mark], clock: str) -> Chart:
    share = share_of_possible(steps)
    told = f"{share:.1%} of what was possible" if share is not None else "what was possible is not known without tables"
    caption = (
        f"Records over seconds ({clock}), means of neighbouring steps in a long run. Possible: by the tables, "
        "scaled by the speeds observed, with no batch larger than at the beginning; compute alone, like the "
        "line below it. Whole step: with flash and link."
    )
    lines = {
        "possible, compute alone": _over_chunks(steps, _possible),
        "achieved, compute alone": _over_chunks(
            steps, lambda part: _rate(part, (each.slowest_seconds for each in part))
        ),
        "achieved, whole step": _over_chunks(steps, lambda part: _rate(part, (each.array_seconds for each in part))),
    }
    pane = Pane(curves=make_lines(lines.items()), unit=f"records / s ({clock})", low=0.0)
    return _chart("rates", "Records per second, achieved and possible", caption, told, marks, pane, steps)


def _imbalance_chart(steps: Sequence[StepRecord], marks: list[Mark], clock: str) -> Chart:
    told = f"mean {mean_imbalance(steps):.1%}, largest {max(step.imbalance for step in steps):.1%}"
    caption = (
        f"(max - min) / max of the devices' compute seconds ({clock}) in a step: the share of the step that the "
        "fastest device waits."
    )
    means = _over_chunks(steps, lambda part: 100 * mean_imbalance(part))
    worst = _over_chunks(steps, lambda part: 100 * max(step.imbalance for step in part))
    curves = [make_curve("imbalance", means, "s1")]
    if len(means) < len(steps):
        spread = [(x, mean, most) for (x, mean), (_, most) in zip(means, worst, strict=True)]
        curves = [make_curve("largest", spread, "s1", fill="band"), make_curve("mean", means, "s1")]
    pane = Pane(curves=curves, unit="% of the slowest", low=0.0, high=max(1.0, *(1.1 * most for _, most in worst)))
    return _chart("imbalance", "Imbalance of steps", caption, told, marks, pane, steps)


def _over_chunks(
    steps: Sequence[StepRecord], value: Callable[[Sequence[StepRecord]], float]
) -> list[tuple[float, float]]:
    return [((part[0].step + part[-1].step) / 2, value(part)) for part in chunk(steps)]


def _rate(part: Sequence[StepRecord], seconds: Iterable[float]) -> float:
    total = math.fsum(seconds)
    return sum(step.samples for step in part) / total if total else math.nan


def _possible(part: Sequence[StepRecord]) -> float:
    """Return the mean over the compute seconds of the steps that know it."""
    known = [step for step in part if step.possible_records_per_second > 0]
    weight = math.fsum(step.slowest_seconds for step in known)
    total = math.fsum(step.possible_records_per_second * step.slowest_seconds for step in known)
    return total / weight if weight else math.nan
