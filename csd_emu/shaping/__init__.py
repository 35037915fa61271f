"""A shaped link: on the wall clock, the drives of an array of native devices share a bandwidth each way."""

from __future__ import annotations

from csd_emu.shaping.base import Shaper, link_shape
from csd_emu.shaping.choose import make_shaper, release
from csd_emu.shaping.shape import Shape

__all__ = ["Shape", "Shaper", "link_shape", "make_shaper", "release"]
