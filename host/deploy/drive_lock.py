"""Respect for who has a drive: a lock against other installations on it, and the array that it is lent to."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import socket
from collections.abc import Iterator

import psutil

from csd_emu.engines.remote.drive_slot import Slot
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import DriveUnfit, DriveUnreachable
from host.deploy.verb_protocol import DriveSite, Verb, VerbOutcome

# A symbolic link is made with its content in one step, or not at all. It says who holds the drive, of which boot, since
# when and until when, in the drive's own seconds since that boot: its date may be wrong.
_TAKE = """\
now=$(cut -d. -f1 /proc/uptime) boot=$(cat /proc/sys/kernel/random/boot_id)
mine={token}:$boot:$now:$((now + {seconds}))
held=$(readlink lock) || held=
if [ -n "$held" ]; then
    until=${{held##*:}} rest=${{held%:*}}
    begun=${{rest##*:}}
    case $held in
        {dead}) ;;
        *:"$boot":*:*) if [ "$now" -le "$until" ]; then echo "$held $((now - begun)) $((until - now))"; exit 0; fi ;;
    esac
    mv lock "lock.$$" && rm -f "lock.$$"
fi
if ln -s "$mine" lock 2>/dev/null; then echo taken; else echo again; fi
"""
_RELEASE_SECONDS = 20.0
# Locks that this process holds now.
_HELD: set[str] = set()


@contextlib.contextmanager
def held(site: DriveSite, first: str = ":") -> Iterator[None]:
    """Hold the drive while the block runs.

    A lock goes with the drive's boot, with the process that took it, where that was on this machine, and after the
    time that its verb had.

    Args:
        site: the drive, whose folder is there once `first` was done.
        first: command to begin with.

    Raises:
        DriveUnfit: another one holds it; says who, since when, and until when.
        DriveUnreachable: the connection broke.
    """
    token = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
    _HELD.add(token)
    folder = shlex.quote(str(site.layout.folder))
    try:
        _take(site, token, f"{first}\ncd {folder} || exit 1\n")
        try:
            yield
        finally:
            release = f"cd {folder} 2>/dev/null && case $(readlink lock) in {token}:*) rm -f lock ;; esac; true"
            with contextlib.suppress(DriveUnreachable):  # nobody waits for a lock whose holder is gone
                site.shell.run(release, Deadline(_RELEASE_SECONDS), root=True)
    finally:
        _HELD.discard(token)


def _take(site: DriveSite, token: str, first: str) -> None:
    dead = "none"
    while True:
        command = _TAKE.format(token=token, seconds=int(site.deadline.left_seconds) + 1, dead=dead)
        if (said := site.shell.check(first + command, site.deadline, root=True)) == "taken":
            return
        if said == "again":  # another one was faster
            continue
        holder, age, left = said.split()
        if holder == dead or _may_live(holder):
            host, process = holder.split(":")[:2]
            raise DriveUnfit(
                f"drive {site.drive.name}: process {process} on {host} has been working on it for {age} s; wait until "
                f"it has ended (its lock ends in {left} s), then run it again"
            )
        dead = holder


def _may_live(holder: str) -> bool:
    """Return whether the holder of a lock may still be there; of another machine nobody knows."""
    host, process, token = holder.split(":")[:3]
    if host != socket.gethostname() or not process.isdecimal():
        return True
    return f"{host}:{process}:{token}" in _HELD if int(process) == os.getpid() else psutil.pid_exists(int(process))


def unless_lent(verb: Verb) -> Verb:
    """Return the verb, which refuses a drive that is lent to an array that is up."""

    def guarded(site: DriveSite) -> VerbOutcome:
        refuse_lent(site)
        return verb(site)

    return guarded


def refuse_lent(site: DriveSite) -> None:
    """Raise if an array that is up uses the drive.

    Raises:
        DriveUnfit: says which array.
        DriveUnreachable: the connection broke.
    """
    try:
        lease = Slot(site.shell, site.layout).look().lease
    except DriveUnfit:  # what is damaged serves no array, and must be repaired or removed
        return
    if lease is not None:
        raise DriveUnfit(
            f"drive {site.drive.name}: is lent to array {lease.array!r} of {lease.server}; run csd-emu down "
            f"{lease.array} there first, or add --force, which takes the drive from it"
        )
