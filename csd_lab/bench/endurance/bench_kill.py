"""Survival of a run when any of its parts is killed by SIGKILL at any moment, and what it says of it."""

from __future__ import annotations

import random

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.endurance.kill_judge import NATIVE_TARGETS, TARGETS, draw_aims, judge
from csd_lab.bench.endurance.kill_lab import ROUNDS, KillLab
from csd_lab.bench.harness import Bench, temporary_folder

TRIALS, QUICK_TRIALS = 50, 12


def run(bench: Bench, quick: bool = False) -> BenchReport:
    """Kill the host, a drive's agent, a virtual machine, virtqemud, or one server of two, in 50 runs; go on with each.

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
