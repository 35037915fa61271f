"""Hint of the word that was meant, for messages about one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def hint_at(wrong: str, known: Iterable[str], otherwise: str) -> str:
    """Return ``did you mean 'digits'?`` with the nearest of the `known` words; `otherwise` where none is near."""
    near = difflib.get_close_matches(wrong, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
