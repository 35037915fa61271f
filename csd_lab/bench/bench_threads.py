"""Torch's threads: what each phase of a training step gains of several, counted on the cores of a virtual machine."""

from __future__ import annotations

from typing import Any

import msgspec

from csd_emu.cycles.parameters import CoreParameters
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.image import ImageStore
from csd_emu.profiles.core_sharing import speed_up
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench
from csd_lab.fidelity.thread_scaling import (
    WHOLE,
    PhaseScaling,
    ThreadCounts,
    measure_threads,
    middle_shares,
    scaling_of,
)
from firmware_agent.common.frames.session_frames import Job

_CLASSES: dict[str, int | float | str | bool] = {"num_classes": 10}
# Model -> shape of its images, batch size, whole steps.
MODELS = {
    "digits_cnn": ((1, 8, 8), 256, 4),
    "squeezenet": ((3, 32, 32), 32, 2),
    "mobilenet_v2": ((3, 32, 32), 32, 2),
}
THREADS = (1, 2, 4)


def bench_threads(bench: Bench) -> BenchReport:
    """Find the serial share of each phase of a training step, from the cycles of torch's threads on four cores.

    In one virtual machine per model the agent's steps run with 1, 2 and 4 threads of torch, each on a core of its own,
    under the core model.

    Figures, of four threads: `PHASE_serial_min`, `PHASE_serial_median` and `PHASE_serial_max` over the models, the
    share with which Amdahl's law has the gain that was counted (Karp and Flatt, 1990); `extra_work`, the largest share
    of cycles of a step that threads add. `two_threads_error`, the largest |foretold / counted - 1| of a step's gain by
    two threads, with its model's own shares by four.
    """
    plugin = CyclePlugin.build(bench.paths.cycles, CoreParameters())
    image = ImageStore(bench.paths.images).ensure(bench.progress)
    counts: dict[str, list[ThreadCounts]] = {}
    for model, (shape, batch_size, steps) in MODELS.items():
        bench.progress.stage(f"threads of {model}")
        job = Job(model, _CLASSES, None, 1 / 255, bench.seed, 1e-4, 0.9, batch_size)
        counts[model] = measure_threads(image, plugin, job, shape, steps, THREADS)
    figures, scaling = thread_figures(counts)
    samples: dict[str, Any] = {"scaling": msgspec.to_builtins(scaling), "counts": msgspec.to_builtins(counts)}
    return bench.report("counted", figures, samples)


def thread_figures(
    counts: dict[str, list[ThreadCounts]],
) -> tuple[dict[str, float], dict[str, dict[int, dict[str, PhaseScaling]]]]:
    """Return the bench's figures, and model -> threads -> phase -> scaling, from what 1, 2 and 4 threads counted.

    Raises:
        CalibrationError: a phase took no cycles.
    """
    scaling = {
        model: {each.threads: scaling_of(one, each) for each in several} for model, (one, *several) in counts.items()
    }
    most, fewer = max(THREADS), sorted(THREADS)[1]
    figures = {
        f"{name}_serial_{what}": share
        for name, shares in middle_shares({model: by[most] for model, by in scaling.items()}).items()
        for what, share in zip(("min", "median", "max"), shares, strict=True)
    }
    figures["extra_work"] = max(by[most][WHOLE].extra_work for by in scaling.values())
    errors = [
        foretold_gain(counts[model][0], by[most], fewer) / by[fewer][WHOLE].gain - 1 for model, by in scaling.items()
    ]
    return figures | {"two_threads_error": max(map(abs, errors))}, scaling


def foretold_gain(one: ThreadCounts, scaling: dict[str, PhaseScaling], threads: int) -> float:
    """Return what a whole step should gain of so many threads, phase by phase, with the serial shares of `scaling`."""
    phases = [name for name in one.phases if name != WHOLE]
    shares = {name: min(1.0, max(0.0, scaling[name].serial_share)) for name in phases}
    cycles = {name: one.phases[name][0].cycles for name in phases}
    taken = sum(cycles[name] / speed_up(0.0, threads, shares[name]) for name in phases)
    return sum(cycles.values()) / taken
