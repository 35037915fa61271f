"""`timeline.compose` for ten thousand drives that begin together, in milliseconds: arrays in, arrays out.

The composition is the same (docs/timeline.md). What a step's length needs is in closed form; only *when each drive's
send has arrived* needs the link's events one by one, so that is worked out when it is asked for.

* Receiving: all begin at 0. The link serves them equally, so they end in the order of their sizes, and the end of the
  k-th smallest is ``sum_{j <= k} (s_j - s_{j-1}) (n - j + 1) / bandwidth``.
* Sending: a link that never idles while it has work ends its last transfer at the maximum over t of
  ``t + (bytes that begin at t or later) / bandwidth``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.sharing import share_link
from csd_emu.perfmodel.timeline import Link
from csd_emu.profiles import Profile
from firmware_agent.common.errors import ConfigurationError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DriveFigures:
    """What does not change from step to step, (drives,) float64 each: see `timeline.Activity`."""

    flash_bytes_per_second: Floats
    flash_latency_seconds: Floats
    link_bytes_per_second: Floats
    link_latency_seconds: Floats

    @classmethod
    def of(cls, profiles: Sequence[Profile]) -> DriveFigures:
        """Return the figures of one drive per profile."""
        return cls(
            np.array([profile.flash_bytes_per_second.value for profile in profiles]),
            np.array([profile.flash_latency_seconds.value for profile in profiles]),
            np.array([profile.link_bytes_per_second.value for profile in profiles]),
            np.array([profile.link_latency_seconds.value for profile in profiles]),
        )


@dataclass(frozen=True)
class DriveWork:
    """What the drives do in one step, (drives,) float64 each: bytes, reads, seconds; all begin at 0."""

    receive_bytes: Floats
    read_bytes: Floats
    read_operations: Floats
    compute_seconds: Floats
    send_bytes: Floats


@dataclass(frozen=True)
class ArrayStep:
    """A step of the array.

    Attributes:
        seconds: from 0 to its end, the host's own work included.
        received_seconds: (drives,) when each had its weights.
        read_seconds: (drives,) how long each read from flash.
        ready_seconds: (drives,) when each had computed.
    """

    seconds: float
    received_seconds: Floats
    read_seconds: Floats
    ready_seconds: Floats
    _entered: Floats
    _work: DriveWork
    _figures: DriveFigures
    _link: Link

    @cached_property
    def finish_seconds(self) -> Floats:
        """(drives,) when each drive's send has arrived; unlike the rest it takes a pass over the link's events."""
        sizes, begins, link = self._work.send_bytes, self._entered, self._link
        if link.shared:
            # Sizes may be any numbers here; share_link only adds them up.
            carried = np.array(share_link(sizes.tolist(), begins.tolist(), link.bytes_per_second))
        else:
            carried = begins + sizes / link.bytes_per_second
        own = begins + sizes / self._figures.link_bytes_per_second
        return np.where(sizes > 0, np.maximum(carried, own) + link.latency_seconds, begins)

    @property
    def exposed_seconds(self) -> Floats:
        """(drives,) how long each did nothing but communicate."""
        return self.received_seconds + (self.finish_seconds - self.ready_seconds)


class StepComposer:
    """Composes the steps of one array; what has the same inputs as in the step before is not composed again."""

    def __init__(self, figures: DriveFigures, link: Link) -> None:
        """Take what stays the same."""
        self._figures, self._link = figures, link
        self._received: tuple[Floats, Floats] | None = None
        self._last: tuple[DriveWork, float, float, ArrayStep] | None = None

    def compose(self, work: DriveWork, host_work_seconds: float = 0.0, host_seconds: float = 0.0) -> ArrayStep:
        """Return how long a step takes; see `timeline.compose`.

        Args:
            work: of the drives.
            host_work_seconds: what the host's own part of the step takes (`Activity.work_seconds`), 0 without one.
            host_seconds: of the host's work once the last send has arrived.

        Raises:
            ConfigurationError: a number is negative or not finite, or arrays have different lengths.
        """
        if self._last is not None and self._last[1:3] == (host_work_seconds, host_seconds):
            before, step = self._last[0], self._last[3]
            if all(map(np.array_equal, _arrays(before), _arrays(work))):
                return step
        _check(work, self._figures, (host_work_seconds, host_seconds))
        step = self._compose(work, host_work_seconds, host_seconds)
        self._last = work, host_work_seconds, host_seconds, step
        return step

    def _compose(self, work: DriveWork, host_work_seconds: float, host_seconds: float) -> ArrayStep:
        figures, link = self._figures, self._link
        received = self._receive(work.receive_bytes)
        read = work.read_bytes / figures.flash_bytes_per_second + work.read_operations * figures.flash_latency_seconds
        ready = received + read + work.compute_seconds
        sends = work.send_bytes > 0
        entered = np.where(sends, ready + figures.link_latency_seconds, ready)
        last = max(host_work_seconds, float(ready.max(initial=0.0)))
        if sends.any():
            begins, sizes = entered[sends], work.send_bytes[sends]
            own = float(np.max(begins + sizes / figures.link_bytes_per_second[sends]))
            last = max(last, max(own, _last_carried(sizes, begins, link)) + link.latency_seconds)
        return ArrayStep(last + host_seconds, received, read, ready, entered, work, figures, link)

    def _receive(self, sizes: Floats) -> Floats:
        """Return when each drive has received; weights have the same size in every step, so seldom anew."""
        if self._received is None or not np.array_equal(self._received[0], sizes):
            figures, link = self._figures, self._link
            carried = _carry_together(sizes, link)
            arrived = np.maximum(carried, sizes / figures.link_bytes_per_second)
            latency = link.latency_seconds + figures.link_latency_seconds
            self._received = sizes.copy(), np.where(sizes > 0, arrived + latency, 0.0)
        return self._received[1]


def _carry_together(sizes: Floats, link: Link) -> Floats:
    """Return when the host's side has carried transfers that all begin at 0."""
    if not link.shared:
        return sizes / link.bytes_per_second
    order = np.argsort(sizes, kind="stable")
    steps = np.diff(sizes[order], prepend=0.0) * np.arange(len(sizes), 0, -1)
    ends = np.empty_like(sizes)
    ends[order] = np.cumsum(steps) / link.bytes_per_second
    return ends


def _last_carried(sizes: Floats, begins: Floats, link: Link) -> float:
    """Return when the host's side has carried the last of these transfers, none of them empty."""
    if not link.shared:
        return float(np.max(begins + sizes / link.bytes_per_second))
    if sizes.min() == sizes.max():  # as gradients of one model are: then only the begins need sorting
        ordered, left = np.sort(begins), sizes[0] * np.arange(len(sizes), 0, -1)
    else:
        order = np.argsort(begins)
        ordered, left = begins[order], np.cumsum(sizes[order][::-1])[::-1]
    return float(np.max(ordered + left / link.bytes_per_second))


def _arrays(work: DriveWork) -> tuple[Floats, ...]:
    return work.receive_bytes, work.read_bytes, work.read_operations, work.compute_seconds, work.send_bytes


def _check(work: DriveWork, figures: DriveFigures, host: Sequence[float]) -> None:
    shape = figures.link_bytes_per_second.shape
    for name, values in vars(work).items():
        if values.shape != shape:
            raise ConfigurationError(f"{name}: {values.shape} values for {shape} drives; give each drive one")
        # A sum with a NaN or an infinity in it is neither finite nor cheap to get past: two passes see all.
        if len(values) and not (values.min() >= 0 and values.max() < np.inf):
            raise ConfigurationError(f"{name}: has a value that is negative or not finite; no drive does that")
    if not all(0 <= seconds < np.inf for seconds in host):
        raise ConfigurationError(f"the host: seconds are {tuple(host)}; they must be numbers that are not negative")
