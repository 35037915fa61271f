"""Keys given in place of a job file's: ``sync.straggler_factor=1.5`` on the command line, mappings in Python."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from csd_emu.util.yaml_files import parse_yaml
from firmware_agent.common.errors import ConfigurationError

NO_KEYS: Mapping[str, Any] = {}


def parse_assignments(assignments: Iterable[str], option: str) -> dict[str, Any]:
    """Return key -> value of texts such as ``sync.precision=fp16``, whose values are YAML.

    Raises:
        ConfigurationError: one is no assignment, its value is no YAML, or a key is given twice.
    """
    values: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f"{option} {text}: write KEY=VALUE, for example {option} rounds=6")
        merge_keys(values, {key.strip(): parse_yaml(value, f"{option} {text}")}, option)
    return values


def given_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, with dots between a section and its key: neither None nor empty."""
    return {key: value for key, value in values.items() if value is not None and value != []}


def chosen_keys(assignments: Iterable[str] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a job file that ``--set`` and options of their own give.

    Raises:
        ConfigurationError: an assignment is none, or a setting is given twice.
    """
    keys = parse_assignments(assignments or (), "--set")
    merge_keys(keys, given_keys(options), "--set")
    return keys


def merge_keys(values: dict[str, Any], more: Mapping[str, Any], option: str) -> None:
    """Add `more` keys to `values`.

    Raises:
        ConfigurationError: one is there, or is within one that is there, or the other way round.
    """
    for key, value in more.items():
        for other in values:
            if key == other or key.startswith(f"{other}.") or other.startswith(f"{key}."):
                both = key if key == other else f"{other} and {key}"
                raise ConfigurationError(f"{option}: {both}: one setting is given twice; leave one out")
        values[key] = value


def override(content: Mapping[str, Any], keys: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the content of a file with `keys`, dots between a section and its key, in place of its own.

    Raises:
        ConfigurationError: what should hold a key is no section; the message begins with `where`.
    """
    changed = copy.deepcopy(dict(content))
    for key, value in keys.items():
        section, (*path, last) = changed, key.split(".")
        for name in path:
            inner = section.get(name)
            if inner is None:
                inner = section[name] = {}
            if not isinstance(inner, dict):
                raise ConfigurationError(f"{where}: {key}: {name} is no section but {inner!r}; give {name} as a whole")
            section = inner
        section[last] = value
    return changed
