"""The core model beside published boards: ``python -m csd_lab.generate.boards`` writes docs/boards.md and its picture.

It reads docs/boards.json, a `BoardFidelity` as ``csd-emu fidelity --json`` prints it with all programs.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import msgspec

from csd_lab.fidelity.board_fidelity import (
    BANDWIDTH,
    KIND_NAMES,
    LATENCY,
    NETWORK,
    THREADS,
    BoardFidelity,
    ComparedFigure,
)
from host.cli.schemas import check_clone

FOLDER = Path(__file__).parents[2] / "docs"
COLOURS = ("#2f6f9f", "#c8553d", "#4b8b3b", "#8a5fa8", "#b58a1f", "#3f9c9c")
_WIDTH, _HEIGHT, _LEFT, _TOP, _SIDE = 620, 470, 60, 20, 400
# The axes of the picture, in milliseconds.
_LEAST, _MOST = 10.0, 2000.0
_ROUND = (10, 20, 50, 100, 200, 500, 1000, 2000)

_HEAD = """# The core model beside published boards

<!-- Generated from docs/boards.json by python -m csd_lab.generate.boards. -->

What the [core model](cycles.md) predicts for boards that others have measured (predicted: clock `counted`, core model
`cycles`; published: clock `wall`), counted on 2026-11-26 and 27, board by board. `csd-emu fidelity --ncnn FOLDER
--coremark PROGRAM` compares the same, with `--on user@board` also [a board of yours](fidelity.md#a-board-of-yours);
`csd_lab/fidelity/published_boards.yaml` has every published figure with its source. A board's clock is the one that its
source states. Its DRAM, and in the comparison of memory the size of its second level, are set from published memory
figures that are not judged here; latencies of caches, prefetcher and all else are the model's own, for all boards.

"""


def load_compared() -> BoardFidelity:
    """Return what docs/boards.json holds."""
    return msgspec.json.decode((FOLDER / "boards.json").read_bytes(), type=BoardFidelity)


def files() -> dict[Path, str]:
    """Return path -> text of all that is generated."""
    report = load_compared()
    networks, threads = (_of_kind(report, kind) for kind in (NETWORK, THREADS))
    parts = [_HEAD, _summary(report), "\n![Predicted and published times](boards.svg)\n"]
    parts += ["\n## Networks, one thread\n\n", *_by_board(networks, "ms")]
    parts += ["\n## Speed-up by threads\n\n", *_by_board(threads, "times")]
    parts += ["\n## Memory\n\n", *_memory([*_of_kind(report, BANDWIDTH), *_of_kind(report, LATENCY)])]
    return {FOLDER / "boards.md": "".join(parts), FOLDER / "boards.svg": draw(networks)}


def _of_kind(report: BoardFidelity, kind: str) -> list[ComparedFigure]:
    return [each for each in report.figures if each.kind == kind]


def _summary(report: BoardFidelity) -> str:
    lines = ["| compared | figures | median error | worst |\n|---|---|---|---|\n"]
    for kind, name in KIND_NAMES.items():
        if kind not in report.median_errors:
            continue
        count = sum(each.kind == kind and each.judged for each in report.figures)
        lines.append(f"| {name} | {count} | {report.median_errors[kind]:.1%} | {report.worst_errors[kind]:.0%} |\n")
    return "".join(lines)


def _by_board(figures: Sequence[ComparedFigure], unit: str) -> Iterable[str]:
    boards = list(dict.fromkeys(each.board for each in figures))
    yield f"Predicted / published {unit} (error):\n\n| | {' | '.join(boards)} |\n|---|{'---|' * len(boards)}\n"
    cells = {(each.name.partition(" by ")[0], each.board): each for each in figures}
    for name in sorted({name for name, _ in cells}):
        row = (cells.get((name, board)) for board in boards)
        yield f"| {name} | {' | '.join(_cell(each) if each else '-' for each in row)} |\n"
    errors = {board: [abs(each.error) for each in figures if each.board == board] for board in boards}
    yield f"| **median error** | {' | '.join(f'{statistics.median(errors[board]):.1%}' for board in boards)} |\n"
    for board in boards:
        first = next(each for each in figures if each.board == board)
        yield f"\n* {board}: {first.source}{'' if first.judged else '; not judged, a parameter was set from it'}"
    yield "\n"


def _cell(each: ComparedFigure) -> str:
    return f"{_short(each.predicted)} / {_short(each.published)} ({each.error:+.0%})"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _memory(figures: Sequence[ComparedFigure]) -> Iterable[str]:
    yield "Errors of what one core sees; `*`: the board's DRAM was set from it, or it follows from that.\n"
    strided = [each for each in figures if each.name.startswith("strided")]
    for rows in ([each for each in figures if each not in strided], strided):
        yield from _errors(rows)


def _errors(figures: Sequence[ComparedFigure]) -> Iterable[str]:
    names = list(dict.fromkeys(each.name for each in figures))
    yield f"\n| | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"
    for board in dict.fromkeys(each.board for each in figures):
        errors = {
            each.name: f"{each.error:+.0%}{'' if each.judged else ' *'}" for each in figures if each.board == board
        }
        yield f"| {board} | {' | '.join(errors.get(name, '-') for name in names)} |\n"


def draw(figures: Sequence[ComparedFigure]) -> str:
    """Return a picture of predicted over published milliseconds, with a band of a tenth on each side."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="12"><title>Predicted and published times of networks</title>\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>\n'
    ]
    corners = [(_LEAST, _LEAST * 0.9), (_MOST, _MOST * 0.9), (_MOST, _MOST * 1.1), (_LEAST, _LEAST * 1.1)]
    band = " ".join(f"{_x(x):.1f},{_y(min(max(y, _LEAST), _MOST)):.1f}" for x, y in corners)
    parts.append(f'<polygon points="{band}" fill="#e8eef3"/>\n')
    for tick in _ROUND:
        x, y = _x(tick), _y(tick)
        parts.append(
            f'<path d="M{x:.1f} {_TOP}V{_TOP + _SIDE}M{_LEFT} {y:.1f}H{_LEFT + _SIDE}" stroke="#dddddd"/>'
            f'<text x="{x:.1f}" y="{_TOP + _SIDE + 16}" text-anchor="middle">{tick}</text>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick}</text>\n'
        )
    boards = list(dict.fromkeys(each.board for each in figures))
    for board, colour in zip(boards, itertools.cycle(COLOURS), strict=False):
        line = _TOP + 14 + 20 * boards.index(board)
        parts.append(f'<circle cx="{_LEFT + _SIDE + 16}" cy="{line - 4}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + _SIDE + 26}" y="{line}">{escape(board)}</text>\n')
        for each in figures:
            if each.board == board:
                place = f'cx="{_x(each.published):.1f}" cy="{_y(each.predicted):.1f}"'
                parts.append(f'<circle {place} r="4" fill="{colour}" fill-opacity="0.7"/>\n')
    middle = _LEFT + _SIDE / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 12}" text-anchor="middle">published ms (band: 10 %)</text>\n')
    turned = f'transform="rotate(-90 16 {_TOP + _SIDE / 2})"'
    parts.append(f'<text x="16" y="{_TOP + _SIDE / 2}" text-anchor="middle" {turned}>predicted ms</text>\n</svg>\n')
    return "".join(parts)


def _x(milliseconds: float) -> float:
    return _LEFT + _SIDE * math.log(milliseconds / _LEAST) / math.log(_MOST / _LEAST)


def _y(milliseconds: float) -> float:
    return _TOP + _SIDE - (_x(milliseconds) - _LEFT)


if __name__ == "__main__":
    check_clone(FOLDER / "development")
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
