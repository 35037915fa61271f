"""Connections to other hypervisors: none may hang, whatever becomes of the other side."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

import libvirt

from csd_emu.config.hypervisors import SESSION_URI
from csd_emu.util.daemon_threads import in_thread
from firmware_agent.common.errors import DeviceError, EnvironmentUnfit

T = TypeVar("T")
OPEN_SECONDS = 30.0
# Of a side that has said nothing for so long the connection is given up, and with it every call that waits.
_KEEPALIVE_SECONDS, _KEEPALIVE_COUNT = 5, 3
_turn = threading.Lock()


class NoAnswer(DeviceError):
    """Raised when a call took longer than it may; the thread that made it is left behind."""


def within(seconds: float, purpose: str, work: Callable[[], T]) -> T:
    """Return what `work` returns if it does within `seconds`; it runs in a thread that cannot keep the process.

    Raises:
        NoAnswer: it does not. Whatever it still does nobody waits for.
    """
    done = in_thread(purpose, work)
    concurrent.futures.wait([done], seconds)
    if not done.done():
        raise NoAnswer(f"no answer within {seconds:.0f} s ({purpose})")
    return done.result()


def open_hypervisor(uri: str, seconds: float = OPEN_SECONDS) -> libvirt.virConnect:
    """Return a connection on which a dead side is noticed.

    Raises:
        EnvironmentUnfit: it cannot be reached, does not let us in, or is not QEMU.
    """
    watch_connections()
    try:
        connection = within(seconds, f"connect to {uri}", lambda: libvirt.open(without_terminal(uri)))
    except (libvirt.libvirtError, NoAnswer) as error:
        raise EnvironmentUnfit(
            f"hypervisors: {uri} cannot be reached ({error}); correct the URI, start libvirt there, or see that it "
            "lets this user in"
        ) from error
    if (kind := connection.getType()) != "QEMU":
        connection.close()
        raise EnvironmentUnfit(f"hypervisors: {uri} is {kind}, not QEMU; use {SESSION_URI}")
    with contextlib.suppress(libvirt.libvirtError):  # a daemon without it
        connection.setKeepAlive(_KEEPALIVE_SECONDS, _KEEPALIVE_COUNT)
    return connection


def without_terminal(uri: str) -> str:
    """Return the URI such that SSH asks nobody for a password: there is no one to answer."""
    parts = urlsplit(uri)
    if "ssh" not in parts.scheme or "no_tty" in parse_qs(parts.query):
        return uri
    return uri + ("&" if parts.query else "?") + "no_tty=1"


def watch_connections() -> None:
    """Run libvirt's event loop, once per process: without it no connection notices that the other side is dead."""
    with _turn:
        _start_events()


@functools.cache
def _start_events() -> None:
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_run, name="libvirt events", daemon=True).start()


def _run() -> None:
    while True:
        with contextlib.suppress(libvirt.libvirtError):
            libvirt.virEventRunDefaultImpl()
