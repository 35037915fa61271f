"""Unique name of a server, by which a drive knows which server it is lent to."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from csd_emu.util.file_locks import locked
from firmware_agent.common.atomic_files import make_folder, replace_file, shared_mode
from firmware_agent.common.errors import EnvironmentUnfit

_FILE = "server-id"
_ID_BYTES = 6


def server_id(state: Path) -> str:
    """Return the name that goes with csd-emu's state on this machine: the host's, and digits drawn once and kept.

    Two users of one machine, with arrays of the same name, have two.

    Raises:
        EnvironmentUnfit: `state` cannot be written.
    """
    path = state / _FILE
    try:
        make_folder(state, shared_mode())
        if not path.exists():
            with locked(state):
                if not path.exists():  # whoever is first draws it for all
                    replace_file(path, f"{socket.gethostname()}-{secrets.token_hex(_ID_BYTES)}\n".encode(), 0o644)
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise EnvironmentUnfit(f"{path}: cannot be used ({error}); free space, or set CSD_EMU_HOME") from error
