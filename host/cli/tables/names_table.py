"""Tables of names: of benches and examples."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Table

from host.cli.named_text import ExamplesReport, NamedText
from host.core.console import console


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
