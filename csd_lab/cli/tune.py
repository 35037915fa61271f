"""`csd-emu tune`."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Literal

import typer

from csd_emu.util.paths import Paths
from csd_lab.tune.tune_report import TunedDevice, TuneReport
from firmware_agent.common.units import format_bytes
from host.cli.common_options import ArrayOption, JobFile, Json
from host.core.console import StageProgress, console, figures_table, print_json
from host.core.figure_bands import IN_BRACKETS, describe_ends, format_band
from host.core.interrupts import INTERRUPTS
from host.core.plain_text import counted
from host.core.summary import name_clock


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
    console.print(table)
    for clock in dict.fromkeys((device.profile, device.clock) for device in report.devices):
        console.print(f"{clock[0]}: clock: {clock[1]}", markup=False)
    gain = report.records_per_second / report.equal_records_per_second
    names = "step_seconds", "exchange_seconds", "records_per_second", "equal_records_per_second"
    step, exchange, rate, equal = (
        format_band(f"{getattr(report, name):.4g}", report.bands.get(name)) for name in names
    )
    console.print(
        f"a step takes {step} s ({name_clock(report.clock, report.core_model)}), of them {exchange} s exchange; "
        f"imbalance {report.imbalance:.2%}; {rate} records/s\n"
        f"equal batches: {equal} records/s, imbalance {report.equal_imbalance:.0%}: {gain:.3g} times as fast\n"
        f"an epoch has {counted(report.steps_per_epoch, 'step')}",
    )
    if report.bands:
        _print_ends(report.devices)
    for note in report.notes:
        console.print(note, markup=False)


def _print_ends(devices: list[TunedDevice]) -> None:
    """Print what the brackets are, and whether STANNIS would choose the same batches at each end of the bands."""
    console.print(f"{IN_BRACKETS}, and these batches")
    ends = {
        end: _listed([device.batch_at_ends[end] for device in devices], devices) for end in devices[0].batch_at_ends
    }
    chosen = _listed([device.batch_size for device in devices], devices)
    console.print(f"STANNIS would choose {describe_ends(chosen, ends)}", markup=False)


def _listed(batches: list[int], devices: list[TunedDevice]) -> str:
    """Return the batches of devices, each group of equal ones once."""
    groups = groupby(zip(devices, batches, strict=True), key=lambda pair: (pair[0].profile, pair[1]))
    return ", ".join(f"{_names([device for device, _ in group])} {batch}" for (_, batch), group in groups)


def _names(group: list[TunedDevice]) -> str:
    return group[0].device if len(group) == 1 else f"{group[0].device} to {group[-1].device}"


def _cells(group: list[TunedDevice]) -> list[str]:
    first = group[0]
    parts = -(-first.batch_size // first.micro_batch)
    return [
        f"{_names(group)} ({first.profile})",
        f"{first.batch_size}" + (f" in {parts}" if parts > 1 else ""),
        *(
            format_band(f"{getattr(first, name):.4g}", first.bands.get(name))
            for name in ("compute_seconds", "records_per_second")
        ),
        format_bytes(first.needed_bytes),
        format_bytes(first.available_bytes),
        "?" if first.error_estimate is None else f"{first.error_estimate:.1%}" + ("" if first.covered else " ?"),
        _range([device.private_records for device in group]),
        _range([device.public_records for device in group]),
        _range([device.equal_batch_size for device in group]),
        format_band(f"{first.equal_compute_seconds:.4g}", first.bands.get("equal_compute_seconds")),
    ]


def _range(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low}-{high}"
