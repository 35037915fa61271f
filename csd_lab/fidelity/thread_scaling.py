"""What torch gains of several threads: whole training steps, counted on each core of a virtual machine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from importlib import resources

import msgspec

from csd_emu.cycles.mark_file import CycleMark
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.image import Image
from csd_emu.profiles.calibration.cycle_counts import PhaseCycles, StepCycles, split_steps
from csd_lab.fidelity.benchmark_machine import run_program
from firmware_agent.common.errors import CalibrationError
from firmware_agent.common.frames.measure_frames import Measure, PhaseMark
from firmware_agent.common.frames.session_frames import Job
from host.app.cycle_counter import phases_between

_PROGRAM = "torch_threads.py"
# Waiting threads sleep: spinning would count as work.
_ENVIRONMENT = "OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0"
_DEADLINE_SECONDS = 3600.0
WHOLE = "step"


class ThreadCounts(msgspec.Struct, frozen=True):
    """What a number of threads counted: phase, or ``step`` for all -> counters of each thread's core, medians."""

    threads: int
    phases: dict[str, list[PhaseCycles]]


class PhaseScaling(msgspec.Struct, frozen=True):
    """What a phase gains of threads, from the cycles of each core; nothing is in it of DRAM that they share.

    Emulated cores take turns, and work that threads take as they come is divided otherwise than on real cores.

    Attributes:
        gain: one thread's cycles over those of the busiest core. What a core waits for others is not counted, so the
            true gain is no larger.
        serial_share: that Amdahl's law has with this gain, ``(n / gain - 1) / (n - 1)`` (Karp and Flatt, CACM 33 (5),
            1990): work of one thread alone, uneven shares and the extra work. Above 1 if threads make it slower.
        extra_work: cycles of all cores over one thread's, less 1.
        extra_bytes: the same of bytes of DRAM.
    """

    gain: float
    serial_share: float
    extra_work: float
    extra_bytes: float


def measure_threads(
    image: Image,
    plugin: CyclePlugin,
    job: Job,
    shape: Sequence[int],
    steps: int,
    threads: Sequence[int],
) -> list[ThreadCounts]:
    """Train a model on noise with each number of threads, and return what each counted.

    Args:
        image: of the drives.
        plugin: the core model, one for each core: caches and DRAM are not shared.
        job: the model and the batch size.
        shape: (channels, height, width) of an image.
        steps: whole ones that are counted, 2 at least.
        threads: how many, each at least 1.

    Raises:
        CalibrationError: the program failed.
    """
    measure = Measure(job.batch_size, 1e-3, steps=1, warm_up_steps=1, restore=False, cycle_steps=steps)
    plan = {"job": msgspec.to_builtins(job), "measure": msgspec.to_builtins(measure), "shape": list(shape)}
    program = (resources.files("csd_lab.fidelity") / "guest" / _PROGRAM).read_bytes()
    files = {_PROGRAM: program, "threads.json": msgspec.json.encode(plan)}
    environment = f"GOMP_CPU_AFFINITY=0-{max(threads) - 1} {_ENVIRONMENT}"
    runs = [f"OMP_NUM_THREADS={count} {environment} /usr/bin/python3 {_PROGRAM} {count}" for count in threads]
    # One core more, for what has them take turns.
    marks, _ = run_program(image, plugin, " && ".join(runs), files, _DEADLINE_SECONDS, max(threads) + 1)
    return count_threads(marks, threads)


def count_threads(marks: Sequence[CycleMark], threads: Sequence[int]) -> list[ThreadCounts]:
    """Return what each number of threads counted; threads are on the first cores.

    Args:
        marks: of all cores; a run begins with the mark `START`.
        threads: of each run, in order.

    Raises:
        CalibrationError: these are not the marks of so many runs of two whole steps or more, on so many cores.
    """
    cores: dict[int, list[list[CycleMark]]] = {}
    for mark in marks:
        runs = cores.setdefault(mark.core, [])
        if mark.mark == PhaseMark.START:
            runs.append([])
        if runs:
            runs[-1].append(mark)
    if any(len(cores.get(core, ())) != len(threads) for core in range(max(threads))):
        found = {core: len(runs) for core, runs in sorted(cores.items())}
        raise CalibrationError(f"the machine's cores marked {found} runs, where {len(threads)} were asked for of each")
    return [
        ThreadCounts(count, _medians([cores[core][number] for core in range(count)]))
        for number, count in enumerate(threads)
    ]


def _medians(cores: Sequence[list[CycleMark]]) -> dict[str, list[PhaseCycles]]:
    """Return the median counters of each phase on each core."""
    steps = [split_steps(phases_between(marks))[0] for marks in cores]
    phases = {name: [[getattr(step, name) for step in each] for each in steps] for name in StepCycles.__struct_fields__}
    phases[WHOLE] = [[step.total for step in each] for each in steps]
    return {name: [_median(counts) for counts in each] for name, each in phases.items()}


def _median(counts: Sequence[PhaseCycles]) -> PhaseCycles:
    columns = zip(*map(msgspec.structs.astuple, counts), strict=True)
    return PhaseCycles(*(round(statistics.median(column)) for column in columns))


def scaling_of(one: ThreadCounts, several: ThreadCounts) -> dict[str, PhaseScaling]:
    """Return what each phase gains of several threads.

    Raises:
        CalibrationError: a phase took one thread no cycles.
    """
    return {name: _scaling(one.phases[name][0], cores) for name, cores in several.phases.items()}


def _scaling(one: PhaseCycles, cores: Sequence[PhaseCycles]) -> PhaseScaling:
    if not one.cycles:
        raise CalibrationError("a phase took one thread no cycles; measure whole steps")
    whole, busiest, count = sum(cores, PhaseCycles()), max(each.cycles for each in cores), len(cores)
    return PhaseScaling(
        gain=one.cycles / busiest,
        serial_share=serial_share(one.cycles / busiest, count),
        extra_work=whole.cycles / one.cycles - 1,
        extra_bytes=whole.dram_bytes / one.dram_bytes - 1 if one.dram_bytes else 0.0,
    )


def serial_share(gain: float, threads: int) -> float:
    """Return the serial share with which Amdahl's law has this gain of so many threads, two or more.

    Args:
        gain: above 0.
        threads: n.
    """
    return (threads / gain - 1) / (threads - 1)


def middle_shares(measured: Mapping[str, Mapping[str, PhaseScaling]]) -> dict[str, tuple[float, float, float]]:
    """Return the least, the median and the largest serial share of each phase over models, all within 0 and 1.

    Args:
        measured: model -> phase -> scaling by the same number of threads; one model at least.
    """
    phases = next(iter(measured.values()))
    shares = {name: [min(1.0, max(0.0, phase[name].serial_share)) for phase in measured.values()] for name in phases}
    return {name: (min(values), statistics.median(values), max(values)) for name, values in shares.items()}
