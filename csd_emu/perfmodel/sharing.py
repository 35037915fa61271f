"""The host's side of the link, which transfers share: when it has carried each of them, and the last.

Each direction gives all transfers in progress equal shares of its bandwidth, and is never idle while there is one
(egalitarian processor sharing; Kleinrock, "Time-shared systems: a theoretical treatment", JACM 14, 1967). Two questions
have a closed form, for arrays with any leading axes:

* Transfers that begin together end in the order of their sizes: with sizes ``s_1 <= .. <= s_n`` the k-th ends
  ``sum over j <= k of (s_j - s_{j-1}) (n - j + 1) / bandwidth`` later (`Link.carry_together`).
* The last of transfers that begin at any time ends at ``max over t of t + (bytes that begin at t or later) /
  bandwidth``: so does any link that never idles while it has work (Reich, "On the integrodifferential equation of
  Takacs", Annals of Mathematical Statistics 29, 1958; `Link.carry_last`, and `queued` for the bytes).

When each of transfers ends that begin at any time takes one pass over these events (`Link.carry_each`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from firmware_agent.common.errors import ConfigurationError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Link:
    """The host's side of the link.

    Attributes:
        bytes_per_second: each way.
        latency_seconds: of every message, beside the device's own.
        shared: by all devices; else each device has this bandwidth for itself.
    """

    bytes_per_second: float
    latency_seconds: float
    shared: bool = True

    def carry_together(self, sizes: Floats, begin_seconds: Floats | float = 0.0) -> Floats:
        """Return (.., transfers) when this side has carried each of transfers that begin together.

        Args:
            sizes: (.., transfers) bytes; of those that are empty nothing is said.
            begin_seconds: (.., 1) when they begin, or one number for all.
        """
        if not self.shared or not sizes.shape[-1]:
            return np.asarray(begin_seconds + sizes / self.bytes_per_second)
        if (size := one_size(sizes)) is not None:
            count = np.count_nonzero(sizes, axis=-1, keepdims=True)
            return np.broadcast_to(begin_seconds + size * count / self.bytes_per_second, sizes.shape)
        order = np.argsort(sizes, axis=-1, kind="stable")
        ordered = np.take_along_axis(sizes, order, -1)
        lengths = np.diff(ordered, axis=-1, prepend=0.0) * np.arange(sizes.shape[-1], 0, -1) / self.bytes_per_second
        lengths[..., :1] += begin_seconds
        ends = np.empty_like(lengths)
        np.put_along_axis(ends, order, np.cumsum(lengths, axis=-1), -1)
        return ends

    def carry_last(self, sizes: Floats, begins: Floats) -> Floats:
        """Return (..,) when this side has carried the last of some transfers; -inf if all are empty.

        Args:
            sizes: (.., transfers) bytes.
            begins: (.., transfers) seconds, -inf of those that are empty.
        """
        if not self.shared:
            return np.asarray((begins + sizes / self.bytes_per_second).max(axis=-1, initial=-np.inf))
        if (size := one_size(sizes)) is not None:  # as gradients of one model are: then only the begins need sorting
            ordered, left = np.sort(begins, axis=-1), size * np.arange(sizes.shape[-1], 0, -1)
        else:
            order = np.argsort(begins, axis=-1)
            ordered = np.take_along_axis(begins, order, -1)
            left = np.cumsum(np.take_along_axis(sizes, order, -1)[..., ::-1], axis=-1)[..., ::-1]
        return np.asarray((ordered + left / self.bytes_per_second).max(axis=-1, initial=-np.inf))

    def carry_each(self, sizes: Sequence[float], begins: Sequence[float]) -> list[float]:
        """Return when this side has carried each transfer; O(n log n), and an empty one ends as it begins."""
        if not self.shared:
            return [begin + size / self.bytes_per_second for size, begin in zip(sizes, begins, strict=True)]
        return _share(sizes, begins, self.bytes_per_second)


def one_size(sizes: Floats) -> float | None:
    """Return the size that all transfers have which are not empty, 0 if all are; None if they have several."""
    size = float(sizes.max(initial=0.0))
    return size if np.all((sizes == size) | (sizes == 0)) else None


def queued(amounts: Floats, begins: Floats) -> Floats:
    """Return (.., groups) how much of the `amounts`, (.., groups), begins at each group's begin or later, its own too.

    It compares all with each other: for groups of equal transfers, of which there are few.
    """
    every = np.ones(begins.shape[-1])
    return np.stack([(amounts * (begins >= begins[..., [place]])) @ every for place in range(len(every))], axis=-1)


def _share(sizes: Sequence[float], begins: Sequence[float], rate: float) -> list[float]:
    """Return when a shared link has carried each transfer.

    `level` is the bytes that a transfer in progress since the busy period's begin would have been given by now: one
    that enters at level x with s bytes ends at level x + s.
    """
    ends = list(begins)
    order = sorted((index for index, size in enumerate(sizes) if size), key=lambda index: (begins[index], index))
    waiting: list[tuple[float, int]] = []
    now = level = 0.0
    position = 0
    while waiting or position < len(order):
        if not waiting:
            now, level = begins[order[position]], 0.0
        arrival = begins[order[position]] if position < len(order) else math.inf
        end = now + (waiting[0][0] - level) * len(waiting) / rate if waiting else math.inf
        if arrival <= end:
            level += (arrival - now) * rate / len(waiting) if waiting else 0.0
            now = arrival
            heapq.heappush(waiting, (level + sizes[order[position]], order[position]))
            position += 1
        else:
            level, index = heapq.heappop(waiting)
            now = ends[index] = max(now, end)
    return ends


def check_numbers(who: str, rates: Mapping[str, float], counts: Mapping[str, float]) -> None:
    """Return if the `rates` are positive and the `counts` not negative, all finite.

    Raises:
        ConfigurationError: one is not; it is named as `who` has it.
    """
    wrong = [(name, value, "positive number") for name, value in rates.items() if not 0 < value < math.inf]
    wrong += [(n, value, "number that is not negative") for n, value in counts.items() if not 0 <= value < math.inf]
    for name, value, wanted in wrong:
        raise ConfigurationError(f"{who}: {name} is {value!r}; it must be a {wanted}")
