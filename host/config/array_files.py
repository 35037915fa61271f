"""Array files, with the real drives that an inventory names."""

from __future__ import annotations

from pathlib import Path

from csd_emu.config.array_file import SAMPLED, ArrayConfig
from csd_emu.config.engine_names import AS_IN_FILE, ArrayChanges
from csd_emu.util.config_files import load_config, parse_config
from firmware_agent.common.errors import ConfigurationError

ARRAY_FILE = "array.yaml"
DEFAULT_NAME = "array"


def find_array(job: Path, array: Path | None, changes: ArrayChanges) -> Path | None:
    """Return the array file of a job: the one that is given, else ``array.yaml`` beside the job.

    None if there is none, and the changes say which drives there are.

    Raises:
        ConfigurationError: they do not either.
    """
    beside = job.parent / ARRAY_FILE
    if array is not None or beside.is_file():
        return array or beside
    if "devices" not in changes.keys:
        raise ConfigurationError(
            f"on which drives? There is no {beside}; give --array ARRAY.YAML, or --drives N with --profile NAME"
        )
    return None


def read_array(path: Path | None, changes: ArrayChanges = AS_IN_FILE) -> ArrayConfig:
    """Read an array file; `changes` replace its keys, or say all if there is no file.

    Raises:
        ConfigurationError: the file breaks a rule, or would with the changes.
    """
    if path is None:
        if "devices" not in changes.keys:
            raise ConfigurationError("no array is given: name its file, or how many drives of which profile")
        return parse_config({"name": DEFAULT_NAME} | changes.keys, ArrayConfig, changes.options)
    config, given = load_config(path, ArrayConfig), changes.keys
    named = any(group.engine is not None for group in config.devices) and "devices" not in given
    if changes.engine is not None and named:
        raise ConfigurationError(
            f"--engine {changes.engine}: the groups of {path} name their own engines; leave it out, or change the file"
        )
    if given:
        kept = config.model_dump(mode="json", exclude={"samplers"} if given.get("clock", SAMPLED) != SAMPLED else None)
        config = parse_config(kept | given, ArrayConfig, changes.options)
    return with_real_drives(config, path)


def with_real_drives(config: ArrayConfig, path: Path) -> ArrayConfig:
    """Return an array with the drives of its inventory, if it has one; `path` is its file's.

    Raises:
        ConfigurationError: the inventory breaks a rule.
    """
    if config.inventory is None:
        return config
    from csd_emu.engines.remote.inventory import resolve_members  # most arrays have no real drive

    return resolve_members(config, path.parent, str(path))
