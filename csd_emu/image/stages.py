"""The stages of a build: what the user sees, and the seconds that each took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from csd_emu.util.progress import Progress


class Stages:
    """Announces stages and measures them."""

    def __init__(self, progress: Progress, now: Callable[[], float] = time.monotonic) -> None:
        """Show stages on `progress`; `now` returns monotonic seconds."""
        self.progress = progress
        self.build_seconds: dict[str, float] = {}
        self.download_seconds: dict[str, float] = {}
        self._now = now

    @contextmanager
    def build(self, name: str, text: str) -> Iterator[None]:
        """Measure a stage of the build proper; `name` is its key in `build_seconds`."""
        yield from self._stage(self.build_seconds, name, text)

    @contextmanager
    def download(self, name: str, text: str) -> Iterator[None]:
        """Measure a stage that waits for the network; `name` is its key in `download_seconds`."""
        yield from self._stage(self.download_seconds, name, text)

    def _stage(self, seconds: dict[str, float], name: str, text: str) -> Iterator[None]:
        self.progress.stage(text)
        start = self._now()
        yield
        seconds[name] = round(self._now() - start, 3)
