"""What a client program may not do while it trains: start processes, use the network, change files.

It is held by Python's audit events, so that a mistake is seen at once and on every engine alike, also in threads that
the program starts; `torch.save` and `torch.jit.save` are made to raise one. What libraries below Python do, `ctypes`,
`_thread` or torch's other writers, is not seen: it is no wall against code that means harm. On real drives and virtual
machines that is the sandbox of the agent's service.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

_PROCESSES = ("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system", "subprocess.Popen")
_NETWORK = tuple(f"socket.{name}" for name in ("connect", "bind", "sendto", "sendmsg", "getaddrinfo", "gethostbyname"))
_FILES = tuple(f"os.{name}" for name in ("remove", "rename", "mkdir", "rmdir", "link", "symlink", "truncate", "chmod"))
_REFUSED = {
    **dict.fromkeys(_PROCESSES, "start a process"),
    **dict.fromkeys(_NETWORK, "use the network"),
    **dict.fromkeys((*_FILES, "sqlite3.connect"), "change files"),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_confined = threading.local()


@contextmanager
def confined(here: bool = True) -> Iterator[None]:
    """Have whatever the code in this context, in this thread, may not do raise `PermissionError`.

    Args:
        here: False lifts that, for code of the host's that a program calls.
    """
    announce_writers()
    before = getattr(_confined, "here", False)
    _confined.here = here
    try:
        yield
    finally:
        _confined.here = before


def import_ahead(source: str | None) -> None:
    """Import what torch does when the first of its optimisers is made, if a program may make one.

    It is torch's compiler, which looks for a folder to write to, and takes seconds, which are none of a round's.

    Args:
        source: of the program; None of an installed one, which may.
    """
    with suppress(OSError):
        tempfile.gettempdir()
    if source is None or re.search(r"\boptim\b", source):
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


@functools.cache
def announce_writers() -> None:
    """Watch this process: before a program is imported, which may take functions of torch's by their names."""
    sys.addaudithook(_audit)
    threading.Thread.start = _handed_on(threading.Thread.start)  # type: ignore[assignment, method-assign]
    for module in (torch, torch.serialization, torch.jit):
        module.save = _announced(module.save)  # type: ignore[attr-defined]


def _announced(save: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch's that writes a file, with the audit event that Python's own `open` raises."""

    @functools.wraps(save)
    def announce(*arguments: Any, **named: Any) -> Any:
        target = arguments[1] if len(arguments) > 1 else named.get("f")
        if isinstance(target, str | os.PathLike):
            sys.audit("open", target, "wb", os.O_WRONLY)
        return save(*arguments, **named)

    return announce


def _handed_on(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Return what starts a thread, which may do what the one may that starts it."""

    @functools.wraps(start)
    def begin(thread: threading.Thread) -> None:
        if getattr(_confined, "here", False):
            thread.run = confined()(thread.run)  # type: ignore[method-assign]
        start(thread)

    return begin


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not getattr(_confined, "here", False):
        return
    what = _REFUSED.get(event)
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
        what = f"write to {arguments[0]}"
    if what is not None:
        raise PermissionError(
            f"a client program may not {what}: it computes, reads files, and returns what it wants kept; use state, or "
            "return tensors and numbers"
        )
