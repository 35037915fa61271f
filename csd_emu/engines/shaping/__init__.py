"""A shaped link: on the wall clock, the drives of an array of native devices share a bandwidth each way."""

from __future__ import annotations

from csd_emu.engines.shaping.choose_shaper import make_shaper, release
from csd_emu.engines.shaping.shaper import Shape, Shaper, link_shape

__all__ = ["Shape", "Shaper", "link_shape", "make_shaper", "release"]
