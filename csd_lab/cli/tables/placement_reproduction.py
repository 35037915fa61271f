"""The reproduction of placement, for people."""

from __future__ import annotations

from collections.abc import Sequence

from csd_lab.cli.tables.reproduction import make_table, print_files, print_notes
from csd_lab.reproduce.placement_result import PlacementReport, Placing, RanPlacement
from firmware_agent.common.units import format_bytes
from host.core.console import print_whole


def print_placement_reproduction(report: PlacementReport) -> None:
    """Print headlines, traffic, one table per model, and notes."""
    _print_traffic(report)
    for model in dict.fromkeys(row.model for row in report.placing):
        _print_placing([row for row in report.placing if row.model == model])
    if report.ran:
        _print_ran(report.ran)
    table = make_table("Published beside ours: speed-up by placement", ("published result", "published", "ours", "at"))
    table.columns[0].justify = "left"
    for row in report.beside:
        table.add_row(
            row.source, row.published, f"{row.ours_low:.2f} to {row.ours_high:.2f} ({row.basis})", row.ours_at
        )
    print_whole(table)
    print_notes(report.notes)
    print_files(report.files, report.wall_seconds, report.clock)


def _print_traffic(report: PlacementReport) -> None:
    table = make_table(
        "Traffic of one drive's step, full-size models, cut before the linear layers at the end",
        (
            "model",
            "batch",
            "bytes moved",
            "compute moved",
            "crossing",
            "without",
            "with",
            "ratio",
            "counted",
            "derived",
        ),
    )
    for row in report.traffic:
        table.add_row(
            row.model,
            str(row.batch),
            f"{row.moved_parameters:.1%}",
            f"{row.moved_compute:.2%}",
            format_bytes(row.crossing_bytes),
            format_bytes(row.whole_bytes),
            format_bytes(row.cut_bytes),
            f"{row.ratio:.2f}",
            "-" if row.counted_ratio is None else f"{row.counted_ratio:.2f}",
            "-" if row.derived_ratio is None else f"{row.derived_ratio:g}",
        )
    print_whole(table)


def _print_ran(rows: Sequence[RanPlacement]) -> None:
    table = make_table(
        "Scaled models on native drives behind a shaped link: medians of real steps (wall)",
        ("model", "drives", "link", "wire/compute", "host begins with", "whole s", "cut s", "speed-up", "foretold"),
    )
    for row in rows:
        table.add_row(
            row.model,
            str(row.drives),
            f"{format_bytes(row.link_bytes_per_second)}/s",
            f"{row.wire_over_compute:.2g}",
            row.layer or "none",
            f"{row.unmoved_seconds:.3g}",
            f"{row.step_seconds:.3g}",
            f"{row.speedup:.2f}x",
            "-" if row.foretold_speedup is None else f"{row.foretold_speedup:.2f}x",
        )
    print_whole(table)


def _print_placing(rows: Sequence[Placing]) -> None:
    """Print one model: a row for each number of drives, a column for each link."""
    rates = list(dict.fromkeys(row.link_bytes_per_second for row in rows))
    columns = [f"{format_bytes(rate)}/s" for rate in rates]
    table = make_table(
        f"{rows[0].model}, {rows[0].batch} records a drive (simulated): wire/compute, the host's first layer, speed-up",
        ("drives", *columns),
    )
    for drives in dict.fromkeys(row.drives for row in rows):
        own = [row for row in rows if row.drives == drives]
        table.add_row(str(drives), *(_cell(row) for row in own))
    print_whole(table)


def _cell(row: Placing) -> str:
    layer = "none" if row.layer is None else f"{row.layer} {row.speedup:.2f}x"
    return f"{row.wire_over_compute:.2g}: {layer}"
