"""The loop of a fuzzer: cases of one target, what they cost, what they reach, and those that break it."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from csd_lab.bench.security.fuzz_mutation import Mutator, encoder
from firmware_agent.common.errors import CsdError

# A case that takes so long counts as one that never ends.
HANG_SECONDS = 20
# One case in so many is traced, which takes ten times as long; what reaches something new is built upon.
_TRACED, _MOST_CORPUS = 6, 400
# Memory is looked at once for so many cases: the most that any of them took is at most what all of them did.
_WATCHED_CASES = 256
_ROOT = str(Path(__file__).parents[3])
_OURS = tuple(f"{_ROOT}/{package}/" for package in ("csd_emu", "firmware_agent", "host"))


class Hang(BaseException):
    """Raised in a case that does not end."""


@dataclass(frozen=True)
class FuzzTarget:
    """Something that reads what others wrote.

    Attributes:
        name: of it.
        codec: in which its seeds are written (see `fuzz_mutation.encoder`).
        seeds: what is valid, or nearly so.
        call: reads one case; anything but a CsdError that it raises is a crash.
        share: of all cases, relative to the other targets'.
    """

    name: str
    codec: str
    seeds: Sequence[Any]
    call: Callable[[bytes], object]
    share: float = 1.0


@dataclass(frozen=True)
class Crash:
    """A case that broke its target, and how to have it again."""

    target: str
    seed: int
    case: int
    what: str
    content: bytes


@dataclass
class Tally:
    """What came of one target's cases; `refused` ended with a CsdError, `lines` of our code were reached."""

    cases: int = 0
    refused: int = 0
    worst_seconds: float = 0.0
    worst_case: bytes = b""
    worst_bytes: int = 0
    lines: int = 0
    crashes: list[Crash] = field(default_factory=list)


def fuzz_target(target: FuzzTarget, cases: int, seed: int, until: float = float("inf")) -> Tally:
    """Run up to so many cases, all decided by `seed`, until the monotonic clock says `until`."""
    rng = random.Random(f"{seed} {target.name}")
    mutator, tally = Mutator(rng), Tally()
    corpus: list[bytes] = []
    reached: set[tuple[str, int]] = set()
    seen: set[str] = set()
    for value in target.seeds:  # first uses import and compile, which no case shall pay for
        with contextlib.suppress(CsdError):
            target.call(encoder(target.codec)(value))
    watch = _MemoryWatch()
    for number in range(cases):
        content = mutator.case(target.codec, target.seeds, corpus)
        traced = number % _TRACED == 0
        before = len(reached)
        seconds, what, refused = run_case(target.call, content, reached if traced else None)
        tally.cases, tally.refused = number + 1, tally.refused + refused
        if seconds > tally.worst_seconds and not traced:
            tally.worst_seconds, tally.worst_case = seconds, content
        if what and (kind := what.partition("\n")[0]) not in seen:
            seen.add(kind)
            tally.crashes.append(Crash(target.name, seed, number, what, content))
        if len(reached) > before and len(content) <= 1 << 14:
            corpus.append(content)
            del corpus[:-_MOST_CORPUS]
        if number % _WATCHED_CASES == _WATCHED_CASES - 1:
            tally.worst_bytes = max(tally.worst_bytes, watch.take())
            if time.monotonic() > until:
                break
    tally.worst_bytes, tally.lines = max(tally.worst_bytes, watch.take()), len(reached)
    return tally


def run_case(
    call: Callable[[bytes], object], content: bytes, reached: set[tuple[str, int]] | None = None
) -> tuple[float, str, bool]:
    """Run one case; return its CPU seconds, how it broke its target ("" if it did not), and whether it was refused."""
    what, refused = "", False
    with _alarm(), _tracing(reached) if reached is not None else contextlib.nullcontext():
        began = time.thread_time()
        try:
            call(content)
        except CsdError:
            refused = True
        except Hang:
            what = f"Hang: more than {HANG_SECONDS} s"
        except Exception as error:
            what = _describe(error)
        seconds = time.thread_time() - began
    return seconds, what, refused


def _describe(error: BaseException) -> str:
    """Return error and place; its first line is the same for crashes of the same kind."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_OURS)]
    place = f"{ours[-1].filename.removeprefix(_ROOT + '/')}:{ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__} at {place}\n{str(error)[:500]}"


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _tracing(reached: set[tuple[str, int]]) -> Iterator[None]:
    """Add the (file, line) of our code that runs in the block."""

    def line(frame: types.FrameType, event: str, _: object) -> Any:
        if event == "line":
            reached.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: types.FrameType, _: str, __: object) -> Any:
        return line if frame.f_code.co_filename.startswith(_OURS) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)


class _MemoryWatch:
    """The most memory that was taken beyond what was held when it was last looked at."""

    def __init__(self) -> None:
        self._held = self._reset()

    def take(self) -> int:
        """Return it in bytes, and begin anew."""
        taken = _status("VmHWM:") - self._held
        self._held = self._reset()
        return max(0, taken)

    def _reset(self) -> int:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the mark is what is in use now: proc(5)
        return _status("VmHWM:")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) << 10
    return 0
