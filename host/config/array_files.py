"""Array files, with the real drives that an inventory names."""

from __future__ import annotations

from pathlib import Path

from csd_emu.config.array_file import SAMPLED, ArrayConfig
from csd_emu.config.engine_names import AS_IN_FILE, ArrayChanges
from csd_emu.util.config_files import load_config, parse_config
from firmware_agent.common.errors import ConfigurationError


def read_array(path: Path, changes: ArrayChanges = AS_IN_FILE) -> ArrayConfig:
    """Read an array file; `changes` replace its keys.

    Raises:
        ConfigurationError: the file breaks a rule, or would with the changes.
    """
    config = load_config(path, ArrayConfig)
    if changes.engine is not None and any(group.engine is not None for group in config.devices):
        raise ConfigurationError(
            f"--engine {changes.engine}: the groups of {path} name their own engines; leave it out, or change the file"
        )
    if given := {key: value for key, value in changes._asdict().items() if value is not None}:
        kept = config.model_dump(mode="json", exclude={"samplers"} if given.get("clock", SAMPLED) != SAMPLED else None)
        config = parse_config(kept | given, ArrayConfig, ", ".join(f"--{key}" for key in given))
    if config.inventory is None:
        return config
    from csd_emu.engines.remote.inventory import resolve_members  # most arrays have no real drive

    return resolve_members(config, path.parent, str(path))
