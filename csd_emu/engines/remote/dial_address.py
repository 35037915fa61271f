"""Address at which a drive reaches the array's host."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address

from csd_emu.engines.remote.inventory import DriveEntry
from csd_emu.engines.remote.shell import Shell
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import EnvironmentUnfit

# As `host_address` in an inventory: through the SSH connection itself.
THROUGH_SSH = "ssh"
_LOOPBACK = "127.0.0.1"
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
    address = drive.host_address or _seen_from(drive, shell)
    if address != THROUGH_SSH:
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
