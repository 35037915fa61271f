"""Fuzzing of files, frames and messages: none may end in other errors than csd-emu's, take long, or take memory."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, temporary_folder
from csd_lab.bench.security.fuzz_files import file_targets
from csd_lab.bench.security.fuzz_loop import Crash, FuzzTarget, Tally, fuzz_target, run_case
from csd_lab.bench.security.fuzz_wire import wire_targets
from firmware_agent.common.errors import ConfigurationError

CASES, QUICK_CASES = 200_000, 12_000
# So long `quick` may take, whatever the machine.
_QUICK_SECONDS = 240.0
# Of all cases, if there is atheris.
_ATHERIS_SHARE = 0.25
# For one target.
_ATHERIS_SECONDS = 600
_FOLDER = "fuzz"


def bench_fuzz(bench: Bench, quick: bool = False, cases: int | None = None, replay: Path | None = None) -> BenchReport:
    """Fuzzing of files, frames and messages: none may end in other errors than csd-emu's, take long, or take memory.

    Feed mutated cases to everything that reads what somebody else wrote.

    Figures: `cases`; `crashes`, of different kinds: whatever is no `CsdError`; `worst_seconds` of CPU that one case
    took; `worst_bytes` that some hundred cases together had at most beyond what was held before. A crash is saved below
    ``fuzz`` in the state's folder; `replay` runs such a file again.

    Args:
        bench: whose seed decides all cases.
        quick: few cases, at most four minutes.
        cases: how many, in place of the usual number.
        replay: a saved case; only this one is run.

    Raises:
        ConfigurationError: there is no such case.
    """
    with temporary_folder() as folder:
        targets = [*wire_targets(folder), *file_targets(folder)]
        if replay is not None:
            return _report(bench, _replay(targets, replay))
        wanted = cases or (QUICK_CASES if quick else CASES)
        until = time.monotonic() + _QUICK_SECONDS if quick else float("inf")
        tallies = _campaign(targets, wanted, until, bench, guided=not quick)
    for tally in tallies.values():
        for crash in tally.crashes:
            _save(bench.paths.state / _FOLDER, crash)
    return _report(bench, tallies)


def _campaign(targets: list[FuzzTarget], wanted: int, until: float, bench: Bench, guided: bool) -> dict[str, Tally]:
    """Return what came of each target; each gets its share of the cases and of the time that is left."""
    shares = sum(target.share for target in targets)
    explored = guided and _find_atheris() is not None
    own = 1.0 - _ATHERIS_SHARE * explored
    tallies: dict[str, Tally] = {}
    for place, target in enumerate(targets):
        count = max(1, round(wanted * target.share / shares))
        bench.progress.stage(f"{target.name}: {count} cases")
        left = (until - time.monotonic()) / (len(targets) - place)
        tallies[target.name] = fuzz_target(target, max(1, round(count * own)), bench.seed, time.monotonic() + left)
        if explored:
            _explore(target.name, round(count * _ATHERIS_SHARE) + 1, bench.seed, tallies[target.name])
    bench.progress.stage("")
    return tallies


def _find_atheris() -> str | None:
    """Return where atheris is; None if it is not installed."""
    spec = importlib.util.find_spec("atheris")
    return None if spec is None else spec.origin


def _explore(name: str, cases: int, seed: int, tally: Tally) -> None:
    """Have libFuzzer run `cases` cases of the target `name` in a process of its own, and add what came to `tally`."""
    with temporary_folder() as folder:
        command = [sys.executable, "-m", "csd_lab.bench.security.fuzz_atheris", name]
        command += [str(cases), str(seed), str(folder)]
        done = subprocess.run(command, capture_output=True, timeout=_ATHERIS_SECONDS, check=False)
        tally.cases += sum(path.stat().st_size for path in folder.glob("count"))
        known = {crash.what.partition("\n")[0] for crash in tally.crashes}
        for path in sorted(folder.glob("crash-*")):
            what = path.with_name(path.name.replace("crash", "what")).read_text(encoding="utf-8")
            if (kind := what.partition("\n")[0]) not in known:
                known.add(kind)
                tally.crashes.append(Crash(name, seed, int(path.name.partition("-")[2]), what, path.read_bytes()))
        if done.returncode not in (0,) and not list(folder.glob("count")):
            tally.crashes.append(Crash(name, seed, 0, f"Ended: {done.stderr[-500:].decode(errors='replace')}", b""))


def _replay(targets: list[FuzzTarget], path: Path) -> dict[str, Tally]:
    name = path.name.partition("-")[0].replace("_", " ")
    target = next((each for each in targets if _file_name(each.name) == path.name.partition("-")[0]), None)
    if target is None or not path.is_file():
        raise ConfigurationError(f"--replay {path}: no saved case of a target {name!r}; give one that bench fuzz saved")
    content = path.read_bytes()
    seconds, what, refused = run_case(target.call, content)
    crashes = [Crash(target.name, 0, 0, what, content)] if what else []
    return {target.name: Tally(1, int(refused), seconds, content, crashes=crashes)}


def _save(folder: Path, crash: Crash) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{_file_name(crash.target)}-{crash.seed}-{crash.case}").write_bytes(crash.content)


def _file_name(target: str) -> str:
    return "".join(each if each.isalnum() or each == "." else "_" for each in target)


def _report(bench: Bench, tallies: dict[str, Tally]) -> BenchReport:
    crashes = [crash for tally in tallies.values() for crash in tally.crashes]
    figures = {
        "cases": float(sum(tally.cases for tally in tallies.values())),
        "crashes": float(len(crashes)),
        "worst_seconds": max(tally.worst_seconds for tally in tallies.values()),
        "worst_bytes": float(max(tally.worst_bytes for tally in tallies.values())),
    }
    return bench.report("wall", figures, {name: _sample(tally) for name, tally in tallies.items()}, "native")


def _sample(tally: Tally) -> dict[str, Any]:
    crashes = [
        {"file": _file_name(crash.target), "seed": crash.seed, "case": crash.case, "what": crash.what}
        for crash in tally.crashes
    ]
    return {
        "cases": tally.cases,
        "refused": tally.refused,
        "worst_seconds": tally.worst_seconds,
        "worst_case": tally.worst_case[:200].hex(),
        "worst_bytes": tally.worst_bytes,
        "lines": tally.lines,
        "crashes": crashes,
    }
