"""The charts of synchronous steps: batch sizes, records per second, imbalance; retunes and disturbances marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from host.core.records import RoundRecord, StepRecord
from host.monitoring.report.charts.batch_chart import Course, change_points, choose_courses, list_courses
from host.monitoring.report.charts.step_marks import StepMarks, make_marks
from host.monitoring.report.charts.svg import NARROW, SERIES, WIDE, Chart, draw, legend, printable
from host.monitoring.report.charts.training_charts import LINE_STYLES, MOST_POINTS
from host.monitoring.report.step_spans import list_retunes, list_steps, mean_imbalance, share_of_possible

_HEIGHT = 260.0
_MOST_LINES = 6


def step_charts(rounds: Sequence[RoundRecord], clock: str) -> list[Chart]:
    """Return the charts of all steps; none of a run without steps. `clock` is that of the array's seconds."""
    steps = list_steps(rounds)
    if not steps:
        return []
    marks = make_marks(steps, list_retunes(rounds))
    return [_batch_chart(steps, marks), _rate_chart(steps, marks, clock), _imbalance_chart(steps, marks, clock)]


def _chart(name: str, title: str, caption: str, told: str, marks: StepMarks, paint: Callable[[Figure], None]) -> Chart:
    pictures = [
        draw(f"{name}-{kind}", f"{title}: {told}.", (width, _HEIGHT + extra), paint, marks.tooltips)
        for kind, width, extra in (("narrow", NARROW, 50.0), ("wide", WIDE, 0.0))
    ]
    return Chart(name, title, caption + " Triangles: retunes (their reasons are in the table below).", *pictures)


def _batch_chart(steps: Sequence[StepRecord], marks: StepMarks) -> Chart:
    courses = list_courses(steps)
    lines, others = choose_courses(courses, _MOST_LINES)
    first, last = steps[0].samples, steps[-1].samples
    told = f"{sum(len(course.devices) for course in courses)} devices, global batch {first} first and {last} at the end"
    caption = "Records per step of each device; devices that always had the same share a line."
    caption += f" The area spans the other {sum(len(course.devices) for course in others)} devices." if others else ""
    numbers = np.array([step.step for step in steps], dtype=float)
    return _chart(
        "batches",
        "Batch sizes over steps",
        caption,
        told,
        marks,
        lambda figure: _batches(figure, numbers, lines, others, marks),
    )


def _batches(
    figure: Figure, numbers: np.ndarray, lines: Sequence[Course], others: Sequence[Course], marks: StepMarks
) -> None:
    axes = figure.subplots()
    if others:
        every = np.array([course.sizes for course in others])
        points = sorted({at for course in others for at in change_points(course.sizes)})
        points = points if len(points) <= 4 * MOST_POINTS else points[:: math.ceil(len(points) / (4 * MOST_POINTS))]
        low, high = np.nan_to_num(every, nan=np.inf).min(axis=0), np.nan_to_num(every).max(axis=0)
        count = sum(len(course.devices) for course in others)
        axes.fill_between(
            numbers[points] - 0.5,
            np.minimum(low, high)[points],
            high[points],
            step="post",
            color=SERIES[7],
            alpha=0.35,
            linewidth=0,
            label=f"{count} others, smallest to largest",
        )
    for index, course in enumerate(lines):
        points = change_points(course.sizes)
        axes.step(
            [*(numbers[points] - 0.5), numbers[-1] + 0.5],
            [*course.sizes[points], course.sizes[-1]],
            where="post",
            color=SERIES[index % len(SERIES)],
            linestyle=LINE_STYLES[index % len(LINE_STYLES)],
            label=printable(course.label, 24),
        )
    _scale_batches(axes, [course.sizes for course in [*lines, *others]])
    axes.set_ylabel("records per step")
    _finish(figure, axes, numbers, marks)


def _scale_batches(axes: Axes, sizes: Sequence[np.ndarray]) -> None:
    """Batches of a host and of drives differ tenfold: a logarithmic axis shows both, and 0 at its foot."""
    known = np.concatenate([np.empty(0), *(each[np.isfinite(each)] for each in sizes)])
    positive = known[known > 0]
    largest = float(positive.max()) if positive.size else 1.0
    if positive.size and largest > 8 * positive.min():
        axes.set_yscale("symlog", linthresh=1, base=2)
        axes.set_ylim(0 if (known == 0).any() else positive.min() / 1.6, largest * 1.6)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(0, largest * 1.1)


def _rate_chart(steps: Sequence[StepRecord], marks: StepMarks, clock: str) -> Chart:
    share = share_of_possible(steps)
    told = f"{share:.1%} of what was possible" if share is not None else "what was possible is not known without tables"
    caption = (
        f"Records over seconds ({clock}), means of neighbouring steps in a long run. Possible: by the tables, "
        "scaled by the speeds observed, with no batch larger than at the beginning; compute alone, like the "
        "line below it. Whole step: with flash and link."
    )
    return _chart(
        "rates",
        "Records per second, achieved and possible",
        caption,
        told,
        marks,
        lambda figure: _rates(figure, steps, marks, clock),
    )


def _rates(figure: Figure, steps: Sequence[StepRecord], marks: StepMarks, clock: str) -> None:
    axes = figure.subplots()
    chunks = _chunks(steps)
    x = np.array([(chunk[0].step + chunk[-1].step) / 2 for chunk in chunks])
    lines = {
        "possible, compute alone": [_possible(chunk) for chunk in chunks],
        "achieved, compute alone": [_over(chunk, lambda step: step.slowest_seconds) for chunk in chunks],
        "achieved, whole step": [_over(chunk, lambda step: step.array_seconds) for chunk in chunks],
    }
    for index, (name, values) in enumerate(lines.items()):
        if any(map(math.isfinite, values)):
            axes.plot(x, values, color=SERIES[index], linestyle=LINE_STYLES[index], label=name)
    known = [value for values in lines.values() for value in values if math.isfinite(value)]
    axes.set_ylim(0, max(known, default=1.0) * 1.08 or 1.0)
    axes.set_ylabel(f"records / s ({clock})")
    _finish(figure, axes, np.array([steps[0].step, steps[-1].step], dtype=float), marks)


def _imbalance_chart(steps: Sequence[StepRecord], marks: StepMarks, clock: str) -> Chart:
    told = f"mean {mean_imbalance(steps):.1%}, largest {max(step.imbalance for step in steps):.1%}"
    caption = (
        f"(max - min) / max of the devices' compute seconds ({clock}) in a step: the share of the step that the "
        "fastest device waits."
    )
    return _chart(
        "imbalance", "Imbalance of steps", caption, told, marks, lambda figure: _imbalance(figure, steps, marks)
    )


def _imbalance(figure: Figure, steps: Sequence[StepRecord], marks: StepMarks) -> None:
    axes = figure.subplots()
    chunks = _chunks(steps)
    x = [(chunk[0].step + chunk[-1].step) / 2 for chunk in chunks]
    means = [100 * mean_imbalance(chunk) for chunk in chunks]
    worst = [100 * max(step.imbalance for step in chunk) for chunk in chunks]
    if len(chunks) < len(steps):
        axes.fill_between(x, means, worst, color=SERIES[0], alpha=0.25, linewidth=0, label="largest")
    axes.plot(x, means, color=SERIES[0], label="mean" if len(chunks) < len(steps) else "imbalance")
    axes.set_ylim(0, max(1.0, max(worst) * 1.1))
    axes.set_ylabel("% of the slowest")
    _finish(figure, axes, np.array([steps[0].step, steps[-1].step], dtype=float), marks)


def _finish(figure: Figure, axes: Axes, numbers: np.ndarray, marks: StepMarks) -> None:
    marks.paint(axes)
    axes.set_xlim(numbers[0] - 0.5, numbers[-1] + 0.5)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    legend(figure, axes, 2 if figure.get_figwidth() * 72 <= NARROW else 5)


def _chunks(steps: Sequence[StepRecord]) -> list[Sequence[StepRecord]]:
    size = math.ceil(len(steps) / MOST_POINTS)
    return [steps[at : at + size] for at in range(0, len(steps), size)]


def _over(chunk: Sequence[StepRecord], seconds: Callable[[StepRecord], float]) -> float:
    total = math.fsum(map(seconds, chunk))
    return sum(step.samples for step in chunk) / total if total else math.nan


def _possible(chunk: Sequence[StepRecord]) -> float:
    """Return the mean over the compute seconds of the steps that know it."""
    known = [step for step in chunk if step.possible_records_per_second > 0]
    weight = math.fsum(step.slowest_seconds for step in known)
    total = math.fsum(step.possible_records_per_second * step.slowest_seconds for step in known)
    return total / weight if weight else math.nan
