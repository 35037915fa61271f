"""Benches of `csd-emu deploy`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from csd_emu.engines.remote.inventory import load_inventory
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, temporary_folder
from csd_lab.testkit.plain import PlainImages, PlainMachine
from csd_lab.testkit.plain.machine import CORES
from csd_lab.testkit.ssh_stub import StubDrive, StubDrives, StubFault
from firmware_agent.common.errors import DeviceError, DriveUnfit
from host.deploy.run_verb import DeployRequest, Limits, deploy, run_verb
from host.deploy.verb_protocol import DeployReport, DriveSite, VerbOutcome, VerbResult
from host.deploy.verbs.probe import read_facts

# Each boots a system of its own; on all of them the same four figures are taken.
KINDS = ("bookworm", "bullseye", "sysv", "bare")
_SECONDS = 3600.0
_JOBS = max(1, (os.cpu_count() or 1) // CORES)


def bench_deploy(bench: Bench) -> BenchReport:
    """Time of an installation on a real drive, beside the copy, and of one that finds nothing to do.

    Install on 4 plain ARM machines over SSH, then install again. Wall seconds, the slowest drive's.

    A machine has 2 emulated cores, so as many drives are worked on at a time as this machine has pairs of cores: with
    more, the figure would be that of machines which wait for each other. Bundles are made before.

    Figures: `install_wall_seconds_beyond_copy`, what an installation takes besides sending bytes: probe, unpack, check
    itself, switch; `second_install_wall_seconds`, which finds all in place.
    """
    with temporary_folder() as folder, _machines(bench, folder) as machines:
        inventory = folder / "inventory.yaml"
        drives = {machine.name: machine.inventory_entry() for machine in machines}
        inventory.write_text(yaml.safe_dump({"name": "bench-deploy", "drives": drives}), encoding="utf-8")
        bench.progress.stage("make the bundles")
        _install(bench, inventory, VerbResult.PLANNED, dry_run=True)
        bench.progress.stage(f"install on {len(machines)} machines")
        first = _install(bench, inventory, VerbResult.DONE)
        bench.progress.stage("install again")
        second = _install(bench, inventory, VerbResult.UNCHANGED)
    beyond = [drive.facts["wall_seconds"] - drive.facts["copy_wall_seconds"] for drive in first.drives]
    figures = {
        "install_wall_seconds_beyond_copy": max(beyond),
        "second_install_wall_seconds": max(drive.facts["wall_seconds"] for drive in second.drives),
    }
    took: dict[str, Any] = {
        name: {drive.drive: drive.facts for drive in done.drives}
        for name, done in (("first", first), ("second", second))
    }
    return bench.report("wall", figures, took | {"jobs": _JOBS})


def _install(bench: Bench, inventory: Path, expected: VerbResult, *, dry_run: bool = False) -> DeployReport:
    """Install on all drives.

    Raises:
        DeviceError: it ended otherwise than `expected` on one of them.
    """
    request = DeployRequest(inventory, "install", jobs=_JOBS, dry_run=dry_run, seconds=_SECONDS)
    done = deploy(request, bench.paths, bench.progress, _Count(bench))
    for drive in done.drives:
        if drive.result != expected.value:
            raise DeviceError(f"bench deploy: {drive.drive}: {drive.result}, not {expected.value}: {drive.what}")
    return done


@contextlib.contextmanager
def _machines(bench: Bench, folder: Path) -> Iterator[list[PlainMachine]]:
    """Start one machine of every kind, one after the other; all are gone afterwards."""
    with contextlib.ExitStack() as stack:
        machines = []
        for kind in KINDS:
            image = PlainImages(bench.paths.cache).ensure(kind, bench.progress)
            bench.progress.stage(f"boot {kind}")
            machine = stack.enter_context(PlainMachine.start(image, kind, folder / "run"))
            machine.wait_ready()
            machine.settle()
            machines.append(machine)
        yield machines


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


def bench_deploy_wide(
    bench: Bench, drives: int = DRIVES, jobs: int = JOBS, connect_seconds: int = CONNECT_SECONDS
) -> BenchReport:
    """Deployment to a hundred drives, ten of them broken: verbs keep to their jobs, and the rest is not disturbed.

    Visit stub drives on loopback, ten of them broken, each in its way.

    A visit is what an installation does: ask what the drive is, copy a file as root, compare its sha256. The figures
    are counted at the servers' side. `peak_connections`: most that were open at one time. `peak_within_jobs`: 1 if
    that is no more than `jobs`. `failed_isolated`: 1 if exactly the broken drives failed, each with a line that says
    why, and the whole file lies on each other one.
    """
    draw = random.Random(bench.seed)
    names = [f"csd-{number:03d}" for number in range(drives)]
    broken = dict(zip(draw.sample(names, len(BROKEN_DRIVES)), BROKEN_DRIVES, strict=True))
    with temporary_folder() as folder:
        file = folder / "file"
        file.write_bytes(draw.randbytes(FILE_BYTES))
        bench.progress.stage(f"start {drives} SSH servers")
        stubs = StubDrives(
            folder, [StubDrive(name, broken.get(name, StubFault.NONE), FILE_BYTES // 2) for name in names]
        )
        inventory = load_inventory(stubs.write_inventory(connect_seconds))
        bench.progress.stage(f"visit {drives} drives, {jobs} at a time")
        begin = time.monotonic()
        with stubs:
            board = _Count(bench)
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
    return bench.report("wall", figures, samples, "none")


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
    """A `host.deploy.parallel.Board` that shows how many drives are done."""

    def __init__(self, bench: Bench) -> None:
        self._progress = bench.progress

    def begin(self, drives: int) -> None:
        self._drives, self._done = drives, 0

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
