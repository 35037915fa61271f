"""`csd-emu ci run`: run a job, compare its figures with a baseline, say it to people and to CI.

The figures are medians over the run's rounds, so that one disturbance moves none of them: a virtual drive now and then
does work of its own in the middle of a step, and in a short run such a moment can take several per cent of all device
time, more often so on a crowded machine. What makes every round slower, as a slower agent or net does, moves the median
by all of it; what takes part in fewer than half of the rounds does not move it.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.image import ImageStore
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import ConfigurationError, DeviceError
from host.app.gate.gate_baseline import (
    GateBaseline,
    check_clock,
    check_comparable,
    content_sha256,
    list_differences,
    make_baseline,
    read_baseline,
    write_baseline,
)
from host.app.gate.gate_checks import (
    KINDS,
    ExpectedFigure,
    GateReport,
    Verdict,
    check_wall,
    describe_cancelled,
    describe_sampling,
    expect,
    judge,
    list_cases,
)
from host.app.gate.junit import now, render, saying_errors, write_junit
from host.app.prepare import RunRequest
from host.app.run_job import NewRun, run_job
from host.core.failures import failed_run
from host.core.owned_files import check_writable
from host.core.readers.source_names import is_path
from host.core.records import EventKind, EventRecord, RoundRecord
from host.core.summary import Summary
from host.monitoring.report.load_run import load_run

# From so many rounds on a single disturbed one leaves the median among the undisturbed.
ENOUGH_ROUNDS = 5


def measure(rounds: Sequence[RoundRecord]) -> dict[str, float]:
    """Return figure -> value, by the names of `host.app.gate.gate_checks.KINDS`; 0 of what was not measured.

    Rounds without records say nothing of rates; `list_failures` names them.
    """
    trained = [record for record in rounds if record.records_per_device_second > 0]
    return {
        "accuracy": rounds[-1].accuracy if rounds else 0.0,
        "records_per_device_second": statistics.median([each.records_per_device_second for each in trained] or [0.0]),
        "joules_per_record": statistics.median([each.total_joules / each.samples for each in trained] or [0.0]),
    }


def list_losses(events: Sequence[EventRecord]) -> list[str]:
    """Return which drives were lost in a run: its figures are then those of fewer drives."""
    return [f"{event.device} was lost: {event.detail}" for event in events if event.what is EventKind.LOST]


def list_failures(rounds: Sequence[RoundRecord], losses: Sequence[str]) -> list[str]:
    """Return why the figures are those of less than was asked for, however good they are.

    Args:
        rounds: of the run.
        losses: which drives were lost (see `list_losses`); empty if that is meant.
    """
    idle = [str(record.round) for record in rounds if record.samples == 0]
    failures = {
        "the run has no round": not rounds,
        f"{len(idle)} of {len(rounds)} rounds trained on nothing in time: {', '.join(idle)}": idle,
    }
    lost = [f"{loss}; the figures are those of fewer drives" for loss in losses]
    return lost + [failure for failure, holds in failures.items() if holds]


def list_doubts(rounds: Sequence[RoundRecord]) -> list[str]:
    """Return what makes the figures less sure than they could be."""
    if len(rounds) >= ENOUGH_ROUNDS:
        return []
    return [
        f"{len(rounds)} rounds: the figures are medians over rounds, and with fewer than {ENOUGH_ROUNDS} one "
        "disturbance in a drive can move them; for a gate give the job more, shorter rounds"
    ]


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
        allow_losses: a drive that is lost fails nothing: the job is about that.
    """

    baseline: Path
    junit: Path | None = None
    bands: Mapping[str, float | None] = field(default_factory=dict)
    write: bool = False
    replace: bool = False
    allow_losses: bool = False


def run_gate(
    request: RunRequest, gate: Gate, paths: Paths, runs: Path, progress: Progress, quiet: bool = True
) -> GateReport:
    """Run the job and compare, or write the baseline; the JUnit file says how it ended, whatever happened.

    Raises:
        ConfigurationError: the baseline is missing, damaged or of something else; if that can be known beforehand,
            nothing was started.
        DeviceError: of so little no baseline can be made: drives were lost, or rounds trained on nothing.
        UserCodeFailed: code of the user's failed, and a baseline was to be made.
        CsdError: the run failed.
    """
    with saying_errors(gate.junit, _suite(request), _properties(request)):
        before = _read_before(request, gate)
        summary = run_job(request, paths, NewRun(runs), progress, quiet)
        report = _judge(request, gate, before, summary, paths)
    if gate.junit is not None:
        facts = _properties(request) | {"clock": report.summary.clock, "baseline": report.baseline}
        write_junit(gate.junit, render(_suite(request), list_cases(report), facts, now()))
    return report


def _read_before(request: RunRequest, gate: Gate) -> GateBaseline | None:
    """Return the baseline to compare with or, if one is to be replaced, the one whose bands are kept."""
    wall = request.config.engine == "native" and request.wall
    if not gate.write:
        baseline = read_baseline(gate.baseline)
        check_comparable(gate.baseline, baseline, request.portable_job, request.config)
        _with_bands(baseline.figures, gate)  # what it refuses is said now
        if wall:
            check_clock(gate.baseline, baseline, "wall")
        return baseline
    if gate.baseline.exists() and not gate.replace:
        raise ConfigurationError(f"{gate.baseline}: is there already; replace it with --update-baseline")
    check_writable(gate.baseline, "give another", "the baseline")
    before = None
    with contextlib.suppress(ConfigurationError):  # a damaged one is what a new one is made for
        before = read_baseline(gate.baseline)
    bands = _bands(gate, before)
    if all(name in bands and bands[name] is None for name in KINDS):
        raise _nothing_left()
    if wall:
        for name in KINDS:
            check_wall(name, "wall", bands)
    return before


def _judge(request: RunRequest, gate: Gate, before: GateBaseline | None, summary: Summary, paths: Paths) -> GateReport:
    directory = Path(summary.run_directory)
    run = load_run(directory)
    rounds, losses = run.rounds, list_losses(run.events)
    if summary.failures and not gate.write:
        told = [str(failed_run(summary.failures, summary.run_directory))]
        return GateReport(False, str(gate.baseline), False, [], told, [], list(request.notes), summary)
    if summary.failures:
        raise failed_run(summary.failures, summary.run_directory)
    measured, information = measure(rounds), describe_run(request, run.versions, paths)
    failures = list_failures(rounds, [] if gate.allow_losses else losses)
    failures += [summary.sampling.missing] if summary.sampling is not None and summary.sampling.not_counted else []
    notes = [*request.notes, *losses, *list_doubts(rounds)]
    changed: list[str] = []
    if before is not None and not (gate.write and before.clock != summary.clock):
        changed = list_differences(before.information, information)
    if gate.write:
        if failures:
            raise DeviceError(
                f"{gate.baseline}: not written, for it would hold less than was asked for: {'; '.join(failures)}; "
                f"run it again; lost drives that are meant take --allow-losses; run directory: {directory}"
            )
        figures = expect(measured, summary.clock, _bands(gate, before), summary.bands)
        baseline = make_baseline(request.portable_job, request.config, summary.clock, figures, information)
        write_baseline(gate.baseline, baseline)
        notes += describe_sampling(figures, summary.sampling)
        same = [judge(name, figure, figure.value) for name, figure in figures.items()]
        return GateReport(summary.reached, str(gate.baseline), True, same, [], changed, notes, summary)
    if before is None:
        raise ConfigurationError(f"{gate.baseline}: there is no baseline")
    check_clock(gate.baseline, before, summary.clock)
    figures = _with_bands(before.figures, gate)
    compared = [judge(name, figure, measured[name]) for name, figure in figures.items()]
    notes += [*describe_sampling(figures, summary.sampling), *describe_cancelled(before.figures, summary.bands)]
    passed = summary.reached and not failures and all(each.verdict is Verdict.WITHIN for each in compared)
    return GateReport(passed, str(gate.baseline), False, compared, failures, changed, notes, summary)


def _bands(gate: Gate, before: GateBaseline | None) -> dict[str, float | None]:
    """Return the bands of a new baseline: as asked for, else as in the one that it replaces."""
    figures = {} if before is None else before.figures
    kept = {} if before is None else {name: figures[name].band if name in figures else None for name in KINDS}
    return kept | dict(gate.bands)


def _with_bands(figures: Mapping[str, ExpectedFigure], gate: Gate) -> dict[str, ExpectedFigure]:
    if missing := [name for name, band in gate.bands.items() if band is not None and name not in figures]:
        raise ConfigurationError(
            f"--band: {gate.baseline} has no {', '.join(missing)}; make it anew with --update-baseline"
        )
    kept = {
        name: msgspec.structs.replace(figure, band=band)
        for name, figure in figures.items()
        if (band := gate.bands.get(name, figure.band)) is not None
    }
    if not kept:
        raise _nothing_left()
    return kept


def _nothing_left() -> ConfigurationError:
    return ConfigurationError("--band: every figure is left out, so nothing would be compared; give one of them a band")


def describe_run(request: RunRequest, versions: Mapping[str, Any], paths: Paths) -> dict[str, str]:
    """Return what may differ between comparable runs, and explains differences of figures."""
    counted = request.config.engine == "qemu" or request.config.sampled
    return {
        "machine": platform.machine(),
        "image": ImageStore(paths.images, packages=request.config.image.packages).describe().hash
        if counted
        else "none",
        "model source sha256": _digest({"source": request.spec.source}),
        **{f"{word} code sha256": code[:_HASH_CHARACTERS] for word, code in request.plugins.facts},
        **_data_facts(request),
        "profiles sha256": _digest(request.profiles),
        "calibration sha256": _digest(request.models),
        **{f"host {name}": str(value) for name, value in versions["host"].items() if name != "machine"},
        **_join_facts(versions["devices"]),
    }


def _data_facts(request: RunRequest) -> dict[str, str]:
    """Return the hash of data that lie in files: these may change, and their path says nothing of it."""
    if not is_path(request.job.data.source):
        return {}
    digest = hashlib.sha256()
    for array in request.dataset.fields.values():
        digest.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
    return {"data sha256": digest.hexdigest()[:_HASH_CHARACTERS]}


def _join_facts(devices: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the drives' facts; where drives differ, all their values."""
    names = sorted({name for facts in devices.values() for name in facts} - _PASSING_FACTS)
    values = {name: sorted({facts[name] for facts in devices.values() if name in facts}) for name in names}
    return {f"drive {name}": ", ".join(values[name]) for name in names}


def _digest(content: Mapping[str, Any]) -> str:
    return content_sha256(content)[:_HASH_CHARACTERS]


def _suite(request: RunRequest) -> str:
    return f"csd-emu.{request.config.name}"


def _properties(request: RunRequest) -> dict[str, str]:
    config, job = request.config, request.job
    return {"array": config.name, "engine": config.engine, "model": job.model, "seed": str(job.seed)}
