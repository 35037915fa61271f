"""Runs networks of ncnn: under the core model in a virtual machine, or on a board. It finds ncnn's package by itself.

A line of `networks.txt` has a network's name and the width, height and channels of its input; `NAME.param` is its
description. Weights are zero. Of each network one run goes unseen, one warms the caches, and one is measured: between
two cycle marks, or with the argument `--wall` by the clock, in a line `NAME NANOSECONDS`.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import ncnn


def main(wall: bool) -> None:
    """Run all networks."""
    mark = mark_by_clock if wall else _cycle_marks()
    for line in Path("networks.txt").read_text(encoding="utf-8").splitlines():
        name, *sizes = line.split()
        run(name, [int(size) for size in sizes], mark)


def run(name: str, sizes: list[int], mark: Callable[[str, int], None]) -> None:
    """Run one network with one thread; `mark` is given its name and how many runs are over."""
    net = ncnn.Net()
    net.opt.num_threads = 1
    failures = [net.load_param(f"{name}.param"), net.load_model(ncnn.DataReaderFromEmpty())]
    image = ncnn.Mat(*sizes)
    image.fill(0.01)
    for number in (1, 2, 3):
        with net.create_extractor() as extractor:
            failures.append(extractor.input(net.input_names()[0], image))
            failed, _ = extractor.extract(net.output_names()[0])
        failures.append(failed)
        mark(name, number)
    if any(failures):
        raise SystemExit(f"{name} failed: {failures}")


_times: list[int] = []


def mark_by_clock(name: str, number: int) -> None:
    """Write what the third run took."""
    _times.append(time.perf_counter_ns())
    if number == 3:
        print(name, _times[-1] - _times[-2], flush=True)


def _cycle_marks() -> Callable[[str, int], None]:
    from firmware_agent.common.frames.measure_frames import PhaseMark
    from firmware_agent.cycle_marks import CycleMarks

    marks = CycleMarks()

    def mark(_: str, number: int) -> None:
        marks.execute((PhaseMark.START, PhaseMark.IDLE, PhaseMark.FORWARD)[number - 1])
        if number == 3:
            marks.execute(PhaseMark.STOP)

    return mark


main("--wall" in sys.argv)
