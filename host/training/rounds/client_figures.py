"""Names under which what client programs return is told: in rounds, tables and trackers."""

from __future__ import annotations

from collections.abc import Iterable


def name_figures(returned: Iterable[Iterable[str]]) -> dict[str, str]:
    """Return NAME -> ``train_NAME``, of the names that the drives of a round returned.

    A name that begins so already stays, unless it is that of the round's own loss, or that another's becomes.
    """
    names = dict.fromkeys(name for each in returned for name in each)
    taken = {"train_loss", *(f"train_{name}" for name in names)}
    return {name: name if name.startswith("train_") and name not in taken else f"train_{name}" for name in names}
