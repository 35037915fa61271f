"""The outputs of commands, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Table

from firmware_agent.units import format_bytes
from host.console import console, print_line, print_summary
from host.outputs import (
    BenchReport,
    CalibrationOutcome,
    CalibrationReport,
    ExamplesReport,
    ImageReport,
    InjectReport,
    NamedText,
    ReportOutput,
    StatusReport,
    SweepReport,
    ValidationReport,
)
from host.report.formats import format_share

__all__ = [
    "print_bench",
    "print_calibration",
    "print_change",
    "print_examples",
    "print_images",
    "print_injection",
    "print_names",
    "print_report",
    "print_status",
    "print_summary",
    "print_sweep",
    "print_validation",
]


def print_names(entries: Sequence[NamedText]) -> None:
    """Print names, and what each is."""
    table = Table(box=SIMPLE, show_header=False)
    for entry in entries:
        table.add_row(f"[bold]{entry.name}[/]", entry.text)
    console.print(table)


def print_examples(report: ExamplesReport) -> None:
    """Print the files that were written, or what there is."""
    if not report.written:
        print_names(report.examples)
        console.print("csd-emu example NAME [FOLDER] writes one's files", highlight=False)
    for path in report.written:
        console.print(f"wrote {path}", soft_wrap=True, markup=False)


def print_status(report: StatusReport) -> None:
    """Print a table of arrays and their drives."""
    if not report.arrays:
        console.print("no array is up")
        return
    for array in report.arrays:
        table = Table(
            "drive", "profile", "state", "images", "incarnation", title=f"{array.array} ({array.engine}): {array.state}"
        )
        for device in array.devices:
            table.add_row(device.name, device.profile, device.state, str(device.samples), str(device.incarnation))
        console.print(table)


def print_change(drive: str, exists: bool) -> None:
    """Print that a drive of an array that is kept up has ended, or has come back."""
    console.print(f"{drive} {'is back' if exists else 'has ended'}")


def print_sweep(report: SweepReport) -> None:
    """Print which drives were ended."""
    for array in report.busy:
        console.print(f"{array}: in use by another csd-emu process, left alone")
    if not any(report.ended.values()):
        console.print("nothing was left")
    for array, devices in report.ended.items():
        if devices:
            console.print(f"{array}: ended {', '.join(devices)}")


def print_injection(report: InjectReport) -> None:
    """Print what was done to a drive."""
    noted = "the run has recorded it" if report.recorded else "no run is going on that could record it"
    console.print(f"{report.array} {report.device}: {report.detail}; {noted}", markup=False, soft_wrap=True)


def print_validation(report: ValidationReport) -> None:
    """Print what was checked, and the domain XML if it was asked for."""
    engines = dict.fromkeys(group["engine"] or report.array["engine"] for group in report.array["devices"])
    console.print(f"{report.array['name']}: {len(report.devices)} drives ({'+'.join(engines)}), valid")
    if report.job is not None:
        tried = "" if report.built else "; your own code was not run: --build imports and tries it"
        console.print(f"job: {report.job['model']} on {report.job['data']['source']}, valid{tried}", soft_wrap=True)
    for xml in report.domains.values():
        print_line(xml)


def print_bench(report: BenchReport) -> None:
    """Print a bench's figures; the raw samples are in the JSON form."""
    table = Table("figure", "value", title=f"{report.bench} ({report.engine}, clock: {report.clock})")
    for name, value in report.figures.items():
        table.add_row(name, f"{value:.6g}")
    console.print(table)


def print_images(report: ImageReport) -> None:
    """Print the images in the cache, and what was removed."""
    for name in report.removed:
        console.print(f"removed {name}")
    if not report.images:
        console.print("no image is in the cache; csd-emu image build makes one")
        return
    table = Table("image", "size", "build s (wall)", "of this version")
    for image in report.images:
        size = format_bytes(image.size_bytes)
        table.add_row(image.hash, size, f"{image.build_seconds:.1f}", "yes" if image.current else "no")
    console.print(table)


def print_calibration(report: CalibrationReport) -> None:
    """Print a calibration table, and the rows that were measured again."""
    shape = "x".join(map(str, report.input_shape))
    table = Table(
        title=f"{report.model} at {shape}, seconds per step (clock: {report.clock})", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    real = bool(report.drive)
    for name in ("batch", "forward", "backward", "update", "step", report.profile, "memory", "layers", "wall s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rows:
        phases = row.reference_seconds
        seconds = (phases.forward, phases.backward, phases.update, phases.total, row.profile_seconds.total)
        cells = [f"{value:.4g}" for value in seconds]
        memory = format_bytes(row.peak_memory_bytes)
        table.add_row(str(row.batch_size), *cells, memory, _layers_cell(row), f"{row.wall_seconds:.0f}")
    console.print(table)
    console.print(
        (
            f"measured on drive {report.drive}, a {report.profile}, by its own clock; the steps of a batch scatter by "
            f"{max(row.spread for row in report.rows):.1%} at most; memory: the agent's peak\n"
            if real
            else f"forward to step: on the counted 1 GIPS core; {report.profile}: the step on that drive; memory: the "
            "agent's peak\n"
        )
        + f"copying the weights out: {report.encode_seconds:.4g} s; layers: how many were measured, and how much "
        "longer a pass took that was watched for it, which is taken off",
        soft_wrap=True,
    )
    for again in report.verified:
        console.print(
            f"batch {again.batch_size} again: {again.measured_seconds:.6g} s, the table says "
            f"{again.table_seconds:.6g} s ({again.relative_difference:+.2%}, {report.tolerance:.0%} allowed)"
        )
    console.print(f"{report.wall_seconds:.0f} s of wall time; table: {report.path}", soft_wrap=True)


def _layers_cell(row: CalibrationOutcome) -> str:
    """Return how many layers were measured, and how much longer the forward and backward pass took for that."""
    if row.layers is None:
        return "-"
    whole = row.reference_seconds.forward + row.reference_seconds.backward
    watched = row.layers.watched.forward + row.layers.watched.backward
    longer = f" ({watched / whole - 1:+.1%})" if whole else ""
    return f"{len(row.layers.layers)}{longer}"


def print_report(report: ReportOutput) -> None:
    """Print where the report is, and the comparison in short."""
    for note in report.notes:
        console.print(note, soft_wrap=True)
    comparison = report.comparison
    if comparison.band:
        slow, fast = comparison.band[-1], comparison.band[0]
        console.print(
            f"against a host that trains alone: {slow.speedup:.3g} to {fast.speedup:.3g} times its speed, "
            f"bytes over the link saved: {format_share(comparison.saved_share)}",
            soft_wrap=True,
        )
    elif comparison.reason:
        console.print(f"no comparison of time and energy: {comparison.reason}", soft_wrap=True)
    console.print(f"report: {report.report}", soft_wrap=True)
