"""Python's search for cyclic garbage, made rare while many drives train."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

# A round of a thousand drives makes some ten thousand objects that all live until it ends, and hardly any cycle. By
# default every 700 new ones are looked through, and with them, over and over, all that libraries have made at import.
_YOUNG_OBJECTS = 50_000


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Inside the block, leave alone what is there at its beginning, and look through what is new less often."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(_YOUNG_OBJECTS, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
