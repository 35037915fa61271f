"""Notifications of a planning: decisions, and what people should know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from host.policies.selection.planner_protocol import TrialDecision


class Notices:
    """What the run and people are told of planning: at once, or behind a computation that may still fail."""

    def __init__(self, on_decided: Callable[[TrialDecision], None], on_note: Callable[[str], None]) -> None:
        """Take who is told of decisions, and who of sentences."""
        self._on_decided, self._on_note = on_decided, on_note
        self._untold: list[Callable[[], None]] | None = None

    def decided(self, decision: TrialDecision) -> None:
        """Tell of a decision."""
        self._tell(partial(self._on_decided, decision))

    def note(self, text: str) -> None:
        """Tell what people should know."""
        self._tell(partial(self._on_note, text))

    @contextmanager
    def later(self) -> Iterator[None]:
        """Collect what is told inside the block, and tell it at the end; after an error it is dropped."""
        untold = self._untold = []
        yield
        self._untold = None
        for tell in untold:
            tell()

    def _tell(self, tell: Callable[[], None]) -> None:
        tell() if self._untold is None else self._untold.append(tell)
