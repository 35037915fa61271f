"""Imports of the user's files that travel, against what a virtual machine's image has."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from importlib import metadata

from csd_emu.config.array_file import QEMU, ArrayConfig
from csd_emu.image.image_recipe import image_folder
from csd_emu.image.wheels import read_lock
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.user_code.source_files import top_imports


def check_imports(config: ArrayConfig, sources: Mapping[str, str | None]) -> None:
    """Return if virtual machines have what files of the user's import when they are loaded.

    Args:
        config: the array; real drives, and processes on this machine, have what is installed there.
        sources: name, as the job has it -> text of its file; None for what is in no file.

    Raises:
        ConfigurationError: they lack a package that this machine has.
    """
    if QEMU not in config.engines:
        return
    locked = {requirement.pin.partition("==")[0] for requirement in read_lock(image_folder() / "requirements.lock")}
    owners = metadata.packages_distributions()
    for name, source in sources.items():
        for module, line in top_imports(source or ""):
            if _lacks(owners.get(module, ()), locked) and module not in sys.stdlib_module_names:
                raise ConfigurationError(
                    f"{name}: line {line} imports {module}, which drives of this array do not have: there are torch, "
                    "NumPy and the standard library; import it where the host alone comes, or put what you need of it "
                    "into a file beside yours"
                )


def _lacks(owners: Collection[str], locked: Collection[str]) -> bool:
    return bool(owners) and not any(owner.lower().replace("_", "-") in locked for owner in owners)
