"""Passwords that are made at the first start and stay in their volume."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from firmware_agent.common.errors import EnvironmentUnfit

GRAFANA = "grafana-admin-password"
_BYTES = 24


def ensure_secret(folder: Path, name: str) -> Path:
    """Return the file of a secret; it is made if it is not there.

    Others may read it: its folder is a volume of its own, which only those containers have that need it.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    path, partial = folder / name, folder / f"{name}.partial"
    if path.exists():
        return path
    try:
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
        with open(descriptor, "w", encoding="ascii") as stream:
            stream.write(secrets.token_urlsafe(_BYTES))
        partial.replace(path)
    except OSError as error:
        raise EnvironmentUnfit(
            f"{path} cannot be written ({error.strerror}); free space, or make the volume writable"
        ) from error
    return path
