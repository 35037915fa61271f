"""An old import path of `csd_emu.extend`; the next release is without it."""

from __future__ import annotations

from firmware_agent.common.imports import moved

__getattr__ = moved(__name__, "firmware_agent.common.errors")
