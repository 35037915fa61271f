"""Runs in which something is killed: `csd-emu bench kill`, its runs and their judge."""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.command_lab import (
    WATCHDOG_SECONDS,
    CommandLab,
    count_rounds,
    newest,
    read_records,
    read_steps,
)
from csd_lab.bench.harness import Bench, temporary_folder
from csd_lab.testkit.final_weights import all_finite, difference, read_weights
from firmware_agent.common.atomic_files import PARTIAL
from firmware_agent.common.slices import Array
from host.core.records import EventKind, EventRecord, RoundRecord, StepRecord
from host.monitoring.run_directory import CHECKPOINT_FILE, JOB_FILE, SUMMARY_FILE

TARGETS = ("host", "drive", "vm", "virtqemud", "server")
NATIVE_TARGETS = ("host", "drive", "server")
MOMENTS = ("boot", "round", "checkpoint", "report")
# After these a run goes on, or is resumed, with all that it had: its weights must be those of the undisturbed one.
SAME_WEIGHTS = frozenset({"host", "virtqemud"})


@dataclass(frozen=True)
class Aim:
    """What is killed and when: a target, a moment, and how far into it (a round, and a share of its time)."""

    target: str
    moment: str
    round: int
    fraction: float


def draw_aims(count: int, targets: Sequence[str], rounds: int, draw: Any) -> list[Aim]:
    """Return so many aims: targets and moments by turns, the rest from the generator `draw` (`random.Random`)."""
    return [
        Aim(
            targets[number % len(targets)],
            MOMENTS[number // len(targets) % len(MOMENTS)],
            draw.randrange(1, rounds),
            draw.random(),
        )
        for number in range(count)
    ]


def first_change(steps: Sequence[StepRecord], whole: Sequence[StepRecord]) -> tuple[StepRecord, StepRecord] | None:
    """Return the first step that was not as in the undisturbed run, and how it was there; None if all are alike.

    Steps after it differ anyway, since they begin with other weights.
    """
    known = {step.step: step for step in whole}
    for step in sorted(steps, key=lambda each: each.step):
        like = known.get(step.step)
        if like is not None and _parts(step) != _parts(like):
            return step, like
    return None


def says_so(step: StepRecord, like: StepRecord) -> bool:
    """Return whether a step's record says that it is another than the undisturbed one: mixed, late, or others there."""
    present = [] if step.servers is None else step.servers.present
    before = [] if like.servers is None else like.servers.present
    missing = {part.device for part in like.devices} - {part.device for part in step.devices}
    return bool(step.mixed or step.lost or step.late or missing or present != before)


def judge(trials: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of all trials (see `bench_kill`)."""
    same = [trial["difference"] for trial in trials if trial["target"] in SAME_WEIGHTS]
    changed = [trial["recorded"] for trial in trials if trial["recorded"] is not None]
    return {
        "runs_lost": float(sum(not trial["ended"] or not trial["finite"] for trial in trials)),
        "rounds_lost_max": float(max((trial["rounds_lost"] for trial in trials), default=0)),
        "weights_difference": max(same, default=0.0),
        "mixed_recorded": sum(changed) / len(changed) if changed else 1.0,
        "steps_changed": float(len(changed)),
        "killed": float(sum(trial["killed"] > 0 for trial in trials)),
    }


def _parts(step: StepRecord) -> tuple[float, list[tuple[str, int]]]:
    return step.loss, [(part.device, part.batch_size) for part in step.devices]


ROUNDS, ROUND_STEPS, SERVERS = 5, 4, ("a", "b")
NATIVE, QEMU, GROUP = "native", "qemu", "servers"
_KIND = {"host": NATIVE, "drive": NATIVE, "vm": QEMU, "virtqemud": QEMU, "server": GROUP}
# The homes of a run: the first one's weights are judged, the last one is watched, and a server that is killed is it.
_HOMES = {NATIVE: ("one",), QEMU: ("one",), GROUP: SERVERS}
_PROCESSES = {"drive": ("agent",), "vm": ("qemu-system",), "virtqemud": ("virtqemud", "libvirtd")}


class KillLab(CommandLab):
    """One bench's folder, and the undisturbed runs that all others are compared with.

    Attributes:
        seconds: kind of run -> how long its parts last, undisturbed.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        """Write the files; nothing is started yet."""
        super().__init__("kill", folder)
        self.seconds: dict[str, dict[str, float]] = {}
        self._whole: dict[str, tuple[dict[str, Array], list[StepRecord]]] = {}
        job = {"model": "digits_cnn", "mode": "sync", "data": {"source": "digits", "private": 0.3}, "rounds": ROUNDS}
        job |= {"batch_size": 16, "tuner": "none", "seed": seed, "sync": {"round_steps": ROUND_STEPS}}
        self._job = self.write("job.yaml", job)
        devices = [{"profile": "newport", "count": 3}]
        self._arrays = {
            engine: self.write(f"{engine}.yaml", {"name": f"bench-kill-{engine}", "engine": engine, "devices": devices})
            for engine in (NATIVE, QEMU)
        }
        self._servers = self.write_servers(SERVERS, self._arrays[NATIVE])

    def kinds_of(self, aims: Sequence[Aim]) -> list[str]:
        """Return which undisturbed runs are needed."""
        return sorted({_KIND[aim.target] for aim in aims})

    def measure(self, kind: str) -> None:
        """Run without a fault: keep weights, steps, and how long its parts last.

        A first run is for images, templates and caches, which are there in all later ones.
        """
        self._measure(kind, self.folder / f"first-{kind}")
        self._measure(kind, self.folder / f"whole-{kind}")

    def _measure(self, kind: str, runs: Path) -> None:
        judged, watched = runs / _HOMES[kind][0], runs / _HOMES[kind][-1]
        with self._store_of(kind):
            begin = time.monotonic()
            started = self._start_all(kind, runs)
            self.wait(started[watched.name], lambda: count_rounds(newest(watched)) >= 1)
            first = time.monotonic()
            self.wait(started[watched.name], lambda: count_rounds(newest(watched)) >= ROUNDS)
            last = time.monotonic()
            if any(each.wait(WATCHDOG_SECONDS) != 0 for each in started.values()):
                raise self.failed(f"the undisturbed run ({kind}) failed")
        parts = {"boot": first - begin, "round": (last - first) / (ROUNDS - 1), "report": time.monotonic() - last}
        self.seconds[kind] = parts
        weights = read_weights(newest(judged))
        if weights is None:
            raise self.failed(f"the undisturbed run ({kind}) left no weights")
        self._whole[kind] = weights, read_steps(newest(judged))

    def trial(self, number: int, aim: Aim) -> dict[str, Any]:
        """Kill what is aimed at, let the run come to its end, resumed if it must be, and say what came of it."""
        kind, runs = _KIND[aim.target], self.folder / f"trial-{number}"
        watched = runs / _HOMES[kind][-1]
        with self._store_of(kind):
            started = self._start_all(kind, runs)
            self._await(started[watched.name], watched, aim, self.seconds[kind])
            killed = self._kill(aim.target, started[watched.name])
            before = count_rounds(newest(watched))
            codes, resumed = self._come_to_an_end(kind, aim.target, started, runs)
        for home in SERVERS if kind == GROUP else ():  # a killed server leaves its drives; others clear up themselves
            self.run(home, "clean")
        what = {"target": aim.target, "moment": aim.moment, "round": aim.round, "fraction": aim.fraction}
        what |= {"killed": killed, "rounds_recorded": before, "resumed": resumed, "exit_codes": codes}
        judged = newest(runs / _HOMES[kind][0])
        said = {"said": self.words()} if any(codes) else {}
        return what | self._judge(aim, kind, judged, newest(watched), before) | said

    def _judge(self, aim: Aim, kind: str, judged: Path, watched: Path, before: int) -> dict[str, Any]:
        """Return what came of a run: `judged` has its weights, `watched` lost what was killed."""
        weights, whole = read_weights(judged), self._whole[kind]
        change = first_change(read_steps(judged), whole[1])
        same = aim.target in SAME_WEIGHTS
        # Of two servers the one that is left has every round; the other takes over from it.
        lost = ROUNDS - count_rounds(judged) if kind == GROUP else before - _resumed_after(watched, before)
        return {
            "ended": weights is not None and (judged / SUMMARY_FILE).exists(),
            "finite": weights is not None and all_finite(weights),
            "rounds_lost": max(0, lost),
            "difference": difference(weights, whole[0]) if same and weights is not None else float(same),
            "recorded": None if same or change is None else says_so(*change),
        }

    def _come_to_an_end(
        self, kind: str, target: str, started: Mapping[str, subprocess.Popen[bytes]], runs: Path
    ) -> tuple[list[int], bool]:
        """Return the exit codes of all that ended last, and whether one was resumed, or begun anew."""
        codes, resumed = [], target == "server"
        again = {SERVERS[-1]: self._go_on(kind, SERVERS[-1], runs)} if resumed else {}  # while the other one goes on
        for home, process in {**started, **again}.items():
            code = self.end(process)
            if code != 0:
                resumed, code = True, self.end(self._go_on(kind, home, runs))
            codes.append(code)
        return codes, resumed

    def _go_on(self, kind: str, home: str, runs: Path) -> subprocess.Popen[bytes]:
        """Resume a run, or begin it anew if it had not written what it is."""
        directory = newest(runs / home)
        if not (directory / JOB_FILE).exists():
            return self._run(kind, home, runs)
        return self.start(home, "run", "--resume", directory)

    def _start_all(self, kind: str, runs: Path) -> dict[str, subprocess.Popen[bytes]]:
        return {home: self._run(kind, home, runs) for home in _HOMES[kind]}

    def _run(self, kind: str, home: str, runs: Path) -> subprocess.Popen[bytes]:
        servers = ("--servers", self._servers, "--server", home)
        where = servers if kind == GROUP else ("--array", self._arrays[kind])
        return self.start(home, "run", self._job, *where, "--runs", runs / home)

    def _store_of(self, kind: str) -> contextlib.AbstractContextManager[None]:
        return self.store(self._servers) if kind == GROUP else contextlib.nullcontext()

    def _await(self, process: subprocess.Popen[bytes], runs: Path, aim: Aim, seconds: Mapping[str, float]) -> None:
        """Return at the moment; the run may have ended before."""
        if aim.moment == "checkpoint":
            self.wait(process, lambda: count_rounds(newest(runs)) >= aim.round)
            self.wait(process, lambda: _is_partial(newest(runs)) or count_rounds(newest(runs)) > aim.round)
            return
        if aim.moment != "boot":
            self.wait(process, lambda: count_rounds(newest(runs)) >= (ROUNDS if aim.moment == "report" else aim.round))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(aim.fraction * seconds[aim.moment])

    def _kill(self, target: str, process: subprocess.Popen[bytes]) -> int:
        """Kill a target, and return how many processes that were."""
        if target == "server":
            return self.kill(self.processes_of(SERVERS[-1]))
        if target == "host":
            return self.kill([] if process.poll() is not None else [psutil.Process(process.pid)])
        return self.kill(self.processes_of("one", _PROCESSES[target])[:1])


def _resumed_after(directory: Path, before: int) -> int:
    """Return after how many rounds a run was last resumed; `before` if it never was, 0 if it was begun anew."""
    records = read_records(directory)
    resumed = [each for each in records if isinstance(each, EventRecord) and each.what is EventKind.RESUMED]
    if resumed:
        return int(resumed[-1].detail.rpartition(" ")[2])
    return before if sum(isinstance(each, RoundRecord) for each in records) >= before else 0


def _is_partial(directory: Path) -> bool:
    """Return whether a checkpoint is being written."""
    return any(directory.glob(f"{CHECKPOINT_FILE}*{PARTIAL}"))


TRIALS, QUICK_TRIALS = 50, 12


def bench_kill(bench: Bench, quick: bool = False) -> BenchReport:
    """Survival of a run when any of its parts is killed by SIGKILL at any moment, and what it says of it.

    Kill the host, a drive's agent, a virtual machine, virtqemud, or one server of two, in 50 runs; go on with each.

    With `quick`: 12 runs on native drives, without virtual machines.

    Figures: `runs_lost`: runs that did not come to their end, resumed if they had to be, or whose weights are not
    finite. `rounds_lost_max`: most rounds of one run that were on record and had to be trained again.
    `weights_difference`: where the host or virtqemud was killed, the largest absolute difference of a final weight from
    the undisturbed run's. `mixed_recorded`: where a drive, a virtual machine or a server was, the share of runs in
    which the first step that differs from the undisturbed run's says so (mixed, lost, late, or who was not there), of
    those `steps_changed` in which one does. `killed`: runs in which there was something left to kill, at that moment.
    """
    generator = random.Random(bench.seed)
    aims = draw_aims(QUICK_TRIALS if quick else TRIALS, NATIVE_TARGETS if quick else TARGETS, ROUNDS, generator)
    with temporary_folder() as folder, KillLab(folder, bench.seed) as lab:
        folder.chmod(0o711)  # root's virtual machines run as another user
        for kind in lab.kinds_of(aims):
            bench.progress.stage(f"undisturbed run: {kind}")
            lab.measure(kind)
        trials = []
        for number, aim in enumerate(aims):
            bench.progress.stage(f"run {number + 1} of {len(aims)}: {aim.target} killed, {aim.moment}")
            trials.append(lab.trial(number, aim))
        samples = {"trials": trials, "undisturbed_seconds": lab.seconds}
    return bench.report("wall", judge(trials), samples, engine="native" if quick else "qemu")
