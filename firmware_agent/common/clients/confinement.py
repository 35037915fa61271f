"""What a client program may not do while it trains: start processes, use the network, change files.

It is held by Python's audit events, so that a mistake is seen at once and on every engine alike. What other threads do,
or libraries below Python, such as torch's own writer of files, is not seen: it is no wall against code that means harm.
On real drives and virtual machines that is the sandbox of the agent's service.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
def confined() -> Iterator[None]:
    """Have whatever the code in this context, in this thread, may not do raise `PermissionError`."""
    _install()
    before = getattr(_confined, "here", False)
    _confined.here = True
    try:
        yield
    finally:
        _confined.here = before


@functools.cache
def _install() -> None:
    sys.addaudithook(_audit)


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
