"""`csd-emu tune`."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Literal

import typer

from csd_emu.util.paths import Paths
from csd_lab.tune.tune_report import TunedDevice, TuneReport
from firmware_agent.common.units import format_bytes
from host.cli.common_options import ArrayOption, JobFile, Json
from host.core.console import StageProgress, console, figures_table, print_json, print_whole
from host.core.interrupts import INTERRUPTS
from host.core.plain_text import counted


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(tune)


def tune(
    job: JobFile,
    array: ArrayOption,
    host: Annotated[
        Literal["low", "middle", "high"], typer.Option(help="how many drives the host is worth, of its profile's band")
    ] = "middle",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="measure a missing calibration table first, on a virtual drive")
    ] = False,
    as_json: Json = False,
) -> None:
    """Choose batch sizes with which all devices finish a step together, and shards for equal steps per epoch."""
    with INTERRUPTS.deferred():
        from csd_emu.profiles.calibration import CalibrationStore
        from csd_lab.tune.tune_batches import calibrate_missing, read_tune
        from csd_lab.tune.tune_batches import tune as make_report

        request = read_tune(job, array)
    paths = Paths.default()
    if calibrate:
        with StageProgress(quiet=as_json) as progress:
            calibrate_missing(request, paths, progress)
    report = make_report(request, CalibrationStore(paths.calibration), host)
    print_json(report) if as_json else print_tune(report)


_COLUMNS = ("device", "batch", "step s", "records/s", "memory", "of", "error", "private", "public", "equal", "step s")


def print_tune(report: TuneReport) -> None:
    """Print a row per group of equal devices, the step, the epoch, and what equal batches would give."""
    shape = "x".join(map(str, report.input_shape))
    table = figures_table(f"{report.model} at {shape} on {report.array}", _COLUMNS, left=("device",))
    for _, group in groupby(report.devices, key=lambda device: (device.profile, device.batch_size)):
        table.add_row(*_cells(list(group)))
    print_whole(table)
    for clock in dict.fromkeys((device.profile, device.clock) for device in report.devices):
        console.print(f"{clock[0]}: clock: {clock[1]}", markup=False, soft_wrap=True)
    gain = report.records_per_second / report.equal_records_per_second
    console.print(
        f"a step takes {report.step_seconds:.4g} s (modelled), of them {report.exchange_seconds:.4g} s exchange; "
        f"imbalance {report.imbalance:.2%}; {report.records_per_second:.4g} records/s\n"
        f"equal batches: {report.equal_records_per_second:.4g} records/s, imbalance {report.equal_imbalance:.0%}: "
        f"{gain:.3g} times as fast\n"
        f"an epoch has {counted(report.steps_per_epoch, 'step')}",
        soft_wrap=True,
    )
    for note in report.notes:
        console.print(note, markup=False, soft_wrap=True)


def _cells(group: list[TunedDevice]) -> list[str]:
    first, last = group[0], group[-1]
    names = first.device if len(group) == 1 else f"{first.device} to {last.device}"
    parts = -(-first.batch_size // first.micro_batch)
    return [
        f"{names} ({first.profile})",
        f"{first.batch_size}" + (f" in {parts}" if parts > 1 else ""),
        f"{first.compute_seconds:.4g}",
        f"{first.records_per_second:.4g}",
        format_bytes(first.needed_bytes),
        format_bytes(first.available_bytes),
        "?" if first.error_estimate is None else f"{first.error_estimate:.1%}" + ("" if first.covered else " ?"),
        _range([device.private_records for device in group]),
        _range([device.public_records for device in group]),
        _range([device.equal_batch_size for device in group]),
        f"{first.equal_compute_seconds:.4g}",
    ]


def _range(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low}-{high}"
