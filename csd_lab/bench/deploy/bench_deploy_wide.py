"""Deployment to a hundred drives, ten of them broken: verbs keep to their jobs, and the rest is not disturbed."""

from __future__ import annotations

import hashlib
import random
import shlex
import tempfile
import time
from pathlib import Path

from csd_emu.engines.remote.inventory import load_inventory
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import report
from csd_lab.testkit.ssh_stub.stub_drive import StubDrive, StubFault
from csd_lab.testkit.ssh_stub.stub_servers import StubDrives
from firmware_agent.common.errors import DriveUnfit
from host.deploy.run_verb import Limits, run_verb
from host.deploy.verb_protocol import DriveSite, VerbOutcome, VerbResult
from host.deploy.verbs.probe import read_facts

DRIVES, JOBS = 100, 8
FILE_BYTES = 2**18
# A drive that says nothing is given up after so long; a visit may take so long on a busy machine.
CONNECT_SECONDS, VISIT_SECONDS = 20, 300.0
# What is wrong with the broken ones, and what the line about each has to say.
BROKEN = {
    StubFault.REFUSE: "refuses connections",
    StubFault.HANG: "did not answer within",
    StubFault.NONSENSE: "did not answer as an SSH server",
    StubFault.GARBLED: "sent what is no SSH",
    StubFault.WRONG_KEY: "is not the known one",
    StubFault.NO_LOGIN: "refused 1 key",
    StubFault.CUT: "broke; try again",
    StubFault.FULL: "no space left",
    StubFault.NO_SUDO: "has no root rights",
    StubFault.NO_SHELL: "has no POSIX shell",
}
BROKEN_DRIVES = [*BROKEN]


def run(
    paths: Paths,
    progress: Progress,
    seed: int,
    drives: int = DRIVES,
    jobs: int = JOBS,
    connect_seconds: int = CONNECT_SECONDS,
) -> BenchReport:
    """Visit stub drives on loopback, ten of them broken, each in its way.

    A visit is what an installation does: ask what the drive is, copy a file as root, compare its sha256. The figures
    are counted at the servers' side. `peak_connections`: most that were open at one time. `peak_within_jobs`: 1 if
    that is no more than `jobs`. `failed_isolated`: 1 if exactly the broken drives failed, each with a line that says
    why, and the whole file lies on each other one.
    """
    draw = random.Random(seed)
    names = [f"csd-{number:03d}" for number in range(drives)]
    broken = dict(zip(draw.sample(names, len(BROKEN_DRIVES)), BROKEN_DRIVES, strict=True))
    with tempfile.TemporaryDirectory(prefix="csd-emu-bench-") as place:
        folder = Path(place)
        file = folder / "file"
        file.write_bytes(draw.randbytes(FILE_BYTES))
        progress.stage(f"start {drives} SSH servers")
        stubs = StubDrives(
            folder, [StubDrive(name, broken.get(name, StubFault.NONE), FILE_BYTES // 2) for name in names]
        )
        inventory = load_inventory(stubs.write_inventory(connect_seconds))
        progress.stage(f"visit {drives} drives, {jobs} at a time")
        begin = time.monotonic()
        with stubs:
            board = _Count(progress, drives)
            outcomes = run_verb(inventory.list_drives(), _Visit(file).visit, Limits(jobs, VISIT_SECONDS), board)
        wall_seconds = time.monotonic() - begin
        right = [_is_right(outcome, broken, stubs, file) for outcome in outcomes]
    figures = {
        "peak_connections": float(stubs.peak_connections),
        "jobs": float(jobs),
        "peak_within_jobs": float(stubs.peak_connections <= jobs),
        "failed_isolated": float(all(right)),
        "wall_seconds": wall_seconds,
    }
    samples = {
        "drives": drives,
        "broken": {name: fault.value for name, fault in broken.items()},
        "failed": {one.drive: one.what for one in outcomes if one.result is not VerbResult.DONE},
        "visit_seconds": [one.facts["wall_seconds"] for one in outcomes],
    }
    return report("deploy_wide", "wall", seed, figures, samples, "none")


class _Visit:
    """The verb of the bench."""

    def __init__(self, file: Path) -> None:
        self._file, self._sum = file, hashlib.sha256(file.read_bytes()).hexdigest()

    def visit(self, site: DriveSite) -> VerbOutcome:
        """Ask, copy, compare."""
        read_facts(site.shell, site.drive, site.deadline)
        target = site.layout.incoming / self._file.name
        site.shell.check(f"mkdir -p {shlex.quote(str(target.parent))}", site.deadline, root=True)
        site.shell.copy(self._file, target, site.deadline, lambda done, whole: None, root=True)
        there = site.shell.check(f"sha256sum < {shlex.quote(str(target))}", site.deadline, root=True).split()[0]
        if there != self._sum:
            raise DriveUnfit(f"drive {site.drive.name}: the copy has the sum {there}, the file {self._sum}; copy anew")
        return VerbOutcome(site.drive.name, VerbResult.DONE, "copied")


class _Count:
    """A `host.deploy.run_verb.Board` that shows how many drives are done."""

    def __init__(self, progress: Progress, drives: int) -> None:
        self._progress, self._drives, self._done = progress, drives, 0

    def begin(self, drives: int) -> None:
        self._drives = drives

    def show(self, drive: str, what: str, share: float | None) -> None:
        return

    def finish(self, outcome: VerbOutcome) -> None:
        self._done += 1
        self._progress.advance(self._done / self._drives)


def _is_right(outcome: VerbOutcome, broken: dict[str, StubFault], stubs: StubDrives, file: Path) -> bool:
    """Return whether a drive ended as it had to."""
    copy = stubs.home(outcome.drive) / "csd-emu" / "incoming" / file.name
    fault = broken.get(outcome.drive)
    if fault is not None:
        return outcome.result is VerbResult.FAILED and BROKEN[fault] in outcome.what
    return outcome.result is VerbResult.DONE and copy.read_bytes() == file.read_bytes()
