"""Exclusion of long-lived objects from garbage collection, so that the collector does not scan them repeatedly."""

from __future__ import annotations

import functools
import gc


@functools.cache
def set_aside() -> None:
    """Have the collector leave alone what lives now; at the first call alone.

    Else a full collection walks through every module of torch, again and again while steps are taken: 0.14 s each on a
    server's core, ten times that on a drive's. Once only, for what is set aside is never collected, not even when it
    has become garbage: so before anything large is made that will not stay.
    """
    gc.collect()
    gc.freeze()
