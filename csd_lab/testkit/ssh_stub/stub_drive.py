"""A stub drive: its fault, its folder, and the commands of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from csd_emu.engines.remote.shell import CommandResult

USER = "stub"


class StubFault(Enum):
    """What is wrong with a stub drive."""

    NONE = "nothing"
    REFUSE = "nothing listens on its port"
    HANG = "it accepts connections and says nothing"
    NONSENSE = "something else than an SSH server answers"
    GARBLED = "its list of algorithms is no text"
    WRONG_KEY = "it has another host key than the known one"
    NO_LOGIN = "it refuses every key"
    CUT = "the connection breaks after some bytes, once"
    FULL = "its disk is full"
    NO_SUDO = "its user may not become root"
    NO_SHELL = "every command ends with 127"


AnswerTo = Callable[[str, bytes], CommandResult | None]
"""Is given a command and its standard input; None: the stub drive's shell runs it."""


@dataclass(frozen=True)
class StubDrive:
    """One stub drive.

    Attributes:
        name: in the inventory.
        fault: what is wrong with it.
        cut_after_bytes: received from the client, after which `StubFault.CUT` strikes.
        answer: in place of the shell, for commands that it answers.
    """

    name: str
    fault: StubFault = StubFault.NONE
    cut_after_bytes: int = 2**17
    answer: AnswerTo | None = None


def furnish(home: Path, fault: StubFault) -> None:
    """Make a drive's folder, with commands of its own where the drive differs from this machine."""
    commands = {
        "id": f'case "$1" in -u) echo 1000;; -un) echo {USER};; *) exec /usr/bin/id "$@";; esac',
        "sudo": "while [ $# -gt 0 ]; do case $1 in -n|--) shift;; *) break;; esac; done\n"
        'PATH="$(dirname "$0")/root:$PATH" exec "$@"',
    }
    if fault is StubFault.NO_SUDO:
        commands["sudo"] = 'echo "sudo: a password is required" >&2; exit 1'
    if fault is StubFault.FULL:
        commands["dd"] = 'head -c 65536 >/dev/null; echo "dd: error writing: No space left on device" >&2; exit 1'
    (home / "bin" / "root").mkdir(parents=True)
    _write_command(home / "bin" / "root" / "id", 'case "$1" in -u) echo 0;; *) exec /usr/bin/id "$@";; esac')
    for name, script in commands.items():
        _write_command(home / "bin" / name, script)


def _write_command(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
