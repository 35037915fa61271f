"""Python's garbage collector, told to look seldom: a large run makes many objects and hardly any cycles."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from host.core.interrupts import INTERRUPTS

# A round of a thousand drives allocates about ten thousand objects that live until it ends, and hardly any cycles. By
# default Python collects after every 700 allocations, and scans all objects that libraries made at import as well.
_YOUNG_OBJECTS = 50_000


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Inside the block, leave alone what is there at its beginning, and look through what is new less often."""
    before = gc.get_threshold()
    with INTERRUPTS.deferred():  # Python drops what is raised while it runs a weak reference's callback
        gc.collect()
    gc.freeze()
    gc.set_threshold(max(_YOUNG_OBJECTS, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
