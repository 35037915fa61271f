"""Real drives that are reached over SSH: each has an agent installed, which an array borrows while it is up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, ip_address
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec

from csd_emu.config.array_file import ArrayConfig, Device
from csd_emu.config.engine_names import ENGINE
from csd_emu.engines.engine_protocol import (
    DevicePlan,
    Engine,
    Fault,
    Handle,
    Surroundings,
    must_run,
    not_from_outside,
)
from csd_emu.engines.remote.drive_layout import DriveLayout
from csd_emu.engines.remote.drive_slot import Lease, Look, Slot, lent_to_another
from csd_emu.engines.remote.inventory import DriveEntry, drives_of
from csd_emu.engines.remote.server_id import server_id
from csd_emu.engines.remote.shell import DriveConnection, OpenShell, Shell, open_shell
from csd_emu.engines.remote.ssh_channel import LOOPBACK
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import CsdError, DeviceError, DriveUnfit, EnvironmentUnfit
from firmware_agent.common.identity import read_identity, write_identity

# As `host_address` in an inventory: through the SSH connection itself.
THROUGH_SSH = "ssh"
_SECONDS = 30.0


def host_address(drive: DriveEntry, shell: Shell, listens: IPv4Address) -> str:
    """Return the address that a drive dials, or `THROUGH_SSH`.

    The inventory's, else the one that SSH came from, as the drive saw it.

    Args:
        drive: which drive.
        shell: on it.
        listens: the address of this machine on which the array listens.

    Raises:
        EnvironmentUnfit: there is none, or nobody listens there.
        DriveUnreachable: the connection broke.
    """
    if (address := drive.host_address or _seen_from(drive, shell)) != THROUGH_SSH:
        check_listens(drive.name, address, listens)
    return address


def check_listens(name: str, address: str, listens: IPv4Address) -> None:
    """Return if an array that listens on `listens` can be reached at `address`, as far as can be told.

    Raises:
        EnvironmentUnfit: it cannot: it listens on loopback, and the drive is elsewhere, or on another address.
    """
    if listens.is_unspecified or address == str(listens):
        return
    try:
        dialled = ip_address(address)
    except ValueError:  # a name: it may be anything but this machine's own loopback
        if not listens.is_loopback or address == "localhost":
            return
    else:
        if not listens.is_loopback and not dialled.is_loopback:
            return  # of another network card, or translated on the way
    raise EnvironmentUnfit(
        f"host.address: the array listens on {listens} alone, and drive {name} would dial {address}; set host.address "
        f"to 0.0.0.0 or to that address of this machine, or `host_address: {THROUGH_SSH}` in the inventory"
    )


def _seen_from(drive: DriveEntry, shell: Shell) -> str:
    """Return where the drive saw SSH come from."""
    seen = shell.check("echo $SSH_CONNECTION", Deadline(_SECONDS)).split()
    remedy = f"set host_address in the inventory, or `host_address: {THROUGH_SSH}` to go through the SSH connection"
    if drive.jump or len(seen) != 4:
        why = f"SSH goes through {drive.jump}" if drive.jump else "the drive does not say where SSH came from"
        raise EnvironmentUnfit(f"drive {drive.name}: how it reaches this machine is not known, for {why}; {remedy}")
    if ":" in seen[0]:
        raise EnvironmentUnfit(
            f"drive {drive.name}: SSH came from {seen[0]}, and an array listens on IPv4 alone; {remedy}"
        )
    return seen[0]


log = logging.getLogger(__name__)
T = TypeVar("T")

_SIGNALS = {Fault.KILL: "KILL", Fault.FREEZE: "STOP", Fault.THAW: "CONT"}
_MOST_AT_ONCE = 16
# A drive is asked over SSH, and answers with a script: so a look at it serves for a while.
_LOOK_SECONDS = 2.0


@ENGINE.register("remote", "Each drive is a real one of the inventory, reached over SSH.", offered=False)
class RemoteEngine(Engine):
    """Each device is a drive of the inventory; its agent's slot says to which array it is lent."""

    faults = frozenset(_SIGNALS)

    def __init__(self, config: ArrayConfig, server: str, connect: OpenShell = open_shell) -> None:
        """Take an array whose drives are resolved (see `array_members`); nothing is connected yet.

        Args:
            config: the array.
            server: under which name it borrows drives, see `csd_emu.engines.remote.server_id.server_id`.
            connect: opens a shell on a drive.

        Raises:
            ConfigurationError: the inventory cannot be read, or lacks a drive.
        """
        self._config, self._server = config, server
        self._lines = {name: DriveConnection(drive, connect) for name, drive in drives_of(config).items()}
        self._addresses: dict[str, str] = {}
        self._looks: dict[str, tuple[float, Look]] = {}
        self._lock = threading.Lock()

    @classmethod
    def of_array(cls, config: ArrayConfig, paths: Paths) -> RemoteEngine:
        """Return the engine of an array, which borrows drives in the name of this machine and user."""
        return cls(config, server_id(paths.state))

    def surroundings(self, device: Device) -> Surroundings:
        """Return the wall's clock, and the address under which the drive reaches this machine."""
        address = self._address(device.name)
        return Surroundings("wall", LOOPBACK if address == THROUGH_SSH else address)

    def prepare(self, progress: Progress) -> None:
        """Connect to all drives and see that each is installed, enrolled and free.

        Raises:
            EnvironmentUnfit: some are not; the message has one line for each of them.
        """
        progress.stage(f"look at {len(self._lines)} real drives")
        found = self._on_all(self._check, self._lines)
        if problems := [str(problem) for problem in found.values() if problem is not None]:
            raise EnvironmentUnfit("\n".join(problems))

    def start(self, plan: DevicePlan) -> Handle:
        """Lend the drive to the array: its ticket, its shard unless the same one lies there, and have its agent run."""
        name = plan.device.name
        if (problem := self._problem(name, self._look(name), plan)) is not None:
            raise problem
        lease = Lease(plan.array, name, plan.run, self._server)
        shard = None if plan.device.data else plan.shard
        try:
            ticket = self._led_back(plan) if self._address(name) == THROUGH_SSH else plan.identity
            self._on(name, lambda slot: slot.lend(lease, ticket, shard))
        except CsdError:
            self._forget(name)
            raise
        self._forget(name)
        return Handle(plan, name)

    def find(self, plan: DevicePlan) -> Handle | None:
        """Return the drive if it is lent to the plan's array and its agent lives."""
        handle = Handle(plan, plan.device.name)
        return handle if self.alive(handle) else None

    def alive(self, handle: Handle) -> bool:
        """Return whether the drive is lent to the array and its agent lives; its console is fetched on the way."""
        plan = handle.plan
        try:
            look = self._look(handle.reference)
        except DeviceError as error:
            log.info("%s", error)
            return False
        if look.lease is None or look.lease.run != plan.run or not look.lease.is_of(plan.array, self._server):
            return False
        if look.console:
            plan.console.write_text(look.console + "\n", encoding="utf-8")
        return look.alive

    def inject(self, handle: Handle, fault: Fault) -> None:
        """Send the agent the signal that makes the fault; one that was killed is not lent any more when it restarts."""
        if fault not in self.faults:
            raise not_from_outside(handle, fault)
        name = handle.reference
        self._forget(name)
        if not self.alive(handle) or not self._look(name).status.pid:
            raise must_run(handle, fault)
        self._on(name, lambda slot: slot.signal(_SIGNALS[fault]))
        if fault is Fault.KILL:
            self._on(name, lambda slot: slot.take_back(handle.plan.array, self._server))
        self._forget(name)

    def stop(self, handle: Handle) -> None:
        """Take the drive back from the array; its agent waits for the next one."""
        self._on(handle.reference, lambda slot: slot.take_back(handle.plan.array, self._server))
        self._forget(handle.reference)

    def list_devices(self, array: str) -> list[str]:
        """Return the drives that are lent to `array`; those that cannot be reached are not among them."""
        return sorted(
            name for name, look in self._looks_of_all().items() if look.alive and self._borrower(look) == array
        )

    def list_arrays(self) -> list[str]:
        """Return the arrays of this server to which the drives of this one's inventory are lent."""
        return sorted({self._borrower(look) for look in self._looks_of_all().values()} - {""})

    def sweep(self, array: str) -> list[str]:
        """Take back every drive that is lent to `array`; one that cannot be reached keeps a ticket for nobody."""
        lent = self._on_all(lambda name: self._on(name, lambda slot: slot.take_back(array, self._server)), self._lines)
        for name in lent:
            self._forget(name)
        return sorted(name for name, was in lent.items() if was)

    def close(self) -> None:
        """End all connections."""
        for line in self._lines.values():
            line.close()

    def _check(self, name: str) -> CsdError | None:
        try:
            self._forget(name)
            if (problem := self._problem(name, self._look(name), None)) is None:
                self._address(name)
        except (DeviceError, EnvironmentUnfit) as error:
            return error
        return problem

    def _problem(self, name: str, look: Look, plan: DevicePlan | None) -> DriveUnfit | None:
        """Return why a drive cannot be lent to this array, or None."""
        status, deploy = look.status, f"csd-emu deploy {self._config.inventory}"
        if not status.version:
            return DriveUnfit(f"drive {name}: no agent is installed; run {deploy} install --drives {name}")
        if (plan is None or not read_identity(plan.identity).certificate_pem) and not status.enrolled:
            return DriveUnfit(f"drive {name}: is not enrolled; run {deploy} enrol --drives {name}")
        if look.lease is not None and not look.lease.is_of(self._config.name, self._server):
            return lent_to_another(name, look.lease)
        return None

    def _borrower(self, look: Look) -> str:
        """Return the array of this server to which a drive is lent, "" if none."""
        return look.lease.array if look.lease is not None and look.lease.server == self._server else ""

    def _led_back(self, plan: DevicePlan) -> Path:
        """Return a ticket with the drive's own port that leads back to the array, through the SSH connection."""
        identity = read_identity(plan.identity)
        listens = self._config.host.address
        host = LOOPBACK if listens.is_unspecified else str(listens)
        port = self._lines[plan.device.name].forward(host, identity.port)
        ticket = plan.folder / "ticket.tar"
        write_identity(ticket, msgspec.structs.replace(identity, host_address=f"{LOOPBACK}:{port}"))
        return ticket

    def _address(self, name: str) -> str:
        if name not in self._addresses:
            line, listens = self._lines[name], self._config.host.address
            self._addresses[name] = line.use(lambda shell: host_address(line.drive, shell, listens))
        return self._addresses[name]

    def _looks_of_all(self) -> dict[str, Look]:
        return {name: look for name, look in self._on_all(self._look, self._lines).items() if look is not None}

    def _look(self, name: str) -> Look:
        with self._lock:
            seen = self._looks.get(name)
        if seen is not None and time.monotonic() - seen[0] < _LOOK_SECONDS:
            return seen[1]
        begin = time.monotonic()
        look = self._on(name, lambda slot: slot.look())
        with self._lock:
            self._looks[name] = begin, look
        return look

    def _forget(self, name: str) -> None:
        with self._lock:
            self._looks.pop(name, None)

    def _on(self, name: str, work: Callable[[Slot], T]) -> T:
        line = self._lines[name]
        return line.use(lambda shell: work(Slot(shell, DriveLayout(PurePosixPath(line.drive.folder)))))

    def _on_all(self, work: Callable[[str], T], names: Iterable[str]) -> dict[str, T | None]:
        """Return name -> what `work` returned, of all drives at once; None of one that could not be spoken with."""

        def one(name: str) -> T | None:
            try:
                return work(name)
            except DeviceError as error:
                log.warning("%s", error)
                return None

        with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
            return dict(zip(names, pool.map(one, names), strict=True))
