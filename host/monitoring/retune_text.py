"""Changes of batch sizes, for people."""

from __future__ import annotations

from host.core.records import RetuneRecord

_MOST_NAMES = 4


def describe_batches(retune: RetuneRecord, most: int = _MOST_NAMES) -> str:
    """Return the batches that change, such as ``csd-01 32 -> 15``; at most so many devices by name."""
    names = dict.fromkeys([*retune.before, *retune.after])
    changes = [(name, retune.before.get(name, 0), retune.after.get(name, 0)) for name in names]
    told = [f"{name} {before} -> {after}" for name, before, after in changes if before != after]
    rest = f" and {len(told) - most} more" if len(told) > most else ""
    return ", ".join(told[:most]) + rest if told else "no batch changes"
