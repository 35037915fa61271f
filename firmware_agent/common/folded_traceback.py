"""A traceback of the user's code in few lines: frames of csd-emu, torch, NumPy and Python's machinery are folded."""

from __future__ import annotations

import errno
import itertools
import linecache
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from firmware_agent.common.errors import CsdError

MAX_TRACEBACK_BYTES = 8 << 10
MAX_MESSAGE_BYTES = 2 << 10
# Innermost frames that are looked at, and causes of an error that are shown.
_FRAMES, _CAUSES = 200, 4
_OURS = Path(__file__).resolve().parents[2]
_PACKAGES = ("csd_emu", "csd_lab", "firmware_agent", "host")
_CSD, _PYTHON = "csd-emu", "Python"
# Installed packages lie below the standard library.
_INSTALLED = frozenset(("site-packages", "dist-packages"))
_CUT = "..."
# What torch says in a RuntimeError: its allocators of host and accelerator memory, and libraries below it.
_NO_MEMORY = ("DefaultCPUAllocator", "can't allocate memory", "CUDA out of memory", "std::bad_alloc")


def remember_source(name: str, source: str) -> None:
    """Have tracebacks show the lines of code that was compiled from text under this file name."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def user_error(error: BaseException) -> BaseException | None:
    """Return the error of the user's code that an error is, or was raised for; None if csd-emu alone is behind it."""
    seen: set[int] = set()
    found: BaseException | None = error
    while isinstance(found, CsdError) and id(found) not in seen:
        seen.add(id(found))
        found = found.__cause__
    return None if isinstance(found, CsdError) else found


def describe_error(error: BaseException) -> str:
    """Return type and message of an error in at most `MAX_MESSAGE_BYTES`; an error of csd-emu's has its message."""
    try:
        text = str(error)
    except Exception:  # the user's class may be broken too
        text = "<its message cannot be shown>"
    return bounded(text if isinstance(error, CsdError) else f"{type(error).__name__}: {text}", MAX_MESSAGE_BYTES)


def format_user_traceback(error: BaseException) -> str:
    """Return the traceback of what went wrong in the user's code, with its causes; at most `MAX_TRACEBACK_BYTES`.

    Of an error of csd-emu's that was raised for another one, the other one's is returned; empty if there is none. The
    end is kept when it is longer: the innermost frames and the message.
    """
    inner = user_error(error)
    if inner is None:
        return ""
    told = traceback.TracebackException(type(inner), inner, inner.__traceback__, limit=-_FRAMES, compact=True)
    return _last("\n".join(_blocks(told, _CAUSES)), MAX_TRACEBACK_BYTES)


def names_user_code(error: BaseException) -> bool:
    """Return whether a line of the user's code is in an error's traceback, or its text is no Python."""
    inner = user_error(error)
    if inner is None:
        return False
    return isinstance(inner, SyntaxError) or bool(user_line(traceback.extract_tb(inner.__traceback__, limit=-_FRAMES)))


def user_line(frames: Iterable[traceback.FrameSummary]) -> str:
    """Return in brackets the file and line of the innermost frame of the user's code; empty if there is none."""
    theirs = [frame for frame in frames if _owner(frame.filename) is None]
    return f" ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else ""


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error, or what it was raised for, is that no memory could be had: Python's, torch's or ours."""
    inner = user_error(error)
    if isinstance(inner, OSError):
        return inner.errno == errno.ENOMEM
    return isinstance(inner, MemoryError) or (
        isinstance(inner, RuntimeError) and any(words in describe_error(inner) for words in _NO_MEMORY)
    )


def bounded(text: str, most_bytes: int) -> str:
    """Return the beginning of `text`, as UTF-8 can hold it, in at most so many bytes."""
    data = text[:most_bytes].encode("utf-8", "replace")
    if len(data) <= most_bytes and len(text) <= most_bytes:
        return data.decode()
    return data[: most_bytes - len(_CUT)].decode("utf-8", "ignore") + _CUT


def _last(text: str, most_bytes: int) -> str:
    """Return the last whole lines of `text` that fit."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most_bytes:
        return data.decode()
    tail = data[len(_CUT) + 1 - most_bytes :].decode("utf-8", "ignore")
    return _CUT + "\n" + (tail.partition("\n")[2] or tail)


def _blocks(told: traceback.TracebackException, causes: int) -> Iterator[str]:
    """Yield the texts of an error's causes, then its own."""
    cause = told.__cause__
    context = None if told.__suppress_context__ else told.__context__
    if causes and (before := cause or context) is not None:
        yield from _blocks(before, causes - 1)
        how = "The above error was the cause of this one:" if cause else "While that was handled, another came:"
        yield f"\n{how}\n"
    lines = ["Traceback (most recent call last):", *_fold(told.stack)] if told.stack else []
    yield "\n".join([*lines, bounded("".join(told.format_exception_only()).rstrip("\n"), MAX_MESSAGE_BYTES)])


def _fold(stack: traceback.StackSummary) -> Iterator[str]:
    """Yield the lines of a stack; without a frame of the user's, the last one of csd-emu stays to say what it did."""
    owners = [_owner(frame.filename) for frame in stack]
    if not any(owner is None for owner in owners) and _CSD in owners:
        owners[len(owners) - 1 - owners[::-1].index(_CSD)] = None
    for owner, group in itertools.groupby(zip(owners, stack, strict=True), key=lambda pair: pair[0]):
        frames = [frame for _, frame in group]
        if owner is None:
            yield from "".join(traceback.StackSummary.from_list(frames).format()).rstrip("\n").split("\n")
        else:
            yield f"  ... {len(frames)} frame{'s' if len(frames) > 1 else ''} of {owner}"


def _owner(filename: str) -> str | None:
    """Return whose code a frame is of, other than the user's."""
    path, roots = Path(filename), _roots()
    if not path.is_absolute():
        return _PYTHON if filename.startswith("<frozen") else None
    owner = next((owner for root, owner in roots.items() if path.is_relative_to(root)), None)
    return None if owner == _PYTHON and not _INSTALLED.isdisjoint(path.parts) else owner


def _roots() -> dict[Path, str]:
    """Return the folders of code that is not the user's, and whose it is."""
    roots = {_OURS / package: _CSD for package in _PACKAGES}
    for name in ("torch", "numpy"):
        if (file := getattr(sys.modules.get(name), "__file__", None)) is not None:
            roots[Path(file).parent] = name
    return roots | {Path(linecache.__file__).parent: _PYTHON}
