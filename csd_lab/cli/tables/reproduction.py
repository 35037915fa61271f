"""Reproductions, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from csd_lab.cli.tables.simulation import print_assumed
from csd_lab.reproduce.hypertune_result import BatchEffect, DisturbanceFigures, HypertuneReport, Scaling
from firmware_agent.common.units import format_bytes
from host.core.console import console, print_whole

_NAMES = {"speedup": "speed-up", "energy_factor": "energy factor", "traffic": "link traffic"}


def print_hypertune(report: HypertuneReport) -> None:
    """Print headlines, inputs, one table per model, batches, disturbances, watts, notes and assumptions."""
    _print_inputs(report)
    for model in dict.fromkeys(row.model for row in report.scaling):
        _print_scaling([row for row in report.scaling if row.model == model])
    _print_batches(report.batches)
    _print_disturbed(report.disturbed)
    _print_beside(report)
    _print_needed(report)
    print_notes(report.notes)
    print_assumed(report.assumed)
    print_files(report.files, report.wall_seconds, report.clock)


def make_table(title: str, columns: Sequence[str]) -> Table:
    """Return a table of figures, without rows."""
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_notes(notes: Sequence[str]) -> None:
    """Print what to know when reading a reproduction."""
    for note in notes:
        console.print(f"* {note}", markup=False, soft_wrap=True)


def print_files(files: Sequence[str], wall_seconds: float, clock: str) -> None:
    """Print what was written, and what it all took."""
    for file in files:
        console.print(f"written: {file}", markup=False, soft_wrap=True)
    console.print(f"{wall_seconds:.1f} s of wall time; clock of all else: {clock}")


def _print_inputs(report: HypertuneReport) -> None:
    table = make_table(
        "What it rests on: one drive (emulated: counted seconds, scaled)",
        ("model", "measured batches", "records/s", "memory", "state", "record", "basis"),
    )
    for row in report.inputs:
        table.add_row(
            row.model,
            ",".join(map(str, row.measured_batches)),
            f"{row.drive_records_per_second:.3g}",
            format_bytes(row.peak_memory_bytes),
            format_bytes(row.state_bytes),
            format_bytes(row.record_bytes),
            row.basis,
        )
    print_whole(table)


def _print_scaling(rows: Sequence[Scaling]) -> None:
    """Print one model: the middle of the band, and the ends behind it."""
    ratios = sorted({row.ratio for row in rows})
    table = make_table(
        f"{rows[0].model} (simulated): a host is worth {ratios[1]:.3g} drives ({ratios[-1]:g} to {ratios[0]:g})",
        ("drives", "batch, host's", "records/s", "J/record", "link/record", "speed-up", "energy factor"),
    )
    for number in dict.fromkeys(row.drives for row in rows):
        fast, middle, slow = sorted((row for row in rows if row.drives == number), key=lambda row: row.ratio)
        table.add_row(
            str(number),
            f"{middle.drive_batch}, {middle.host_batch}",
            f"{middle.records_per_second:.4g}",
            f"{middle.joules_per_record:.4g}",
            format_bytes(middle.link_bytes_per_record),
            f"{middle.speedup:.2f} ({slow.speedup:.2f} to {fast.speedup:.2f})",
            f"{middle.energy_factor:.2f} ({slow.energy_factor:.2f} to {fast.energy_factor:.2f})",
        )
    print_whole(table)


def _print_batches(rows: Sequence[BatchEffect]) -> None:
    first = rows[0].figures
    table = make_table(
        f"What the batch does: {first.drives} drives, a host is worth {first.ratio:.3g} (simulated)",
        ("model", "batch, host's", "step s", "exchange", "speed-up", "energy", "link/record", "chosen by"),
    )
    model = first.model
    for row in rows:
        own = row.figures
        if own.model != model:
            table.add_section()
            model = own.model
        table.add_row(
            own.model,
            f"{own.drive_batch}, {own.host_batch}",
            f"{own.step_seconds:.3g}",
            f"{own.exchange_seconds / own.step_seconds:.0%}",
            f"{own.speedup:.2f}",
            f"{own.energy_factor:.2f}",
            format_bytes(own.link_bytes_per_record),
            row.chosen,
        )
    print_whole(table)


def _print_disturbed(rows: Sequence[DisturbanceFigures]) -> None:
    """Print the first model's experiment; throughput as a share of the undisturbed."""
    own = [row for row in rows if row.model == rows[0].model]
    table = make_table(
        f"Disturbance, {own[0].model} (simulated; throughput over before, J per record)",
        (
            "node",
            "f",
            "h",
            "left",
            "HyperTune",
            "retuned",
            "1 - f h",
            "after",
            "found",
            "J before",
            "left",
            "tuned",
            "after",
        ),
    )
    for row in own:
        shares = (row.during_without, row.during_with, row.retuned, row.ceiling, row.after)
        joules = (row.before_joules, row.during_without_joules, row.during_with_joules, row.after_joules)
        table.add_row(
            row.node,
            f"{row.lost:g}",
            f"{row.share:.3f}",
            *(f"{value / row.before:.3f}" for value in shares),
            "-" if row.detect_steps is None else f"{row.detect_steps}",
            *(f"{value:.3g}" for value in joules),
        )
    print_whole(table)
    console.print("found: slow steps until the new batches were in force; HyperTune, after: those steps included")


def _print_beside(report: HypertuneReport) -> None:
    table = make_table(
        f"Published beside ours: {report.server}, all drives, all models",
        ("published result", "figure", "published", "ours: band", "ours: middle"),
    )
    table.columns[0].justify = "left"
    for row in report.beside:
        table.add_row(
            row.source,
            _NAMES[row.figure],
            f"{row.published:.3g}",
            f"{row.ours_low:.2f} to {row.ours_high:.2f} ({row.basis})",
            f"{row.ours_middle:.2f}",
        )
    print_whole(table)


def _print_needed(report: HypertuneReport) -> None:
    table = make_table(
        "Watts that computing may add to each drive if a published result is to hold",
        ("published result", "speed-up / energy factor", "power ratio", "needed", "assumed here"),
    )
    table.columns[0].justify = "left"
    for row in report.needed:
        possible = f"{row.needed_watts:.1f} W" + ("" if row.needed_watts > 0 else " (impossible)")
        table.add_row(
            row.source,
            f"{row.speedup:.3g} / {row.energy_factor:.3g}",
            f"{row.power_ratio:.2f}",
            possible,
            f"{row.assumed_watts:.1f} W",
        )
    print_whole(table)
