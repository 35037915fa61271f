"""Time of an installation on a real drive, beside the copy, and of one that finds nothing to do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, temporary_folder
from csd_lab.testkit.plain import PlainImages, PlainMachine
from csd_lab.testkit.plain.machine import CORES
from firmware_agent.common.errors import DeviceError
from host.deploy.run_verb import DeployRequest, deploy
from host.deploy.verb_protocol import DeployReport, VerbOutcome, VerbResult

# Each boots a system of its own; on all of them the same four figures are taken.
KINDS = ("bookworm", "bullseye", "sysv", "bare")
_SECONDS = 3600.0
_JOBS = max(1, (os.cpu_count() or 1) // CORES)


def run(bench: Bench) -> BenchReport:
    """Install on 4 plain ARM machines over SSH, then install again. Wall seconds, the slowest drive's.

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
    done = deploy(request, bench.paths, bench.progress, _NoBoard())
    for drive in done.drives:
        if drive.result != expected.value:
            raise DeviceError(f"bench deploy: {drive.drive}: {drive.result}, not {expected.value}: {drive.what}")
    return done


class _NoBoard:
    """Shows nothing: a bench has a progress of its own."""

    def begin(self, drives: int) -> None:
        """Ignore it."""

    def show(self, drive: str, what: str, share: float | None) -> None:
        """Ignore it."""

    def finish(self, outcome: VerbOutcome) -> None:
        """Ignore it."""


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
