"""Names of nodes, and of arrays of machines beside them, that every layer knows."""

from __future__ import annotations

import hashlib

HOST = "host"
"""The host, where it is named beside drives: as a node that trains, and in events, spans and metrics."""

# What a virtual machine is called that counts steps, and how many an array can have.
COUNTER, MAX_COUNTERS = "counter", 64
_NAME_CHARACTERS = 31


def counter_array(array: str, number: int) -> str:
    """Return the name of the array of one machine that counts steps of another array; long names end in a hash."""
    ending = f"-{COUNTER}{number}"
    if len(array) + len(ending) <= _NAME_CHARACTERS:
        return array + ending
    digest = hashlib.sha256(array.encode()).hexdigest()[:6]
    return array[: _NAME_CHARACTERS - len(ending) - len(digest)] + digest + ending
