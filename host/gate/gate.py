"""`csd-emu ci run`: run a job, compare its figures with a baseline, say it to people and to CI."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.image import ImageStore
from csd_emu.paths import Paths
from csd_emu.progress import Progress
from firmware_agent.errors import ConfigurationError, CsdError
from host.gate.baseline import (
    Baseline,
    check_clock,
    check_comparable,
    content_sha256,
    list_differences,
    make_baseline,
    read_baseline,
    write_baseline,
)
from host.gate.figures import KINDS, Compared, Expected, Verdict, check_wall, expect, judge
from host.gate.junit import Case, render, write_junit
from host.gate.measure import list_doubts, measure, read_rounds
from host.gate.report import GateReport, list_cases
from host.run import run_job
from host.run_directory import RECORDS_FILE, VERSIONS_FILE
from host.run_request import RunRequest
from host.summary import Summary

_HASH_CHARACTERS = 16
# Facts that are each start's own.
_PASSING_FACTS = {"first_random_sha256"}


@dataclass(frozen=True)
class Gate:
    """What to compare with, and where to say it.

    Attributes:
        baseline: the file.
        junit: the JUnit file to write, if any.
        bands: figure -> band as asked for, in place of the baseline's; None leaves the figure out.
        write: make the baseline of this run, in place of comparing.
        replace: and it may be there already.
    """

    baseline: Path
    junit: Path | None = None
    bands: Mapping[str, float | None] = field(default_factory=dict)
    write: bool = False
    replace: bool = False


def run_gate(
    request: RunRequest, gate: Gate, paths: Paths, runs: Path, progress: Progress, quiet: bool = True
) -> GateReport:
    """Run the job and compare, or write the baseline; the JUnit file says how it ended, whatever happened.

    Raises:
        ConfigurationError: the baseline is missing, damaged or of something else; if that can be known beforehand,
            nothing was started.
        CsdError: the run failed.
    """
    with _junit_of_errors(request, gate):
        before = _read_before(request, gate)
        summary = run_job(request, paths, runs, progress, quiet)
        report = _judge(request, gate, before, summary, paths)
    if gate.junit is not None:
        _write_junit(gate.junit, request, list_cases(report), report)
    return report


def _read_before(request: RunRequest, gate: Gate) -> Baseline | None:
    """Return the baseline to compare with or, if one is to be replaced, the one whose bands are kept."""
    wall = request.config.engine == "native" and not request.models
    if not gate.write:
        baseline = read_baseline(gate.baseline)
        check_comparable(gate.baseline, baseline, request.portable_job, request.config)
        if wall:
            check_clock(gate.baseline, baseline, "wall")
        return baseline
    if gate.baseline.exists() and not gate.replace:
        raise ConfigurationError(f"{gate.baseline}: is there already; replace it with --update-baseline")
    before = None
    with contextlib.suppress(ConfigurationError):  # a damaged one is what a new one is made for
        before = read_baseline(gate.baseline)
    if wall:
        for name in KINDS:
            check_wall(name, "wall", _bands(gate, before))
    return before


def _judge(request: RunRequest, gate: Gate, before: Baseline | None, summary: Summary, paths: Paths) -> GateReport:
    directory = Path(summary.run_directory)
    rounds, losses = read_rounds(directory / RECORDS_FILE)
    measured, information = measure(rounds), describe_run(request, directory, paths)
    notes = [*request.notes, *losses, *list_doubts(rounds)]
    changed: list[str] = []
    if before is not None and not (gate.write and before.clock != summary.clock):
        changed = list_differences(before.information, information)
    if gate.write:
        figures = expect(measured, summary.clock, _bands(gate, before))
        baseline = make_baseline(request.portable_job, request.config, summary.clock, figures, information)
        write_baseline(gate.baseline, baseline)
        same = [_unchanged(name, figure) for name, figure in figures.items()]
        return GateReport(summary.reached, str(gate.baseline), True, same, changed, notes, summary)
    if before is None:
        raise ConfigurationError(f"{gate.baseline}: there is no baseline")
    check_clock(gate.baseline, before, summary.clock)
    compared = [judge(name, figure, measured[name]) for name, figure in _with_bands(before.figures, gate).items()]
    passed = summary.reached and all(each.verdict is Verdict.WITHIN for each in compared)
    return GateReport(passed, str(gate.baseline), False, compared, changed, notes, summary)


def _bands(gate: Gate, before: Baseline | None) -> dict[str, float | None]:
    """Return the bands of a new baseline: as asked for, else as in the one that it replaces."""
    kept: dict[str, float | None] = {}
    if before is not None:
        kept = {name: before.figures[name].band if name in before.figures else None for name in KINDS}
    return kept | dict(gate.bands)


def _with_bands(figures: Mapping[str, Expected], gate: Gate) -> dict[str, Expected]:
    missing = [name for name, band in gate.bands.items() if band is not None and name not in figures]
    if missing:
        raise ConfigurationError(
            f"--band: {gate.baseline} has no {', '.join(missing)}; make it anew with --update-baseline"
        )
    kept = {}
    for name, figure in figures.items():
        band = gate.bands.get(name, figure.band)
        if band is not None:
            kept[name] = msgspec.structs.replace(figure, band=band)
    return kept


def _unchanged(name: str, figure: Expected) -> Compared:
    return judge(name, figure, figure.value)


def describe_run(request: RunRequest, directory: Path, paths: Paths) -> dict[str, str]:
    """Return what may differ between comparable runs, and explains differences of figures."""
    versions = msgspec.json.decode((directory / VERSIONS_FILE).read_bytes())
    return {
        "machine": platform.machine(),
        "image": ImageStore(paths.images).describe().hash if request.config.engine == "qemu" else "none",
        "model source sha256": _digest({"source": request.spec.source}),
        "profiles sha256": _digest(request.profiles),
        "calibration sha256": _digest(request.models),
        **{f"host {name}": str(value) for name, value in versions["host"].items() if name != "machine"},
        **_join_facts(versions["devices"]),
    }


def _join_facts(devices: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the drives' facts; where drives differ, all their values."""
    names = sorted({name for facts in devices.values() for name in facts} - _PASSING_FACTS)
    values = {name: sorted({facts[name] for facts in devices.values() if name in facts}) for name in names}
    return {f"drive {name}": ", ".join(values[name]) for name in names}


def _digest(content: Mapping[str, Any]) -> str:
    return content_sha256(content)[:_HASH_CHARACTERS]


@contextlib.contextmanager
def _junit_of_errors(request: RunRequest, gate: Gate) -> Iterator[None]:
    """Say an error of ours in the JUnit file, too: whoever reads that alone must not take its absence for success."""
    try:
        yield
    except CsdError as error:
        if gate.junit is not None:
            _write_junit(gate.junit, request, [Case("run", error=f"{type(error).__name__}: {error}")], None)
        raise


def _write_junit(path: Path, request: RunRequest, cases: list[Case], report: GateReport | None) -> None:
    config, job = request.config, request.job
    properties = {"array": config.name, "engine": config.engine, "model": job.model, "seed": str(job.seed)}
    if report is not None:
        properties |= {"clock": report.summary.clock, "baseline": report.baseline}
    timestamp = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    write_junit(path, render(f"csd-emu.{config.name}", cases, properties, timestamp))
