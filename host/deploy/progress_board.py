"""The progress of `csd-emu deploy` on a terminal: one line a drive that is being worked on."""

from __future__ import annotations

import threading

from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from host.core.console import errors
from host.deploy.verb_protocol import VerbOutcome


class LiveBoard:
    """A `host.deploy.run_verb.Board`; says nothing where there is no terminal. A context manager."""

    def __init__(self, quiet: bool = False) -> None:
        """Show nothing if `quiet`."""
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        self._bar: Progress | None = None
        if not quiet and errors.is_terminal:
            columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn()
            self._bar = Progress(*columns, console=errors, transient=True)
            self._all = self._bar.add_task("all drives", total=None)

    def __enter__(self) -> LiveBoard:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, drives: int) -> None:
        """See `Board`."""
        if self._bar is not None:
            self._bar.update(self._all, total=drives)
            self._bar.start()

    def show(self, drive: str, what: str, share: float | None) -> None:
        """See `Board`."""
        if self._bar is None:
            return
        text = escape(f"{drive}: {what}")
        with self._lock:
            task = self._tasks.get(drive)
            if task is None:
                task = self._tasks[drive] = self._bar.add_task(text, total=None)
        self._bar.update(task, description=text, total=None if share is None else 1.0, completed=share or 0.0)

    def finish(self, outcome: VerbOutcome) -> None:
        """See `Board`."""
        if self._bar is None:
            return
        with self._lock:
            task = self._tasks.pop(outcome.drive, None)
        if task is not None:
            self._bar.remove_task(task)
        self._bar.advance(self._all)
