"""One run of a sweep."""

from __future__ import annotations

from typing import Any

import msgspec

# All others are the better the less they are.
THE_MORE = ("accuracy", "records_per_device_second", "records_per_array_second", "rounds")


class SweptRun(msgspec.Struct, frozen=True):
    """One run of a sweep.

    Attributes:
        point: key -> value, ``seed`` among them.
        sha256: of all that decides the run: job, array, and the files that they name.
        directory: of the run; empty if it has none.
        error: why it failed; empty if it did not. Such a run is tried again when the sweep goes on.
        clock: of its figures.
        figures: what it came to (`FIGURES`).
    """

    point: dict[str, Any]
    sha256: str = ""
    directory: str = ""
    error: str = ""
    clock: str = ""
    figures: dict[str, float] = {}
