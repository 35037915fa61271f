"""The live table of a run's rounds: federated ones, or synchronous ones with their steps."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from csd_emu.config.array_file import SAMPLED
from host.core.console import console, print_line
from host.core.figure_bands import format_band
from host.core.records import EventKind, EventRecord, RetuneRecord, RoundRecord
from host.core.summary import FEDERATED, SYNC
from host.monitoring.decision_text import describe_batches
from host.monitoring.run_listener import RunListener

# Columns of figures beside the loss; all are in the records.
_MOST_FIGURES = 3
# Of a terminal, in which the last ones are seen; records.jsonl has all.
_MOST_ROWS = 500
_TOLD = {EventKind.REJECTED, EventKind.DIVERGING, EventKind.SET_ASIDE}


@dataclass(frozen=True)
class _Column:
    """A column: its heading in the table and in plain lines, its width there, and what it shows of a round."""

    heading: str
    plain: str
    width: int
    cell: Callable[[RoundRecord], str]


class RoundTable(RunListener):
    """The live table of a run; on a pipe, plain lines as rounds end. A context manager."""

    def __init__(
        self, clock: str, quiet: bool = False, mode: str = FEDERATED, figures: Sequence[str] = ("accuracy",)
    ) -> None:
        """Prepare a table whose device seconds are of `clock`, for a job of this `mode` that is judged by `figures`."""
        self._columns, self._caption = _columns(clock, mode, figures), _CAPTIONS[mode]
        self._quiet = quiet
        self._rows: deque[list[str]] = deque(maxlen=_MOST_ROWS)
        self._live: Live | None = None

    def __enter__(self) -> RoundTable:
        if console.is_terminal and not self._quiet:
            self._live = Live(self._render(), console=console, refresh_per_second=4)
            self._live.start()
        elif not self._quiet:
            self._print_plain([column.plain for column in self._columns])
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def add_round(self, record: RoundRecord) -> None:
        """Show one more round."""
        cells = [column.cell(record) for column in self._columns]
        if self._live is not None:
            self._rows.append(cells)
            self._live.update(self._render())
        elif not self._quiet:
            self._print_plain(cells)

    def add_retune(self, record: RetuneRecord) -> None:
        """Say that batch sizes change, as soon as it is known."""
        self._say(f"from step {record.step}: {describe_batches(record)} ({record.reason})")

    def add_event(self, event: EventRecord, listed: bool = True) -> None:
        """Say that something of a drive was not taken, and why."""
        if listed and event.what in _TOLD:
            self._say(f"{event.device}: {event.what}: {event.detail}")

    def _say(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(escape(text))
        elif not self._quiet:
            print_line(text)

    def _render(self) -> Table:
        table = Table(caption=self._caption)
        for column in self._columns:
            table.add_column(column.heading, justify="right")
        for cells in self._rows:
            table.add_row(*cells)
        return table

    def _print_plain(self, cells: list[str]) -> None:
        print_line(" ".join(f"{cell:>{column.width}}" for cell, column in zip(cells, self._columns, strict=True)))


def _columns(clock: str, mode: str, figures: Sequence[str]) -> list[_Column]:
    first = [
        _Column("round", "round", 5, lambda record: str(record.round)),
        *map(_figure_column, figures[:_MOST_FIGURES]),
        _Column("loss", "loss", 7, lambda record: f"{record.test_loss:.4f}"),
    ]
    seconds = f"array s ({clock})"
    last = [
        _Column(f"array s\n({clock})", seconds, max(31 if SAMPLED in clock else 25, len(seconds)), _array_seconds),
        _Column(
            "joules\n(modelled)",
            "joules",
            21,
            lambda record: format_band(f"{record.total_joules:.0f}", record.bands.get("energy_joules")),
        ),
        _Column("wall s", "wall s", 7, lambda record: f"{record.wall_seconds:.1f}"),
    ]
    return [*first, *(_sync_columns if mode == SYNC else _federated_columns)(clock), *last]


def _figure_column(name: str) -> _Column:
    def cell(record: RoundRecord) -> str:
        value = record.accuracy if name == "accuracy" else record.metrics.get(name, math.nan)
        return f"{value:.4f}"

    return _Column(name.replace("_", " "), name, max(8, len(name)), cell)


def _federated_columns(clock: str) -> list[_Column]:
    rate = f"records/device s ({clock})"
    return [
        _Column("drives", "drives", 6, lambda record: str(len(record.devices))),
        _Column(
            f"records / device s\n({clock})",
            rate,
            max(26, len(rate)),
            lambda record: f"{record.records_per_device_second:.1f}",
        ),
    ]


def _sync_columns(clock: str) -> list[_Column]:
    rate = f"records/array s ({clock})"
    return [
        _Column("steps", "steps", 6, lambda record: str(len(record.steps))),
        # Of the middle step: an epoch's last one is smaller than the batches.
        _Column(
            "batch",
            "batch",
            6,
            lambda record: str(statistics.median_low(s.samples for s in record.steps)) if record.steps else "-",
        ),
        _Column(
            f"records / array s\n({clock})",
            rate,
            max(25, len(rate)),
            lambda record: (
                f"{sum(s.samples for s in record.steps) / record.array_seconds:.1f}" if record.array_seconds else "-"
            ),
        ),
        _Column(
            "imbalance",
            "imbalance",
            9,
            lambda record: f"{statistics.fmean(s.imbalance for s in record.steps):.1%}" if record.steps else "-",
        ),
        _Column("retunes", "retunes", 7, lambda record: str(len(record.retunes))),
    ]


def _array_seconds(record: RoundRecord) -> str:
    seconds = f"{record.array_seconds:.3f}"
    marked = seconds if record.sampling is None else record.sampling.mark(seconds)
    return format_band(marked, record.bands.get("array_seconds"))


_CAPTIONS = {
    FEDERATED: "records / device s: mean of a drive; array s: compute, flash and link; wall s: cost of emulation",
    SYNC: "batch: of the middle step; imbalance: (max - min) / max of compute seconds, mean of the steps; "
    "array s: compute, flash and link; wall s: cost of emulation",
}
