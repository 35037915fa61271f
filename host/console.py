"""What a person sees: progress lines, the live table of rounds, the summary."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from firmware_agent.units import format_bytes
from host.records import RoundRecord
from host.summary import Summary

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


class StageProgress:
    """A `csd_emu.progress.Progress` on the terminal; on a pipe, one line per stage. A context manager."""

    def __init__(self, quiet: bool = False) -> None:
        """Show nothing if `quiet`."""
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stage, self._begin = "", 0.0

    def __enter__(self) -> StageProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(failed=kind is not None)

    def stage(self, text: str) -> None:
        """Begin a stage; an empty one only ends the stage before, and leaves the terminal to others."""
        self._finish()
        self._stage, self._begin = text, time.monotonic()
        if text and not self._quiet and errors.is_terminal:
            columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn()
            self._bar = Progress(*columns, console=errors, transient=True)
            self._task = self._bar.add_task(text, total=None)
            self._bar.start()

    def advance(self, fraction: float) -> None:
        """Show how much of the stage is done."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=1.0, completed=fraction)

    def _finish(self, failed: bool = False) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None
        if self._stage and not self._quiet:
            mark = "[red]✗[/]" if failed else "[green]✓[/]"
            errors.print(f"{mark} {self._stage} [dim]({time.monotonic() - self._begin:.1f} s)[/]")
        self._stage = ""


class RoundTable:
    """The live table of a run; on a pipe, plain lines as rounds end. A context manager."""

    def __init__(self, clock: str, quiet: bool = False) -> None:
        """Prepare a table whose device seconds are of `clock`."""
        self._clock, self._quiet = clock, quiet
        self._rounds: list[RoundRecord] = []
        self._live: Live | None = None

    def __enter__(self) -> RoundTable:
        if self._quiet:
            return self
        if console.is_terminal:
            self._live = Live(self._render(), console=console, refresh_per_second=4)
            self._live.start()
        else:
            print(self._plain_header(), file=sys.stdout, flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def add(self, record: RoundRecord) -> None:
        """Show one more round."""
        self._rounds.append(record)
        if self._live is not None:
            self._live.update(self._render())
        elif not self._quiet:
            print(self._plain_row(record), file=sys.stdout, flush=True)

    def _render(self) -> Table:
        caption = "images / device s: mean of a drive; array s: compute, flash and link; wall s: cost of emulation"
        table = Table(caption=caption)
        rate, seconds = f"images / device s\n({self._clock})", f"array s\n({self._clock})"
        for name in ("round", "accuracy", "loss", "drives", rate, seconds, "joules\n(modelled)", "wall s"):
            table.add_column(name, justify="right")
        for record in self._rounds:
            table.add_row(*_cells(record))
        return table

    def _plain_header(self) -> str:
        rate, seconds = f"images/device s ({self._clock})", f"array s ({self._clock})"
        return _columns(("round", "accuracy", "loss", "drives", rate, seconds, "joules", "wall s"))

    def _plain_row(self, record: RoundRecord) -> str:
        return _columns(_cells(record))


def print_summary(summary: Summary) -> None:
    """Print how the run ended."""
    verdict = "[green]reached[/]" if summary.reached else "[red]missed[/]"
    target = (
        f"target {summary.target_accuracy:.3f} {verdict}" if summary.target_accuracy is not None else "no target set"
    )
    devices = sum(summary.device_seconds.values())
    console.print(f"\naccuracy [bold]{summary.accuracy:.4f}[/] after {summary.rounds} rounds, {target}")
    console.print(
        f"{summary.samples} images in {devices:.2f} device seconds ({summary.clock}) "
        f"over {len(summary.device_seconds)} drives: {summary.images_per_device_second:.1f} images per device second",
        soft_wrap=True,
    )
    console.print(
        f"the array took {summary.array_seconds:.2f} s ({summary.clock}, with flash and link) and "
        f"{summary.energy_joules:.0f} J by the power model, host included; "
        f"{format_bytes(summary.host_link_bytes)} crossed the link",
        soft_wrap=True,
    )
    console.print(
        f"{summary.wall_seconds:.1f} s of wall time for the whole command; it says nothing of a drive's speed"
    )
    console.print(f"run directory: {summary.run_directory}", soft_wrap=True)


def _columns(cells: tuple[str, ...]) -> str:
    widths = (5, 8, 7, 6, 26, 18, 7, 7)
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _cells(record: RoundRecord) -> tuple[str, ...]:
    return (
        str(record.round),
        f"{record.accuracy:.4f}",
        f"{record.test_loss:.4f}",
        str(len(record.devices)),
        f"{record.images_per_device_second:.1f}",
        f"{record.array_seconds:.3f}",
        f"{record.total_joules:.0f}",
        f"{record.wall_seconds:.1f}",
    )
