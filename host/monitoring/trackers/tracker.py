"""What a tracker is: three methods, called by one thread; a class of one's own may have a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run when training begins.

    Attributes:
        name: of the run.
        directory: of the run.
        parameters: key of job (and ``array.`` key) -> value, as text.
        tags: ``clock``, ``engine`` and versions.
    """

    name: str
    directory: Path
    parameters: Mapping[str, str]
    tags: Mapping[str, str]


class Tracker(Protocol):
    """Receives a run. What a method raises ends the tracker, with a warning, and never the run."""

    def begin(self, run: TrackedRun) -> None:
        """Take the run, before its first metrics."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take metrics: of round `step`, or, of those called ``step/...``, of that synchronous step."""

    def finish(self, files: list[Path]) -> None:
        """Take the files of the run that has ended: report, records, configuration."""
