"""Authority that enrols real drives, kept in a folder of its own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.core.owned_files import replace_file
from host.fleet.certificate_serials import locked
from host.fleet.certificates import Authority, Credential

_KEY, _CERTIFICATE = "ca.key", "ca.pem"


def authority_folder(paths: Paths, inventory: str) -> Path:
    """Return the folder that the server keeps for the deployment of an inventory of this name."""
    return paths.state / "deployments" / inventory


def has_authority(folder: Path) -> bool:
    """Return whether the deployment whose folder this is has its authority already."""
    return (folder / _KEY).exists()


def open_authority(folder: Path, name: str) -> Authority:
    """Return the authority of the deployment `name`, made and kept in `folder` if it is new.

    Raises:
        ConfigurationError: others can read its key, or it is damaged.
        EnvironmentUnfit: the folder cannot be written.
    """
    try:
        with locked(folder):
            if not has_authority(folder):
                made = Authority(name)
                replace_file(folder / _CERTIFICATE, made.ca_pem.encode())
                _write_private(folder / _KEY, made.private_pem)
            return _load(folder, name)
    except OSError as error:
        raise EnvironmentUnfit(f"{folder}: cannot be used ({error}); free space, or set CSD_EMU_HOME") from error


def _load(folder: Path, name: str) -> Authority:
    path = folder / _KEY
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigurationError(f"{path}: others can read this private key; set its mode to 600, and enrol --renew")
    try:
        saved = Credential((folder / _CERTIFICATE).read_text(encoding="utf-8"), path.read_text(encoding="utf-8"))
        return Authority(name, saved)
    except ValueError as error:
        raise ConfigurationError(
            f"{folder}: this authority is damaged ({error}); restore it, or remove the folder and enrol all drives"
        ) from error


def _write_private(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
