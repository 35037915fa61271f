"""Runs networks of ncnn under the core model: in a virtual machine, with ncnn's package beside this file.

A line of `networks.txt` has a network's name and the width, height and channels of its input; `NAME.param` is its
description. Weights are zero. Of each network one run goes unseen, one warms the model's caches, and one is between two
marks.
"""

from pathlib import Path

import ncnn

from firmware_agent.common.frames.measure_frames import PhaseMark
from firmware_agent.cycle_marks import CycleMarks


def main() -> None:
    """Run all networks."""
    marks = CycleMarks()
    for line in Path("networks.txt").read_text(encoding="utf-8").splitlines():
        name, *sizes = line.split()
        run(name, [int(size) for size in sizes], marks)


def run(name: str, sizes: list[int], marks: CycleMarks) -> None:
    """Run one network with one thread."""
    net = ncnn.Net()
    net.opt.num_threads = 1
    failures = [net.load_param(f"{name}.param"), net.load_model(ncnn.DataReaderFromEmpty())]
    image = ncnn.Mat(*sizes)
    image.fill(0.01)
    for mark in (PhaseMark.START, PhaseMark.IDLE, PhaseMark.FORWARD):
        with net.create_extractor() as extractor:
            failures.append(extractor.input(net.input_names()[0], image))
            failed, _ = extractor.extract(net.output_names()[0])
        failures.append(failed)
        marks.execute(mark)
    marks.execute(PhaseMark.STOP)
    if any(failures):
        raise SystemExit(f"{name} failed: {failures}")


main()
