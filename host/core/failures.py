"""Failures of the user's code in one run: each is shown once and counted, and the job says whether the run goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from firmware_agent.common.errors import CsdError, UserCodeFailed
from firmware_agent.common.folded_traceback import (
    MAX_TRACEBACK_BYTES,
    bounded,
    describe_error,
    format_user_traceback,
    user_error,
)
from host.core.plain_text import plain

STOP, CONTINUE = "stop", "continue"
# Failures that are told apart; further ones are counted together.
MOST_FAILURES = 32
OTHER = "other failures"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure of the user's code, and how often the same one came.

    Attributes:
        kind: of code or of failure: ``model``, ``data set``, ``strategy``, ``tuner``, ``optimizer``, ``metric NAME``;
            ``other failures`` for all that came after the first 32 different ones.
        device: where it came first; ``host`` for what runs there.
        round: in which it came first, from 1.
        step: of a synchronous run, in which it came first; null where it is none of a step.
        error: type and message.
        traceback: folded, at most 8 KiB; empty if nothing was raised, but something wrong returned.
        count: how often it came, from whichever device.
    """

    kind: str
    device: str
    round: int
    step: int | None
    error: str
    traceback: str = ""
    count: Annotated[int, Meta(ge=1)] = 1

    @property
    def headline(self) -> str:
        """What failed, where and when it came first, in words."""
        when = f"in round {self.round}" + (f", step {self.step}" if self.step is not None else "")
        what = self.kind if self.kind == OTHER else f"the {self.kind} failed"
        return f"{what} on {self.device} {when}: {self.error}"


class FailureRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="failure"):
    """A failure of the user's code as it came for the first time; that it came again is in ``summary.json`` alone."""

    failure: Failure
    wall_seconds: float = 0.0
    array_seconds: float = 0.0


class Failures:
    """Collects a run's failures.

    Attributes:
        round: that is going on, from 1.
    """

    def __init__(
        self,
        goes_on: bool,
        show: Callable[[Failure], None] = lambda _: None,
        changed: Callable[[Sequence[Failure]], None] = lambda _: None,
    ) -> None:
        """Begin with none.

        Args:
            goes_on: whether the run goes on after one, while enough drives are left.
            show: is given each different one as it comes for the first time.
            changed: is given all of them whenever one came.
        """
        self._goes_on, self._show, self._changed = goes_on, show, changed
        self._found: dict[tuple[str, ...], Failure] = {}
        self._end: CsdError | None = None
        self.round = 1

    def list(self) -> list[Failure]:
        """Return those that were told apart, in the order in which they came first."""
        return list(self._found.values())

    def restore(self, failures: Sequence[Failure]) -> None:
        """Go on from those of a run that is resumed; they are not shown again."""
        for failure in failures:
            self._found[_key(failure)] = failure
        self._changed(self.list())

    def take(self, error: UserCodeFailed, device: str, step: int | None = None) -> None:
        """Note that the user's code failed on `device`, or on the ``host``; what has ended the run is noted already."""
        if error is self._end:
            return
        cause = user_error(error)
        self.add(
            Failure(
                kind=error.code,
                device=device,
                round=self.round,
                step=step,
                error=_clean(error.error or describe_error(cause or error)),
                traceback=_clean(error.traceback or format_user_traceback(error)),
            )
        )
        if not self._goes_on:
            self._end = self._end or error

    def add(self, failure: Failure) -> None:
        """Note a failure: the first of its kind is shown, later ones are counted."""
        key = _key(failure)
        if key not in self._found and len(self._found) >= MOST_FAILURES:
            failure = Failure(
                kind=OTHER,
                device=failure.device,
                round=failure.round,
                step=failure.step,
                error=f"more than {MOST_FAILURES} different failures; these are counted together",
            )
            key = (OTHER,)
        before = self._found.get(key)
        if before is not None:
            self._found[key] = msgspec.structs.replace(before, count=before.count + 1)
        else:
            self._found[key] = failure
            self._show(failure)
        self._changed(self.list())

    def check(self) -> None:
        """Return if the run goes on.

        Raises:
            UserCodeFailed: the user's code failed, and the job says `stop`: the first such error.
        """
        if self._end is not None:
            raise self._end


def describe_failures(failures: Sequence[Failure]) -> str:
    """Return a run's first failure, and how many there were, in a sentence without a full stop."""
    first, more = failures[0], len(failures) - 1
    times = f" ({first.count} times in all)" if first.count > 1 else ""
    return f"{first.headline}{times}" + (f"; {more} other failure{'s' if more > 1 else ''}" if more else "")


def failed_run(failures: Sequence[Failure], run_directory: str) -> UserCodeFailed:
    """Return the error of a run with failures, with the first traceback in its message."""
    first = failures[0]
    told = f"the run failed: {describe_failures(failures)}; run directory: {run_directory}"
    return UserCodeFailed(f"{told}\n{first.traceback}".rstrip("\n"), first.kind, first.error)


def _key(failure: Failure) -> tuple[str, ...]:
    """Return what failures have in common that count as the same: the places in the code, else the words."""
    error, *_ = failure.error.partition(":")
    places = [line for line in failure.traceback.splitlines() if line.startswith('  File "')]
    return (failure.kind, error, *places) if places else (failure.kind, re.sub(r"\d+", "#", failure.error))


def _clean(text: str) -> str:
    """Return text of a drive without characters that could command a terminal, and no longer than the wire allows."""
    return bounded(plain(text), MAX_TRACEBACK_BYTES)
