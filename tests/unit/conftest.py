"""What a unit test may not do: start a process, or reach beyond this machine.

A process costs time that is not counted as the test's, may be missing on a developer's machine and may outlive the
test; such tests lie in tests/integration. Sockets in this process stay allowed if they end here: Unix sockets, and
servers on the loopback interface, among them gRPC's, which Python does not see.
"""

import functools
import ipaddress
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
# On modules; each would start a process, or become one.
STARTERS = ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "execv", "execve")


def stays_here(host: object) -> bool:
    """Return whether a host of a socket's address is this machine's loopback interface."""
    if host in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False


def _refuse(what: str) -> None:
    # Failed is no Exception: code under test that handles all errors does not hide it.
    pytest.fail(f"a unit test may not {what}: move it to tests/integration")


def _starter(name: str) -> Callable[..., None]:
    # Wrapped, it still says that it is of the standard library, which some code under test asks.
    @functools.wraps(getattr(os, name))
    def start(*_args: object, **_options: object) -> None:
        _refuse(f"start a process (os.{name})")

    return start


def _popen(_: subprocess.Popen[bytes], args: object, *_args: object, **_options: object) -> None:
    _refuse(f"start a process ({args})")


def _connect(real: Callable[[socket.socket, Any], None]) -> Callable[[socket.socket, Any], None]:
    def connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and not stays_here(address[0]):
            _refuse(f"open a socket to {address}")
        real(self, address)

    return connect


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Guard a unit test with all of its fixtures, also those that it shares."""
    if not item.path.is_relative_to(HERE):  # pytest calls this hook for the tests of other folders, too
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        for name in STARTERS:
            patch.setattr(os, name, _starter(name))
        patch.setattr(subprocess.Popen, "__init__", _popen)
        patch.setattr(subprocess.Popen, "__del__", lambda _: None)
        for method in ("connect", "connect_ex"):
            patch.setattr(socket.socket, method, _connect(getattr(socket.socket, method)))
        return (yield)
