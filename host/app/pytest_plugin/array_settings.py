"""From marks and options to what an array shall be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

DEFAULT_DEVICES, DEFAULT_PROFILE = 2, "newport"


def read_marks(node: pytest.Item, config: pytest.Config) -> dict[str, Any]:
    """Return the keys of an array file that a test asks for, and ``array``, a path, if it names a file.

    A mark of the test goes before one of its class, and that before one of its module.
    """
    asked: dict[str, Any] = {}
    for mark in node.iter_markers("csd"):
        if mark.args:
            raise pytest.UsageError(f"{node.nodeid}: the mark csd takes names, as in csd(devices=3)")
        asked = dict(mark.kwargs) | asked
    return merge(asked, str(config.getini("csd_engine")), config.getoption("csd_engine"))


def merge(asked: Mapping[str, Any], usual_engine: str, engine: str | None) -> dict[str, Any]:
    """Return the keys with devices spelt out, and the engine that goes before the others.

    Args:
        asked: by marks.
        usual_engine: where neither mark nor file says one; may be empty.
        engine: of the command line, which goes before all others; None if there is none.
    """
    keys = dict(asked)
    devices, profile = keys.pop("devices", None), keys.pop("profile", None)
    if isinstance(devices, int) or profile is not None or (devices is None and "array" not in keys):
        count = DEFAULT_DEVICES if devices is None else devices
        if not isinstance(count, int):
            raise pytest.UsageError("the mark csd takes profile= with a number of devices, not with groups of them")
        devices = [{"profile": profile or DEFAULT_PROFILE, "count": count}]
    if devices is not None:
        keys["devices"] = devices
    if engine is not None:
        keys["engine"] = engine
    elif usual_engine and "array" not in keys:
        keys.setdefault("engine", usual_engine)
    return keys
