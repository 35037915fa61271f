"""Array files, with the real drives that an inventory names."""

from __future__ import annotations

from pathlib import Path

from csd_emu.config.array_file import ArrayConfig
from csd_emu.util.config_files import load_config, parse_config
from firmware_agent.common.errors import ConfigurationError


def read_array(path: Path, engine: str | None = None) -> ArrayConfig:
    """Read an array file; `engine` replaces the file's, if given.

    Raises:
        ConfigurationError: the file breaks a rule.
    """
    config = load_config(path, ArrayConfig)
    if engine is not None:
        if any(group.engine is not None for group in config.devices):
            raise ConfigurationError(
                f"--engine {engine}: the groups of {path} name their own engines; leave it out, or change the file"
            )
        config = parse_config(config.model_dump(mode="json") | {"engine": engine}, ArrayConfig, "--engine")
    if config.inventory is None:
        return config
    from csd_emu.engines.remote.inventory import resolve_members  # most arrays have no real drive

    return resolve_members(config, path.parent, str(path))
