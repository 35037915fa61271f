"""Cycles of the core model: how well they repeat, what counting costs, how a table foretells, and published boards."""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.profiles.calibration import CalibrationTable
from csd_emu.util.progress import Silent
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, cpu_hogs, spread
from csd_lab.fidelity.board_fidelity import (
    BANDWIDTH,
    COREMARK,
    LATENCY,
    NETWORK,
    THREADS,
    BoardFidelity,
    compare_boards,
)
from firmware_agent.common.errors import EnvironmentUnfit
from firmware_agent.common.shipped_code import ShippedCode
from host.app.calibration_measurement import calibrate
from host.config.calibration_request import CalibrationRequest, make_request

# Boots of a machine by hogs beside it, as a multiple of the machine's cores.
BOOTS = {0: 3, 2: 2}
# The largest is the one that the table does not get to see.
BATCHES = (4, 8, 16, 32)


def bench_fidelity(bench: Bench) -> BenchReport:
    """Repeatability and cost of the cycles that the core model counts, and the error of a table in cycles.

    Calibrate digits_cnn with cycles on five fresh VMs, two of them beside hogs on the host, and on one without cycles.

    Before that, hold the core model's predictions against published boards (`csd-emu fidelity`); of networks and
    CoreMark only if CSD_NCNN and CSD_COREMARK name the programs.

    Figures: `repeat`, the largest spread over the boots of a step's cycles per instruction, (max - min) / mean, over
    the batch sizes; `calibrate_over_today`, wall seconds of calibrating with cycles over without, nothing beside it;
    `left_out_error`, |foretold / measured - 1| of the largest batch, in cycles, by a table without its row. Of what is
    judged of boards, |predicted / published - 1|: `memory_error_median`, of bandwidths or of latencies, whichever is
    larger; `cnn_error_median` and `cnn_error_worst`, of networks with one thread; `threads_error_median`, of speed-ups;
    `coremark_per_mhz_error`.
    """
    coremark = [Path(each) for each in os.environ.get("CSD_COREMARK", "").split(os.pathsep) if each]
    ncnn = os.environ.get("CSD_NCNN")
    boards = compare_boards(Path(ncnn) if ncnn else None, coremark, bench.paths, bench.progress)
    request = make_request(ShippedCode("digits_cnn"), (1, 8, 8), BATCHES, seed=bench.seed)
    bench.progress.stage("calibrate without cycles")
    _, plain_seconds = _calibrate(request, bench)
    tables: list[CalibrationTable] = []
    seconds: list[float] = []
    for hogs, boots in BOOTS.items():
        for number in range(boots):
            bench.progress.stage(f"calibrate with cycles, {hogs} hogs per core, {number + 1} of {boots}")
            with cpu_hogs(hogs * (os.cpu_count() or 1)):
                table, wall_seconds = _calibrate(dataclasses.replace(request, cycles=True), bench)
            tables.append(table)
            seconds += [wall_seconds] * (not hogs)
    ratios = [[step_ratio(table, batch) for table in tables] for batch in BATCHES]
    figures = {
        "repeat": max(spread(values) for values in ratios),
        "calibrate_over_today": min(seconds) / plain_seconds,
        "left_out_error": abs(tables[0].in_cycles().error_estimate()[max(BATCHES)]),
    }
    figures |= board_figures(boards)
    samples: dict[str, Any] = {"boards": msgspec.to_builtins(boards)}
    samples |= {"cycles_per_instruction": dict(zip(map(str, BATCHES), ratios, strict=True))}
    samples |= {"wall_seconds": {"without": plain_seconds, "with": seconds}, "clocks": {"calibrate_over_today": "wall"}}
    return bench.report("counted", figures, samples)


def board_figures(boards: BoardFidelity) -> dict[str, float]:
    """Return the figures of a comparison with boards: of the kinds that were compared."""
    median, worst = boards.median_errors, boards.worst_errors
    figures = {"memory_error_median": max(median[BANDWIDTH], median[LATENCY])}
    if NETWORK in median:
        figures |= {"cnn_error_median": median[NETWORK], "cnn_error_worst": worst[NETWORK]}
        figures["threads_error_median"] = median[THREADS]
    if COREMARK in median:
        figures["coremark_per_mhz_error"] = median[COREMARK]
    return figures


def step_ratio(table: CalibrationTable, batch_size: int) -> float:
    """Return the cycles per instruction of the median whole step of a measured batch size."""
    (row,) = (row for row in table.rows if row.batch_size == batch_size)
    if row.cycles is None:
        raise EnvironmentUnfit("bench fidelity: cycles were not counted; what was said before has the cause")
    return statistics.median(step.total.per_instruction for step in row.cycles.steps)


def _calibrate(request: CalibrationRequest, bench: Bench) -> tuple[CalibrationTable, float]:
    begin = time.monotonic()
    return calibrate(request, bench.paths, Silent()), time.monotonic() - begin
