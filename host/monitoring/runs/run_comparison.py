"""Comparison of runs: figures side by side, with differences and whether these exceed the spread of seeds. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from scipy.special import stdtrit

from firmware_agent.common.errors import ConfigurationError
from host.core.summary import Summary, name_clock
from host.monitoring.report.load_run import RunData

NO_DIFFERENCE, HIGHER, LOWER = "no difference", "higher", "lower"
SPREAD_UNKNOWN, OTHER_CLOCK, NO_FIGURE = "spread unknown", "different clocks", "no figure"
CONFIDENCE = 0.95
# Between two runs of one job these say nothing.
_UNCOMPARED = ("seed", "name", "track")


class FigureColumn(msgspec.Struct, frozen=True):
    """A figure of runs that differ in their seeds alone.

    Attributes:
        mean: over the runs that have it; None if none has.
        deviation: sample standard deviation; None of fewer than two runs.
        runs: how many have it, of different seeds.
        difference: of the mean from the first column's; None in the first.
        verdict: what is to be made of the difference: ``no difference`` within the spread of seeds, ``higher``,
            ``lower``, or why that cannot be said; empty in the first column.
    """

    mean: float | None
    deviation: float | None
    runs: int
    difference: float | None = None
    verdict: str = ""


class FigureComparison(msgspec.Struct, frozen=True):
    """One figure of all groups of runs.

    Attributes:
        figure: its name, as in ``summary.json``.
        clock: that its seconds are on, of all groups; empty if it has none.
        columns: one a group.
    """

    figure: str
    clock: str
    columns: list[FigureColumn]


class RunComparison(msgspec.Struct, frozen=True):
    """Groups of runs beside each other.

    Attributes:
        names: of the groups.
        directories: the run directories of each.
        figures: what they came to.
        configuration: key of job or array -> its value in each group, where these differ.
        confidence: of the verdicts.
    """

    names: list[str]
    directories: list[list[str]]
    figures: list[FigureComparison]
    configuration: dict[str, list[Any]]
    confidence: float = CONFIDENCE


FIGURES: Mapping[str, Callable[[Summary], float | None]] = {
    "accuracy": lambda summary: summary.accuracy,
    "rounds": lambda summary: float(summary.rounds),
    "records_per_device_second": lambda summary: summary.records_per_device_second,
    "records_per_array_second": lambda summary: summary.records_per_array_second,
    "array_seconds": lambda summary: summary.array_seconds,
    "joules_per_record": lambda summary: summary.joules_per_record,
    "energy_joules": lambda summary: summary.energy_joules,
    "host_link_bytes_per_record": lambda summary: summary.host_link_bytes_per_record,
}
# Those that no clock is needed for.
_UNTIMED = ("accuracy", "rounds", "host_link_bytes_per_record")


def compare_runs(groups: Mapping[str, Sequence[RunData]]) -> RunComparison:
    """Return the comparison of `groups` of runs, by name; the runs of one differ in their seeds alone.

    Raises:
        ConfigurationError: there are fewer than two, or runs of one group differ in more than their seeds.
    """
    if len(groups) < 2 or not all(groups.values()):
        raise ConfigurationError("a comparison needs two runs or groups of runs; name two")
    settings = {name: [_settings(run) for run in runs] for name, runs in groups.items()}
    for name, each in settings.items():
        if other := [key for settings in each[1:] for key in _different([each[0], settings])]:
            raise ConfigurationError(
                f"{name}: its runs differ in {', '.join(sorted(set(other)))}, not in their seeds alone; name their "
                "directories one by one"
            )
    first = [each[0] for each in settings.values()]
    return RunComparison(
        names=list(groups),
        directories=[[str(run.path) for run in runs] for runs in groups.values()],
        figures=[_compare(name, list(groups.values())) for name in FIGURES],
        configuration={key: [each.get(key) for each in first] for key in _different(first)},
    )


def _compare(name: str, groups: Sequence[Sequence[RunData]]) -> FigureComparison:
    # Runs of one seed say nothing of the spread: of several the last one counts.
    summaries = [
        list({run.job.get("seed"): run.summary for run in runs if run.summary is not None and run.rounds}.values())
        for runs in groups
    ]
    values = [[value for each in group if (value := FIGURES[name](each)) is not None] for group in summaries]
    clocks = [
        "+".join(sorted({name_clock(each.clock, each.core_model) for each in group})) if name not in _UNTIMED else ""
        for group in summaries
    ]
    columns = [
        _column(own, values[0], number > 0, clocks[number] == clocks[0]) for number, own in enumerate(values)
    ]
    return FigureComparison(name, " / ".join(dict.fromkeys(filter(None, clocks))), columns)


def _column(values: Sequence[float], first: Sequence[float], compared: bool, same_clock: bool) -> FigureColumn:
    mean = statistics.fmean(values) if values else None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    if not compared:
        return FigureColumn(mean, deviation, len(values))
    if mean is None or not first:
        return FigureColumn(mean, deviation, len(values), None, NO_FIGURE)
    verdict = judge(first, values) if same_clock else OTHER_CLOCK
    return FigureColumn(mean, deviation, len(values), mean - statistics.fmean(first), verdict)


def judge(first: Sequence[float], second: Sequence[float]) -> str:
    """Return what is to be made of the difference of two groups' means: Welch's t-test at `CONFIDENCE`.

    Where one group is a single run, it is taken to vary as the other does.
    """
    if (difference := statistics.fmean(second) - statistics.fmean(first)) == 0:
        return NO_DIFFERENCE
    spread = [statistics.variance(each) if len(each) > 1 else None for each in (first, second)]
    if not (known := [each for each in spread if each is not None]):
        return SPREAD_UNKNOWN
    counts = [len(first), len(second)]
    shares = [(known[0] if own is None else own) / count for own, count in zip(spread, counts, strict=True)]
    error = math.sqrt(math.fsum(shares))
    measured = [(share, count - 1) for share, count in zip(shares, counts, strict=True) if count > 1]
    least = math.fsum(share**2 / freedom for share, freedom in measured)
    freedom = math.fsum(share for share, _ in measured) ** 2 / least if least else max(n for _, n in measured)
    if abs(difference) <= error * float(stdtrit(freedom, (1 + CONFIDENCE) / 2)):
        return NO_DIFFERENCE
    return HIGHER if difference > 0 else LOWER


def _settings(run: RunData) -> dict[str, Any]:
    """Return what a run was configured with, key -> value, without what names it."""
    job = {key: value for key, value in run.job.items() if key not in _UNCOMPARED}
    array = {key: value for key, value in run.array.items() if key not in ("name", "host")}
    return dict(flatten({**job, "array": array, "sources": run.versions.get("sources") or {}}))


def flatten(section: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return the keys of nested sections, with dots between a section and its key, and their values."""
    flat: list[tuple[str, Any]] = []
    for key, value in section.items():
        flat += flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return flat


def _different(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if any(each.get(key) != settings[0].get(key) for each in settings[1:])]
