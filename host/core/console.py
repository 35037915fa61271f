"""Console output of all commands, for people or as JSON: progress, the summary of a run, failures, and the log."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
import traceback
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import IO, Any, cast

import msgspec
from rich.box import SIMPLE
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.style import Style
from rich.table import Table

from firmware_agent.common.errors import ModelError, PluginError, UserCodeFailed
from firmware_agent.common.folded_traceback import MAX_TRACEBACK_BYTES, bounded, format_user_traceback, names_user_code
from firmware_agent.common.units import format_bytes
from host.core.failures import Failure, describe_failures
from host.core.figure_bands import IN_BRACKETS, format_band
from host.core.plain_text import plain, plain_json
from host.core.summary import SYNC, Summary, format_accuracy

log = logging.getLogger(__name__)

LOG_VARIABLE = "CSD_LOG"
_OURS = ("csd_emu", "csd_lab", "firmware_agent", "host")
_ERROR_BEGINS = "csd-emu: "  # so does every message with which a command ends
MOST_WIDTH = 200
_context: dict[str, Any] = {"run": None, "round": None}


class PlainConsole(Console):
    """A console on which nothing steers the terminal but rich itself: whatever is printed passes through `render`.

    Nothing is left out where a terminal is narrow, or there is none: lines are long, and tables as wide as they are.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects, tables whole."""
        for each in objects:
            if isinstance(each, Table):
                each.width = self.measure(each, options=self.options.update_width(MOST_WIDTH)).maximum
        super().print(
            *objects, **{"soft_wrap": not isinstance(objects[0] if objects else "", Table), "crop": False} | options
        )

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of `renderable`, their text plain, and none a link."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), _without_link(segment.style))


def _without_link(style: Style | None) -> Style | None:
    return style if style is None or style.link is None else style.update_link(None)


# Else ":train:" in `my_net.py:train: line 1` is shown as a train.
console = PlainConsole(highlight=False, emoji=False)
errors = PlainConsole(stderr=True, highlight=False, emoji=False)


class PlainFormatter(logging.Formatter):
    """Formats log lines, and what they tell of errors, as plain text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one record's lines."""
        return plain(super().format(record))


def log_to_terminal() -> None:
    """Have warnings of the log, and what no command has caught, on standard error as plain text."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    sys.excepthook = _show_exception


def _show_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(plain("".join(traceback.format_exception(kind, error, trace))))


def print_line(text: str) -> None:
    """Print a line as it is, at once, for whoever reads it from a pipe."""
    print(plain(text), file=sys.stdout, flush=True)


class StageProgress:
    """A `csd_emu.util.progress.Progress` on the terminal; on a pipe, one line per stage. A context manager."""

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
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(20),
                TimeElapsedColumn(),
            )
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


def print_summary(summary: Summary) -> None:
    """Print how the run ended, as keys and values, and its failures."""
    verdict = "[green]reached[/]" if summary.reached else "[red]missed[/]"
    target = "" if summary.target_accuracy is None else f", target {summary.target_accuracy:.3f} {verdict}"
    after = f"after {summary.rounds} rounds{target}"
    classified = summary.accuracy is not None or not summary.rounds
    first = ("accuracy", summary.accuracy) if classified else ("loss on held-out records", summary.test_loss)
    figures = {escape(name.replace("_", " ")): format_accuracy(v) for name, v in (first, *summary.metrics.items())}
    rows = {name: f"[bold]{value}[/] {after}" for name, value in figures.items()}
    if summary.rounds:
        rows |= _list_work(summary)
    if summary.refusals:
        refused = escape(", ".join(f"{device} {count}" for device, count in summary.refusals.items()))
        rows["contributions refused"] = f"[yellow]{refused}[/] (why: report.html, records.jsonl)"
    rows["wall time"] = f"{summary.wall_seconds:.1f} s of the whole command; it says nothing of a drive's speed"
    rows["run directory"] = escape(summary.run_directory)
    console.print()
    for key, value in rows.items():
        console.print(f"{key:27}{value}")
    print_failures(summary.failures)


def _list_work(summary: Summary) -> dict[str, str]:
    """Return what the rounds of a run came to, by what it is called."""
    clock, who = escape(summary.clock_text), "devices" if summary.mode == SYNC else "drives"
    rows = {
        "records": f"{summary.samples}",
        "device seconds": f"{_figure(summary, 'device_seconds', '.2f')} ({clock}), {len(summary.device_seconds)} {who}",
        "records per device second": f"{_figure(summary, 'records_per_device_second', '.1f')} ({clock})",
        "array seconds": f"{_figure(summary, 'array_seconds', '.2f')} ({clock}, with flash and link)",
        "records per array second": f"{_figure(summary, 'records_per_array_second', '.1f')} ({clock})",
        "energy": f"{_figure(summary, 'energy_joules', '.0f')} J by the power model, host included",
        "energy per record": f"{_figure(summary, 'joules_per_record', '.4g')} J",
        "bytes over the link": f"{format_bytes(summary.host_link_bytes)}, "
        f"{format_bytes(summary.host_link_bytes_per_record)} per record",
    }
    if summary.mode == SYNC:
        rows["synchronous steps"] = f"{summary.steps}, batch sizes retuned {summary.retunes} times"
        if summary.chosen is not None:
            rows["devices chosen to train"] = f"{escape(summary.chosen)} (why: report.html)"
        if summary.servers is not None:
            together = summary.servers_samples or 0
            rate = together / summary.array_seconds if summary.array_seconds else 0.0
            rows["servers"] = f"{len(summary.servers)} ({escape(', '.join(summary.servers))}); all else is this one's"
            rows["records of all servers"] = f"{together}, {rate:.1f} per array second ({clock})"
    if summary.bands:
        rows["in brackets"] = IN_BRACKETS.removeprefix("in brackets: ")
    if (sampling := summary.sampling) is not None:
        rows["sampling"] = f"[yellow]{escape(sampling.text)}[/]" if sampling.not_counted else escape(sampling.text)
    return rows


def _figure(summary: Summary, name: str, spec: str) -> str:
    """Return a figure of a run with its band, the sum of one by device."""
    value = getattr(summary, name)
    return format_band(format(sum(value.values()) if isinstance(value, dict) else value, spec), summary.bands.get(name))


def figures_table(title: str, columns: Iterable[str], left: Collection[str]) -> Table:
    """Return a table of figures: its columns are aligned to the right, but for those named in `left`."""
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table


def print_failure(failure: Failure) -> None:
    """Print a failure as it comes for the first time, with its traceback."""
    errors.print(f"csd-emu: {failure.headline}", style="bold red", markup=False)
    if failure.traceback:
        errors.print(failure.traceback, markup=False)


def print_failures(failures: Sequence[Failure]) -> None:
    """Print the failures of a run that has ended; nothing if there were none."""
    if failures:
        told = f"the run failed: {describe_failures(failures)} (tracebacks: report.html, summary.json)"
        console.print(told, style="bold red", markup=False)


def print_user_traceback(error: BaseException) -> None:
    """Print the traceback of the user's code that an error which ends the command is about, if there is one."""
    told = error.traceback if isinstance(error, UserCodeFailed) else ""
    if not told and isinstance(error, ModelError | PluginError | UserCodeFailed) and names_user_code(error):
        told = format_user_traceback(error)
    if told:
        errors.print(bounded(told, MAX_TRACEBACK_BYTES), markup=False)


def print_json(output: msgspec.Struct) -> None:
    """Print one output as one indented JSON object."""
    sys.stdout.buffer.write(plain_json(msgspec.json.format(msgspec.json.encode(output))) + b"\n")
    sys.stdout.flush()


def log_as_json(errors: Console) -> None:
    """From now on write the log, and all that is said on standard error by way of `errors`, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.getLogger().addHandler(handler)
    for name in _OURS:
        logging.getLogger(name).setLevel(logging.INFO)
    logging.captureWarnings(True)
    errors.file = cast(IO[str], _Messages())
    sys.excepthook = _log_exception


def tell(**context: Any) -> None:
    """Name what lines are about from now on: `run`, the name of its directory, and `round`, the last that ended."""
    _context.update(context)


class JsonLines(logging.Formatter):
    """A log record as one line of JSON.

    Keys: ``time`` (UTC), ``level``, ``logger``, ``run``, ``drive``, ``round`` (null where there is none), ``event`` (of
    a run's events only), ``message``, and ``traceback`` where there is one. Control characters are escaped.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "run": _context["run"],
            "drive": getattr(record, "drive", None),
            "round": getattr(record, "round", _context["round"]),
        }
        if event := getattr(record, "event", None):
            line["event"] = event
        line["message"] = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            line["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line)


class _Messages(io.TextIOBase):
    """What takes lines that are meant for people, and logs them."""

    def __init__(self) -> None:
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(None, map(str.strip, lines)):
            log.log(logging.ERROR if line.startswith(_ERROR_BEGINS) else logging.INFO, "%s", line)
        return len(text)


def _log_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))
