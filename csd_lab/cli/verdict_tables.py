"""Tables of verdicts on published headlines, and of what they rest on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from firmware_agent.common.units import format_bytes
from host.core.console import console

if TYPE_CHECKING:
    from csd_lab.reproduce.hypertune_result import Prediction, TrafficNeed
    from csd_lab.reproduce.verdict import HeadlineVerdict

_NAMES = {
    "speedup": "speed-up",
    "energy_factor": "energy factor",
    "traffic": "link traffic",
    "hit_rate": "hit rate",
    "gain": "gain",
    "host_rate": "host's records/s",
    "drive_rate": "a drive's records/s",
    "ratio": "host / drive",
}


def print_verdicts(verdicts: Sequence[HeadlineVerdict]) -> None:
    """Print the verdict on each headline, and below the table why."""
    print_table(
        "Verdicts: published headlines against predictions that do not know them",
        ("published result", "figure", "published", "predicted", "verdict"),
        (
            (
                row.source.partition(":")[0],
                _NAMES[row.figure],
                f"{row.published:.3g}",
                "-" if row.middle is None else f"{row.low:.2f} to {row.high:.2f}, middle {row.middle:.2f}",
                row.verdict,
            )
            for row in verdicts
        ),
        left=2,
    )
    for row in verdicts:
        name = f"{row.source.partition(':')[0]}, {_NAMES[row.figure]}"
        console.print(f"* {name}: {row.verdict}: {row.reason}", markup=False)


def print_predictions(rows: Sequence[Prediction]) -> None:
    """Print what is predicted for each model, and the inputs that matter most."""
    print_table(
        "Predicted, all drives (simulated)",
        ("model", "figure", "low", "middle", "high", "cycles", "depends most on"),
        (
            (
                row.model,
                _NAMES[row.figure],
                *(f"{value:.3g}" for value in (row.low, row.middle, row.high)),
                row.cycles,
                ", ".join(f"{each.input} ({each.low:.3g} to {each.high:.3g})" for each in row.influences[:2]),
            )
            for row in rows
        ),
    )


def print_traffic_needs(rows: Sequence[TrafficNeed]) -> None:
    """Print at which record size and batch the published traffic holds."""
    print_table(
        "What 68 % fewer bytes over the host's link take",
        ("model", "who trains", "host reads", "batch of a drive", "of all", "or records of", "with batch", "holds"),
        (
            (
                row.model,
                row.case,
                f"{row.host_share:.1%}",
                "none" if row.drive_batch is None else f"{row.drive_batch}",
                "-" if row.global_batch is None else f"{row.global_batch}",
                "none" if row.at_batch_record_bytes is None else format_bytes(row.at_batch_record_bytes),
                f"{row.at_batch}",
                "yes" if row.holds else "no",
            )
            for row in rows
        ),
        left=2,
    )


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 0) -> None:
    """Print a table of figures; the first `left` columns are text, and a row without cells is a line."""
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row) if row else table.add_section()
    console.print(table)
