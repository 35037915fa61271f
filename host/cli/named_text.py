"""Lists of what a command can be given by name: as ``--json`` prints them, and for people."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.box import SIMPLE
from rich.table import Table

from host.core.console import console


class NamedText(msgspec.Struct, frozen=True):
    """Something that a command can be given by `name`, and what it is."""

    name: str
    text: str


class ExamplesReport(msgspec.Struct, frozen=True):
    """`csd-emu example`: what there is, and the files that were written."""

    examples: list[NamedText]
    written: list[str]


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
