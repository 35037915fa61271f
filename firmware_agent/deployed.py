"""On a real drive: wait for an identity, serve it, and start anew when there is another one.

Below one folder: ``slot/`` holds what an array lends the drive while it is up, ``enrolment/`` the drive's own
certificate, ``state/agent`` what the agent is doing. The control script of the drive (``csd-agent``) writes the first
two and reads the last. Identities are replaced by rename, so none is ever seen half-written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from firmware_agent.agent import Agent, device_facts
from firmware_agent.common.atomic_files import replace_file
from firmware_agent.common.errors import ConfigurationError, CsdError
from firmware_agent.common.handover import FAILED_MARKER, IDENTITY_FILE
from firmware_agent.common.identity import Identity, read_identity
from firmware_agent.drive import open_records, seed_generators, warm_up
from firmware_agent.faults.competing_task import Disturbance
from firmware_agent.health_reader import FOLDER, HealthReader
from firmware_agent.host_session import HostSession
from firmware_agent.power_meter import PowerMeter, Sensor, find_sensor

log = logging.getLogger(__name__)

SLOT, ENROLMENT, STATE, CONSOLE = "slot", "enrolment", "state/agent", "console.log"
SERVED = Path("state", "served")
_POLL_SECONDS = 0.2
_DAY_SECONDS = 86_400.0


def serve_deployed(folder: Path, stop: threading.Event) -> None:
    """Serve whoever gives this drive an identity, one after the other, until `stop` is set.

    What goes wrong with one identity is written down, and ends only with the next one: a supervisor that started this
    process again would see the same.
    """
    report = AgentReport(folder)
    while not stop.is_set():
        signature = sign(folder)
        with _console(folder):
            try:
                if (identity := find_identity(folder)) is None:
                    report.write("waiting")
                else:
                    _serve(folder, identity, signature, stop, report)
                    continue
            except CsdError as error:
                log.error("%s %s", FAILED_MARKER, error)
                report.write("failed", what=str(error))
        while sign(folder) == signature and not stop.wait(_POLL_SECONDS):
            pass


def self_check() -> dict[str, str]:
    """Take one training step of the smallest model and return what this machine runs on, for the record.

    A processor that lacks an instruction ends the process on the spot, which is what the check is for.
    """
    start = time.monotonic()
    warm_up()
    return device_facts() | {"warm_up_seconds": f"{time.monotonic() - start:.3f}"}


def find_identity(folder: Path) -> Identity | None:
    """Return whom this drive is to serve: the ticket in its slot, else its enrolment if that names a host.

    A ticket without a certificate gets that of the enrolment.

    Raises:
        ConfigurationError: others could read the key, or there is no certificate at all.
        ShardError: an archive is damaged.
    """
    ticket = _read(folder / SLOT / IDENTITY_FILE)
    own = _read(folder / ENROLMENT / IDENTITY_FILE)
    if ticket is None:
        return own if own is not None and own.host_address else None
    if ticket.certificate_pem:
        return ticket
    if own is None:
        raise ConfigurationError(
            f"array {ticket.array} gave this drive no certificate, and it has none of its own; run csd-emu deploy enrol"
        )
    return msgspec.structs.replace(ticket, ca_pem=own.ca_pem, certificate_pem=own.certificate_pem, key_pem=own.key_pem)


def sign(folder: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """Return what changes whenever an identity comes, goes, or is replaced."""
    return tuple(_stamp(folder / name / IDENTITY_FILE) for name in (SLOT, ENROLMENT))


class AgentReport:
    """What the agent is doing, for the control script: one ``key=value`` a line, replaced in one step."""

    def __init__(self, folder: Path) -> None:
        """Write to ``state/agent`` below `folder`."""
        self._path = folder / STATE
        self._version = _version(folder)

    def write(self, state: str, identity: Identity | None = None, what: str = "") -> None:
        """Say that the agent is ``waiting``, ``running`` or ``failed``, with whom it serves or why it does not."""
        facts: dict[str, str | int] = {"pid": os.getpid(), "version": self._version, "state": state}
        if identity is not None:
            facts |= {"array": identity.array, "device": identity.device, "incarnation": identity.incarnation}
        facts["what"] = " ".join(what.split())
        replace_file(self._path, "".join(f"{key}={value}\n" for key, value in facts.items()).encode())


class HostConnection:
    """The line to the host: sessions one after the other, until the identity that they have is not the one any more."""

    def __init__(self, changed: Callable[[], bool], stop: threading.Event) -> None:
        """Look several times a second whether `changed` or `stop` says that it is over."""
        self.over = threading.Event()
        self._changed, self._stop = changed, stop
        self._session: HostSession | None = None
        self._lock = threading.Lock()

    def dial(self, identity: Identity) -> HostSession:
        """Return a new session."""
        with self._lock:
            self._session = HostSession(identity)
            if self.over.is_set():
                self._session.cancel()
            return self._session

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch while the block runs."""
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self.over.set()
            watcher.join()

    def _watch(self) -> None:
        while not self.over.wait(_POLL_SECONDS):
            if self._stop.is_set() or self._changed():
                with self._lock:
                    self.over.set()
                    if self._session is not None:
                        self._session.cancel()


def _serve(folder: Path, identity: Identity, signature: object, stop: threading.Event, report: AgentReport) -> None:
    if (away_seconds := abs(time.time() - identity.unix_seconds)) > _DAY_SECONDS:
        log.warning("this drive's date is %.0f days from the host's; nothing rests on it", away_seconds / _DAY_SECONDS)
    seed_generators(identity.entropy)
    identity = next_incarnation(identity, folder / SERVED)
    agent = Agent(
        identity, open_records(identity, folder / SLOT, folder / SERVED.parent), Disturbance(None), **_power()
    )
    agent.health = HealthReader(folder / FOLDER)
    report.write("running", identity)
    log.info("serving array %s as %s, incarnation %d", identity.array, identity.device, identity.incarnation)
    line = HostConnection(lambda: sign(folder) != signature, stop)
    with line.watched():
        agent.serve_forever(line.over, line.dial)


def _power() -> dict[str, Any]:
    """Return the agent's meter, if the drive has a sensor, and the fact that the host is told of it."""
    sensor = find_sensor()
    if isinstance(sensor, Sensor):
        return {"meter": PowerMeter(sensor), "facts": {"power": f"meter: {sensor.name}"}}
    return {"facts": {"power": f"model: {sensor}"}}


def next_incarnation(identity: Identity, served: Path) -> Identity:
    """Return the identity as what now begins to serve it: as it is, or one incarnation on from what served it before.

    A host takes a second agent of one incarnation for a twin; this one is back, after a crash or a boot.

    Args:
        identity: as the drive was given it.
        served: file in which the last identity is kept that was served.
    """
    given = f"{identity.array} {identity.device} {identity.incarnation}"
    incarnation = identity.incarnation
    with contextlib.suppress(OSError, UnicodeDecodeError):  # there was none
        before, _, last = served.read_text(encoding="utf-8").strip().rpartition(" ")
        if before == given and last.isdecimal():
            incarnation = int(last) + 1
    replace_file(served, f"{given} {incarnation}\n".encode())
    return msgspec.structs.replace(identity, incarnation=incarnation)


@contextlib.contextmanager
def _console(folder: Path) -> Iterator[None]:
    """Copy what is logged into the slot's console, where the array that lent it looks."""
    path = folder / SLOT / CONSOLE
    if not path.exists():
        yield
        return
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def _read(path: Path) -> Identity | None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigurationError(f"{path}: holds a private key that others can read; set its mode to 600")
    return read_identity(path)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _version(folder: Path) -> str:
    """Return the version whose code this is: the name of its folder, which the link has as long as it is in use."""
    try:
        return (folder / "current").resolve(strict=True).name
    except OSError:
        return ""
