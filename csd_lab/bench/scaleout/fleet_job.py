"""Messages between the processes of `csd_lab.bench.scaleout.scaleout_fleet`: files that only their user can read."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

# The shard that every stub says it has.
MANIFEST = "a" * 64
KEYS_FOLDER, HOST_FILE = "keys", "host.json"

T = TypeVar("T")


class HostTask(msgspec.Struct, frozen=True):
    """What the host process shall do.

    Attributes:
        port: on which it listens, of loopback.
        devices: names of the drives.
        elements: float32 of the one tensor that crosses.
        rounds: that are measured.
        seed: of the tensor.
        deadline_seconds: wall time in which all of it must be done.
    """

    port: int
    devices: list[str]
    elements: int
    rounds: int
    seed: int
    deadline_seconds: float


class HostReport(msgspec.Struct, frozen=True):
    """What the host process saw; wall and processor seconds, bytes of resident memory.

    Attributes:
        joined_seconds: from listening to the last drive's hello.
        round_seconds: of each round.
        processor_seconds: of this process, per round.
        before_bytes: before it listened: interpreter and libraries.
        joined_bytes: with all sessions there, before the first round.
        after_bytes: after the last round.
        peak_bytes: the most at any time.
    """

    joined_seconds: float
    round_seconds: list[float]
    processor_seconds: float
    before_bytes: int
    joined_bytes: int
    after_bytes: int
    peak_bytes: int


class Credentials(msgspec.Struct, frozen=True):
    """A stub's name, certificate and key."""

    device: str
    certificate_pem: str
    key_pem: str


class StubTask(msgspec.Struct, frozen=True):
    """Names of the stubs in one process, and the address that they dial."""

    port: int
    ca_pem: str
    stubs: list[Credentials]


def write_task(path: Path, task: HostTask | StubTask) -> None:
    """Write a task for its process; keys are in it."""
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(task))


def read_task(path: Path, kind: type[T]) -> T:
    """Read what `write_task` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=kind)
