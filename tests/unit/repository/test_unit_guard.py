"""The guard of unit tests (tests/unit/conftest.py)."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.conftest import stays_here


def run_swallowing_errors() -> None:
    try:
        subprocess.run([sys.executable, "-c", ""], check=True)
    except Exception:
        pytest.fail("an error that code under test could handle")


@pytest.mark.parametrize(
    "start",
    [
        run_swallowing_errors,
        lambda: subprocess.Popen(["true"]),
        lambda: asyncio.run(asyncio.create_subprocess_exec("true")),
        lambda: os.system("true"),
        lambda: os.fork(),  # the guarded one, which is not there yet when this file is read
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
    ],
    ids=["run", "Popen", "asyncio", "system", "fork", "posix_spawn"],
)
def test_no_process_is_started(start: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"may not start a process .* move it to tests/integration"):
        start()


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, ("192.0.2.1", 9)),
        (socket.AF_INET, ("storage.invalid", 9)),
        (socket.AF_INET6, ("2001:db8::1", 9, 0, 0)),
    ],
)
def test_no_socket_leaves_this_machine(family: socket.AddressFamily, address: tuple[object, ...]) -> None:
    for method in ("connect", "connect_ex"):
        with (
            socket.socket(family) as own,
            pytest.raises(pytest.fail.Exception, match="may not open a socket"),
        ):
            getattr(own, method)(address)


def test_a_server_in_this_process_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.sendall(b"x")


@given(st.ip_addresses())
def test_only_loopback_addresses_stay_here(address: object) -> None:
    assert stays_here(str(address)) == (str(address).startswith("127.") or str(address) == "::1")
