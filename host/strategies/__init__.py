"""The old import path of `csd_emu.extend`; the next release is without it."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """Return what `name` stands for, with a warning that names its new home."""
    if name.startswith("__"):
        raise AttributeError(name)
    warnings.warn(f"host.strategies is deprecated: import {name} from csd_emu.extend", FutureWarning, stacklevel=2)
    return getattr(importlib.import_module("host.policies.aggregation"), name)
