"""Figures, bands and verdicts: numbers in, verdicts out; and the report that `csd-emu ci run --json` prints of them.

A band is a share of the expected value, on both sides: what got better by more than its band is as much a surprise as
what got worse, and leaves a baseline behind that would hide the next loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import msgspec

from csd_emu.util.renamed import renamed_figure
from firmware_agent.common.errors import ConfigurationError
from host.app.gate.junit import JUnitCase
from host.core.figure_bands import Band, cancelled_share, ratio_band
from host.core.sampling.sampling_record import SamplingRecord
from host.core.summary import Summary, format_accuracy

WALL = "wall"
NO_CLOCK = "none"
DEFAULT_BAND = 0.01
_LARGEST_BAND = 10.0
# What a figure's band is called on the command line if the figure shall not be compared at all.
LEFT_OUT = "none"


@dataclass(frozen=True)
class FigureKind:
    """What is known of a figure beforehand: its unit, whether more is better, and whether seconds are in it."""

    unit: str
    more_is_better: bool
    timed: bool


KINDS: Mapping[str, FigureKind] = {
    "accuracy": FigureKind("share", more_is_better=True, timed=False),
    "records_per_device_second": FigureKind("1/s", more_is_better=True, timed=True),
    "joules_per_record": FigureKind("J", more_is_better=False, timed=True),
}


class Verdict(StrEnum):
    """How a measured figure stands to its band."""

    WITHIN = "within"
    BETTER = "better"
    WORSE = "worse"
    UNUSABLE = "unusable"


class ExpectedFigure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A figure of a baseline.

    `band` is a share of `value`, `clock` what its seconds were measured with, `profiles_band` what the figure may be by
    the bands of the profiles' figures (`host.core.figure_bands`), None where that is not known.
    """

    value: float
    unit: str
    clock: str
    band: float
    profiles_band: Band | None = None


class Compared(msgspec.Struct, frozen=True):
    """A measured figure beside its baseline; `change` is measured / expected - 1, None where that says nothing."""

    figure: str
    unit: str
    clock: str
    expected: float
    measured: float | None
    change: float | None
    band: float
    verdict: Verdict


def judge(name: str, expected: ExpectedFigure, measured: float) -> Compared:
    """Compare one figure; the edges of the band belong to it.

    A measured figure that is no number, infinite, 0 or negative is unusable, which fails whatever the band.
    """
    usable = math.isfinite(measured) and measured > 0
    change = measured / expected.value - 1 if usable and expected.value else None
    if not usable:
        verdict = Verdict.UNUSABLE
    elif abs(measured - expected.value) <= expected.band * expected.value:
        verdict = Verdict.WITHIN
    else:
        verdict = Verdict.BETTER if (measured > expected.value) == KINDS[name].more_is_better else Verdict.WORSE
    value = measured if math.isfinite(measured) else None  # JSON has no other numbers
    return Compared(name, expected.unit, expected.clock, expected.value, value, change, expected.band, verdict)


def describe_cancelled(expected: Mapping[str, ExpectedFigure], measured: Mapping[str, Band]) -> list[str]:
    """Return, for people, how much of what the profiles' figures leave open cancels in the change of each figure.

    Args:
        expected: of the baseline.
        measured: the bands of the run's figures.
    """
    pairs = {name: (measured.get(name), figure.profiles_band) for name, figure in expected.items()}
    return [
        f"{name}: changes by {ratio_band(now, before).low - 1:+.2%} to {ratio_band(now, before).high - 1:+.2%} over "
        f"the profiles' bands, of which {cancelled_share(now, before):.1%} cancels"
        for name, (now, before) in pairs.items()
        if now is not None and before is not None and min(now.low, before.low) > 0
    ]


def describe_sampling(figures: Mapping[str, ExpectedFigure], sampling: SamplingRecord | None) -> list[str]:
    """Return, for people, which figures have a band that is no wider than what sampling leaves open."""
    return [
        f"{name}: its band, {format_tolerance(figure.band)}, is no wider than what sampled steps leave open, "
        f"{format_tolerance(sampling.error)} (95 %): a change within that says nothing; give it a wider one with "
        "--band, or count all steps: --clock auto on engine qemu"
        for name, figure in figures.items()
        if sampling is not None and KINDS[name].timed and figure.band <= sampling.error
    ]


def expect(
    measured: Mapping[str, float],
    clock: str,
    bands: Mapping[str, float | None],
    profiles_bands: Mapping[str, Band] = MappingProxyType({}),
) -> dict[str, ExpectedFigure]:
    """Return what a baseline holds of these figures.

    Args:
        measured: of the run, by the names in `KINDS`.
        clock: of its device seconds; one with ``wall`` in it depends on the machine.
        bands: asked for by the user; None leaves a figure out, and the others get `DEFAULT_BAND`.
        profiles_bands: what figures may be by the bands of the profiles' figures.

    Raises:
        ConfigurationError: a figure is no positive number, or depends on wall time and has no band of its own.
    """
    figures = {}
    for name, kind in KINDS.items():
        if (band := bands.get(name, DEFAULT_BAND)) is None:
            continue
        check_wall(name, clock, bands)
        if not math.isfinite(measured[name]) or measured[name] <= 0:
            raise ConfigurationError(
                f"{name} is {measured[name]}, which nothing can be compared with; train more rounds, or leave it out "
                f"with --band {name}={LEFT_OUT}"
            )
        figures[name] = ExpectedFigure(
            measured[name], kind.unit, clock if kind.timed else NO_CLOCK, band, profiles_bands.get(name)
        )
    if not figures:
        raise ConfigurationError("every figure was left out, so there is nothing to compare; give one of them a band")
    return figures


def check_wall(name: str, clock: str, bands: Mapping[str, float | None]) -> None:
    """Refuse a figure of wall time for which no band was asked: how much such a figure varies only its user knows.

    Raises:
        ConfigurationError: it is one.
    """
    if KINDS[name].timed and WALL in clock.split("+") and name not in bands:
        raise ConfigurationError(
            f"{name} would be measured in wall time (clock: {clock}), which depends on this machine and on what else "
            f"it does; use engine qemu, give it a band of its own such as --band {name}=30%, or leave it out with "
            f"--band {name}={LEFT_OUT}"
        )


def format_tolerance(band: float) -> str:
    """Return a band for people: ``±1 %``."""
    return f"±{100 * band:.3g} %"


def parse_bands(texts: Iterable[str]) -> dict[str, float | None]:
    """Return figure -> band of options such as ``accuracy=2%``, ``joules_per_record=0.02`` or ``accuracy=none``.

    Raises:
        ConfigurationError: one is none, names an unknown figure, or one that was named before.
    """
    bands: dict[str, float | None] = {}
    for text in texts:
        name, equals, share = (part.strip() for part in text.partition("="))
        if (name := renamed_figure(name, f"--band {text}")) not in KINDS or not equals:
            raise ConfigurationError(
                f"--band {text}: write FIGURE=SHARE, for example accuracy=2%; the figures are {', '.join(KINDS)}"
            )
        if name in bands:
            raise ConfigurationError(f"--band {text}: {name} has a band already; give one for each figure")
        bands[name] = None if share == LEFT_OUT else _parse_share(text, share)
    return bands


def _parse_share(text: str, share: str) -> float:
    try:
        value = float(share.removesuffix("%")) / (100 if share.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LARGEST_BAND:
        raise ConfigurationError(f"--band {text}: the share must be from 0 to {_LARGEST_BAND:.0%}, for example 2%")
    if value > 1 and not share.endswith("%"):
        raise ConfigurationError(f"--band {text}: {share} is {value:.0%}; say so with a %, or write {share}%")
    return value


REMEDIES = {
    Verdict.WORSE: "find what made it worse; if that is meant, make the baseline anew with --update-baseline",
    Verdict.BETTER: "make the baseline anew with --update-baseline, or the next loss of as much will not be seen",
    Verdict.UNUSABLE: "look at the run's report for what went wrong",
}


class GateReport(msgspec.Struct, frozen=True):
    """`csd-emu ci run`.

    Attributes:
        passed: every figure is within its band, nothing else failed, and the job's target, if any, was reached.
        baseline: the file that was compared with, or written.
        written: whether it was written, in which case nothing was compared.
        figures: one per figure of the baseline.
        failures: what else fails the run: lost drives, rounds that trained on nothing.
        changed: what is not as it was when the baseline was written; that alone fails nothing.
        notes: what must be known of this run.
        summary: of the run.
    """

    passed: bool
    baseline: str
    written: bool
    figures: list[Compared]
    failures: list[str]
    changed: list[str]
    notes: list[str]
    summary: Summary


def describe(compared: Compared) -> str:
    """Return one figure for people: what was expected, measured and allowed, and on which clock."""
    measured = "no number" if compared.measured is None else f"{compared.measured:.6g}"
    change = "" if compared.change is None else f", {compared.change:+.3%}"
    return (
        f"{compared.figure}: expected {compared.expected:.6g} {compared.unit} {format_tolerance(compared.band)}, "
        f"measured {measured}{change} (clock: {compared.clock})"
    )


def explain(compared: Compared, changed: list[str]) -> str:
    """Return why a figure fails, what has changed since the baseline, and what to do."""
    return f"{describe(compared)}: {compared.verdict}\n{list_changes(changed)}\n{REMEDIES[compared.verdict]}"


def list_changes(changed: list[str]) -> str:
    """Return what has changed since the baseline, in one line."""
    if not changed:
        return "nothing that is known has changed since the baseline"
    return f"changed since the baseline: {'; '.join(changed)}"


def list_cases(report: GateReport) -> list[JUnitCase]:
    """Return the test cases: that the job ran, each figure, and the job's target if it has one."""
    summary = report.summary
    notes = "\n".join([f"run directory: {summary.run_directory}", *report.notes])
    cases = [
        JUnitCase("run", summary.wall_seconds, notes, failure="\n".join(report.failures) or None),
        *(
            JUnitCase(
                each.figure,
                output=describe(each),
                failure=None if each.verdict is Verdict.WITHIN else explain(each, report.changed),
            )
            for each in report.figures
        ),
    ]
    if summary.target_accuracy is not None:
        reached = f"accuracy {format_accuracy(summary.accuracy)}, the job's target is {summary.target_accuracy:.4f}"
        cases.append(JUnitCase("target", output=reached, failure=None if summary.reached else f"{reached}: missed"))
    return cases
