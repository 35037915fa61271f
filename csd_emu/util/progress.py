"""Progress of long work, reported without knowing how it is shown."""

from __future__ import annotations

import threading
from typing import Protocol


class Progress(Protocol):
    """Receives the stages of a long piece of work, in order."""

    def stage(self, text: str) -> None:
        """Begin a stage, for example ``unpack 143 packages``; it ends the stage before."""

    def advance(self, fraction: float) -> None:
        """Say how much of the current stage is done, 0 to 1."""


class Silent:
    """A `Progress` that shows nothing."""

    def stage(self, text: str) -> None:
        """Ignore the stage."""

    def advance(self, fraction: float) -> None:
        """Ignore the fraction."""


class Shared:
    """A `Progress` that several threads may tell at once: what is shown takes one of them at a time."""

    def __init__(self, progress: Progress) -> None:
        """Pass everything on to `progress`."""
        self._progress, self._lock = progress, threading.Lock()

    def stage(self, text: str) -> None:
        """Begin a stage."""
        with self._lock:
            self._progress.stage(text)

    def advance(self, fraction: float) -> None:
        """Say how much of the stage is done that was begun last, by whichever thread."""
        with self._lock:
            self._progress.advance(fraction)
