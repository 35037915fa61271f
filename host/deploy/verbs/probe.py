"""The verb ``probe``: what a drive is, whether the agent fits, and how fast the connection to it is."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from csd_emu.engines.remote.inventory import DriveEntry
from csd_emu.engines.remote.shell import Shell
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import DriveUnfit
from host.deploy.compatibility import SCRIPT, DriveRequirements, Facts, Fitness, dotted, judge, parse_facts
from host.deploy.verb_protocol import DriveSite, VerbOutcome, VerbResult


def read_facts(shell: Shell, drive: DriveEntry, deadline: Deadline) -> Facts:
    """Ask a drive what it is; changes nothing.

    Raises:
        DriveUnreachable: the connection broke, or the deadline passed.
        DriveUnfit: it has no POSIX shell that runs the script.
    """
    line = f"/bin/sh -s -- {shlex.quote(drive.folder)} {shlex.quote(drive.data or '')}"
    if (answer := shell.run(line, deadline, SCRIPT.read_bytes())).code != 0 and not answer.out:
        said = (answer.err.strip().splitlines() or ["it said nothing"])[-1]
        raise DriveUnfit(
            f"drive {drive.name}: has no POSIX shell that runs scripts ({said}); see what `ssh` says there"
        )
    return parse_facts(drive.name, answer.out)


def probe(site: DriveSite) -> VerbOutcome:
    """Probe one drive; a drive that does not fit is a failure."""
    site.show("read what it is", None)
    facts = read_facts(site.shell, site.drive, site.deadline)
    fitness = judge(facts, DriveRequirements(), time.time())
    site.show("measure the link", None)
    shown = describe(facts, fitness, measure_link(site.shell, site.deadline))
    if fitness.form is None:
        return VerbOutcome(site.drive.name, VerbResult.FAILED, "does not fit: " + "; ".join(fitness.problems), shown)
    what = "; ".join((f"fits ({fitness.form.value})", *fitness.notes))
    return VerbOutcome(site.drive.name, VerbResult.DONE, what, shown)


def describe(facts: Facts, fitness: Fitness, speed: LinkSpeed) -> dict[str, object]:
    """Return all that was found, by names with units, as `--json` prints it."""
    shown = asdict(facts) | asdict(speed)
    shown["libc"] = f"{facts.libc} {dotted(facts.libc_version)}".strip() or None
    shown["python"] = ", ".join(dotted(one.version) for one in facts.pythons) or None
    shown["pythons"] = [{"path": one.path, "version": dotted(one.version), "bits": one.bits} for one in facts.pythons]
    shown["kernel"] = facts.kernel_text
    for name in ("kernel_text", "libc_version"):
        del shown[name]
    form = None if fitness.form is None else fitness.form.value
    return shown | {"clock": "wall", "form": form, "problems": fitness.problems, "notes": fitness.notes}


FIRST_BYTES, MOST_BYTES = 2**18, 2**23
# A measurement that took less is repeated with more bytes: too much of it was the start of a command.
ENOUGH_SECONDS, ENOUGH_TRIPS = 0.5, 5.0
_BLOCK_BYTES = 2**16
_SEND = f"dd if=/dev/urandom bs={_BLOCK_BYTES} count={{}} 2>/dev/null"


@dataclass(frozen=True)
class LinkSpeed:
    """The clock is ``wall``: other work on the way shows.

    Attributes:
        upload_bytes_per_second, download_bytes_per_second: to the drive and from it, start of a command included.
        round_trip_seconds: of the shortest of some empty commands.
    """

    upload_bytes_per_second: float
    download_bytes_per_second: float
    round_trip_seconds: float


def measure_link(shell: Shell, deadline: Deadline, now: Callable[[], float] = time.monotonic) -> LinkSpeed:
    """Send random bytes to a drive and have it send some; `now` returns monotonic seconds.

    Raises:
        DriveUnreachable: the connection broke, or it takes longer than the deadline allows.
        DriveUnfit: the drive cannot send or receive.
    """

    def run(command: str, stdin: bytes) -> float:
        begin = now()
        shell.check(command, deadline, stdin)
        return now() - begin

    trip = min(run(":", b"") for _ in range(3))
    return LinkSpeed(
        _rate(lambda size: run("cat >/dev/null", os.urandom(size)), trip),
        # Zeros would be compressed away by a tunnel that does so; a slow drive's random bytes are its own speed.
        _rate(lambda size: run(_SEND.format(size // _BLOCK_BYTES), b""), trip),
        trip,
    )


def _rate(transfer: Callable[[int], float], trip_seconds: float) -> float:
    """Return bytes per second of a `transfer`, given so many bytes that the start of its command weighs little."""
    size = FIRST_BYTES
    while True:
        if (seconds := transfer(size)) >= max(ENOUGH_SECONDS, ENOUGH_TRIPS * trip_seconds) or size >= MOST_BYTES:
            return size / seconds
        size *= 2
