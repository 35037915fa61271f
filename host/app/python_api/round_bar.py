"""Bar of a run's rounds, in a terminal or a notebook."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_NOTEBOOK = "ipykernel"


@contextlib.contextmanager
def show_rounds(asked: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Give what shows a round's record on a bar; where nobody watches it shows nothing."""
    if not asked or not (sys.stderr.isatty() or _NOTEBOOK in sys.modules):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True, emoji=False), transient=True) as bar:
        task = bar.add_task("start the drives", total=None)

        def show(record: Mapping[str, Any]) -> None:
            accuracy = record.get("accuracy")
            told = "" if accuracy is None else f", accuracy {accuracy:.4f}"
            bar.update(task, description=f"round {record['round']}{told}")

        yield show
