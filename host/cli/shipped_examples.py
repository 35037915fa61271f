"""The examples that ship with csd-emu, for a user who has the installed package alone, and lists by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.box import SIMPLE
from rich.table import Table

from csd_emu.util.paths import packaged_folder
from firmware_agent.common.errors import ConfigurationError
from host.core.console import console
from host.core.owned_files import writing


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
        console.print(f"wrote {path}", markup=False)


MONITORING = "monitoring"
_SCHEMAS_IN_CLONE = b"$schema=../../docs/schemas/"
_TITLES = {MONITORING: "Prometheus' recording and alerting rules, and Grafana's dashboards"}


@dataclass(frozen=True)
class Example:
    """One example: its `name`, what it shows, and its files by their place below the folder that is written."""

    name: str
    title: str
    files: dict[Path, Path]


def list_examples() -> dict[str, Example]:
    """Return the examples by name: every folder of examples/, and the files for monitoring."""
    root = packaged_folder("host", "examples", "examples")
    found = {folder.name: _example(folder) for folder in sorted(root.iterdir()) if folder.is_dir()}
    files = {
        Path(part) / path.name: path
        for part, place in (("rules", "images/prometheus/rules"), ("dashboards", "images/grafana/dashboards"))
        for path in sorted(packaged_folder("host", f"monitoring/{part}", place).iterdir())
    }
    return found | {MONITORING: Example(MONITORING, _TITLES[MONITORING], files)}


def list_pages() -> dict[str, Path]:
    """Return the pages of the documentation by name; of two of one name that which lies higher."""
    return {
        path.stem: path
        for path in sorted(packaged_folder("host", "docs", "docs").rglob("*.md"), key=lambda path: -len(path.parts))
    }


def write_example(name: str, folder: Path) -> list[Path]:
    """Write an example's files into `folder`, which is made; nothing that is there is overwritten.

    What an editor checks them by, in the first lines, is the installed JSON schema.

    Raises:
        ConfigurationError: there is none of this name, or a file is there already; nothing was written.
        EnvironmentUnfit: the files cannot be written.
    """
    if name not in (examples := list_examples()):
        raise ConfigurationError(f"example {name!r} is not known; choose one of: {', '.join(examples)}")
    files = {folder / place: source for place, source in examples[name].files.items()}
    if there := [path for path in files if path.exists()]:
        raise ConfigurationError(f"{there[0]} is there already, nothing was written; give another folder")
    schemas = f"$schema={packaged_folder('host', 'docs', 'docs') / 'schemas'}/"
    with writing(folder, "give another folder"):
        for path, source in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.read_bytes().replace(_SCHEMAS_IN_CLONE, schemas.encode()))
    return list(files)


def _example(folder: Path) -> Example:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return Example(folder.name, _title(folder), {path.relative_to(folder): path for path in paths})


def _title(folder: Path) -> str:
    """Return the first sentence of the first of its files that begins with a comment or a title."""
    for name in ("README.md", "job.yaml", "array.yaml"):
        if (path := folder / name).is_file() and (line := path.read_text(encoding="utf-8").partition("\n")[0])[
            :1
        ] == "#":
            return re.split(r"(?<=[.:]) ", line.lstrip("# "), maxsplit=1)[0].rstrip(".:")
    return ""
