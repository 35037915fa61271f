"""Directory guide and picture of the layers: ``python -m csd_lab.generate.development`` writes docs/development."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path

import grimp

from host.cli.schemas import check_clone

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "development"
PACKAGES = ("firmware_agent", "csd_emu", "host", "csd_lab")
COLOURS = {"firmware_agent": "#d8efe2", "csd_emu": "#fff1d6", "host": "#dfe9f5", "csd_lab": "#ece6f7"}
AGENT, SHARED = "firmware_agent", "firmware_agent.common"
Row = tuple[str, ...]
"""Packages and modules of one layer."""

# Folders without Python packages of the product.
OTHERS = {
    "docs": "Documentation; one page per subject, by hand.",
    "docs/development": "Pages for contributors; this one and the picture of the layers are generated.",
    "docs/reference": "Command line, array file and job file, generated from the code.",
    "docs/schemas": "JSON schemas of configuration files and of what commands print, generated.",
    "examples": "One folder per example, with its array and job file; `csd-emu example` copies them.",
    "images": "Recipes of all images.",
    "images/arm": "ARM image of the emulated drives: packages, lock file, init.",
    "images/docker": "Containers of `docker-compose.yml`, with the locked host packages.",
    "images/drive": "What `csd-emu deploy` installs on a real drive: its recipes and its systemd unit.",
    "images/grafana": "Grafana's dashboards (generated) and its configuration.",
    "images/prometheus": "Prometheus' configuration, and its rules (generated).",
    "images/targets": "Plain ARM machines that tests deploy to.",
    "scripts": "Installation of system and Python packages, lock files, counts of the structure.",
    "tests/unit": "Tests of one module; folders mirror the packages.",
    "tests/unit/repository": "Rules of the repository: imports, words, pinned versions, CI.",
    "tests/contract": "What every engine and every policy must do, and the installation on a drive.",
    "tests/integration": "Tests of whole commands, on native drives.",
    "tests/vm": "Tests on real virtual machines (marker `vm`).",
    "tests/compose": "Tests in real containers (marker `compose`).",
    "tests/prometheus": "Tests of alerts, for `promtool`.",
    "tests/support": "Fakes, builders of records, and real servers that tests share.",
    "tests/targets": "Plain machines as targets of `csd-emu deploy`.",
}


def describe_folders() -> dict[str, str]:
    """Return folder -> what it holds, in one line."""
    packages = {
        path.parent.relative_to(ROOT).as_posix(): first_sentence(path)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("__init__.py"))
    }
    return packages | OTHERS


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence, end, _ = " ".join(text.split("\n\n")[0].split()).partition(". ")
    return sentence + "." * bool(end)


def render_directories() -> str:
    """Return the text of the directory guide."""
    lines = [
        "# Directories",
        "",
        "One line per folder. Those of packages are the first sentences of their docstrings; this page is written by",
        "`python -m csd_lab.generate.development`. Import rules: [architecture.md](architecture.md).",
        "",
        "| folder | what it holds |",
        "|---|---|",
        *(f"| `{folder}` | {text} |" for folder, text in describe_folders().items()),
    ]
    return "\n".join(lines) + "\n"


def read_rows() -> list[Row]:
    """Return the layers of `[tool.importlinter]`, from the top down; the agent's lowest part for itself."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    contract = next(each for each in settings["contracts"] if each["id"] == "layers")
    rows = [tuple(name.strip() for name in layer.split(":")) for layer in contract["layers"]]
    return [*rows, (SHARED,)] if (AGENT,) in rows else rows


def row_of(module: str, rows: list[Row]) -> int | None:
    """Return the number of the row that a module belongs to: that of the longest matching name."""
    found = [
        (len(name), number)
        for number, row in enumerate(rows)
        for name in row
        if module == name or module.startswith(f"{name}.")
    ]
    return max(found)[1] if found else None


def find_imports(rows: list[Row]) -> set[tuple[int, int]]:
    """Return (importing row, imported row) for all rows that import another; imports in functions count."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    numbers = {module: row_of(module, rows) for module in graph.modules}
    pairs = {
        (numbers[module], numbers[other])
        for module in graph.modules
        for other in graph.find_modules_directly_imported_by(module)
    }
    return {(one, other) for one, other in pairs if one is not None and other is not None and one != other}


def label(row: Row) -> str:
    """Return how the picture names a row."""
    names = [name for name in row if not name.endswith(".__main__")]
    parent = names[0].rpartition(".")[0]
    return ", ".join([names[0], *(name.removeprefix(f"{parent}.") for name in names[1:])])


def draw_layers(rows: list[Row], imports: set[tuple[int, int]]) -> str:
    """Return the picture as SVG: a row and a column per layer, and a dot where the row imports the column."""
    return "\n".join([*_head(rows), *_cells(rows, imports), "</svg>"]) + "\n"


CELL, LEFT, TOP = 26, 290, 34


def _head(rows: list[Row]) -> Iterator[str]:
    width, height = LEFT + CELL * len(rows) + 8, TOP + CELL * len(rows) + 8
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-labelledby="title desc" font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#1b2733">'
    )
    yield '  <title id="title">Layers of csd-emu and the imports between them</title>'
    yield (
        '  <desc id="desc">A matrix. Rows and columns are the layers, the highest first. A filled dot: the row imports '
        "the column, which is below it. A red ring: an exception, an import that points up.</desc>"
    )
    yield f'  <rect width="{width}" height="{height}" fill="#ffffff"/>'


def _cells(rows: list[Row], imports: set[tuple[int, int]]) -> Iterator[str]:
    right = LEFT + CELL * len(rows)
    for number, row in enumerate(rows):
        top, middle, column = TOP + CELL * number, TOP + CELL * number + CELL // 2, LEFT + CELL * number + CELL // 2
        colour = COLOURS[row[0].partition(".")[0]]
        yield f'  <rect x="4" y="{top + 1}" width="{right - 4}" height="{CELL - 2}" fill="{colour}"/>'
        yield f'  <text x="30" y="{middle + 5}" text-anchor="end">{number + 1}</text>'
        yield f'  <text x="40" y="{middle + 5}">{escape(label(row))}</text>'
        yield f'  <text x="{column}" y="{TOP - 10}" text-anchor="middle">{number + 1}</text>'
        yield f'  <rect x="{column - 11}" y="{middle - 11}" width="22" height="22" fill="#8da2b8"/>'
    for one, other in sorted(imports):
        x, y = LEFT + CELL * other + CELL // 2, TOP + CELL * one + CELL // 2
        mark = 'fill="#44566b"' if other > one else 'fill="none" stroke="#c0392b" stroke-width="2.5"'
        yield f'  <circle cx="{x}" cy="{y}" r="5" {mark}/>'


def files() -> dict[Path, str]:
    """Return path -> text of all that is generated."""
    rows = read_rows()
    return {
        FOLDER / "directories.md": render_directories(),
        FOLDER / "layers.svg": draw_layers(rows, find_imports(rows)),
    }


if __name__ == "__main__":
    check_clone(FOLDER)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
