"""Duration of a step of devices of few kinds, for many configurations at once: arrays in, arrays out.

All drives send the same number of bytes, so with C seconds for one send over the host's side, which is shared, the last
one ends at ``max over kinds j of begin_j + C x drives of all kinds that begin at begin_j or later``: the closed form of
`csd_emu.perfmodel.sharing`, by kinds. Devices of a kind differ a little, and so do steps: a kind begins to send when
its quickest device is ready, and its last transfer when its slowest one is (`Paces`). The later of two moments that are
normal is taken to be normal, with the moments that Clark gives ("The greatest of a finite set of random variables",
Operations Research 9, 1961). Without such differences a step is that of `csd_emu.perfmodel.step`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from csd_emu.perfmodel.sharing import Floats, Link, queued
from csd_emu.perfmodel.step import DriveFigures

# Standard deviations beyond which float64 knows no tail of the normal distribution.
_FAR = 40.0


@dataclass(frozen=True)
class Paces:
    """How devices of a kind differ from each other, and steps from each other, (configurations, kinds) each.

    Attributes:
        late: of the slowest device of a step, over the kind's typical one, in the mean.
        early: of the quickest one.
        spread: standard deviation of the slowest one's, over the typical one's seconds.
    """

    late: Floats | float = 1.0
    early: Floats | float = 1.0
    spread: Floats | float = 0.0


@dataclass(frozen=True)
class KindWork:
    """What devices of each kind do in a step of many configurations.

    Attributes:
        drives: (configurations, kinds) float64, how many take part; 0 for a kind that does not.
        state_bytes: that each receives, and sends.
        read_bytes: (configurations, kinds) of each, from flash, at once.
        compute_seconds: (configurations, kinds) of a typical device.
    """

    drives: Floats
    state_bytes: int
    read_bytes: Floats
    compute_seconds: Floats


def last_send(
    work: KindWork, figures: DriveFigures, link: Link, paces: Paces, bandwidth: Floats | float = 1.0
) -> tuple[Floats, Floats]:
    """Return (configurations,) when the last drive's send has arrived, 0 without any, and its standard deviation.

    Args:
        work: of the kinds.
        figures: of their own sides.
        link: the host's side.
        paces: how devices and steps differ.
        bandwidth: (configurations,) factor of the link's, or one for all.
    """
    drives, compute, size = work.drives, work.compute_seconds, work.state_bytes
    each = np.broadcast_to(size / (link.bytes_per_second * np.asarray(bandwidth)), len(drives))[:, None]
    own = size / figures.link_bytes_per_second
    # Sums over kinds are products with vectors: a sum along so short an axis is slow.
    carried = each * (drives @ np.ones((drives.shape[1], 1))) if link.shared else each
    latency = link.latency_seconds if size else 0.0
    received = np.maximum(carried, own) + (2 * figures.link_latency_seconds * (size > 0) + latency)
    fixed = received + figures.read_seconds(work.read_bytes)
    present = drives > 0
    typical = np.where(present, fixed + compute, -np.inf)
    queue = queued(drives, typical) if link.shared else np.ones_like(drives)
    behind = queue - drives + 1 if link.shared else queue
    begins = np.where(present, typical, 0.0)
    first = begins + compute * (paces.early - 1) + queue * each + latency
    end = begins + compute * (paces.late - 1) + np.maximum(behind * each, own) + latency
    first, end, spread = (np.where(present, column, 0.0) for column in (first, end, compute * paces.spread))
    last, deviation = np.zeros(len(drives)), np.zeros(len(drives))
    for kind in np.flatnonzero(present.any(axis=0)).tolist():
        last, deviation = later(last, deviation, end[:, kind], spread[:, kind])
        last = np.maximum(last, first[:, kind])
    return last, deviation


def later(first: Floats, first_spread: Floats, other: Floats, other_spread: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of the later of two moments that are independent and normal (Clark)."""
    theta = np.hypot(first_spread, other_spread)
    if not theta.any():
        return np.maximum(first, other), theta
    safe = np.where(theta > 0, theta, 1.0)
    with np.errstate(over="ignore"):  # of the smallest spreads: as far apart as can be
        alpha = np.clip((first - other) / safe, -_FAR, _FAR)
    share, density = ndtr(alpha), np.exp(-(alpha**2) / 2) / np.sqrt(2 * np.pi)
    mean = first * share + other * (1 - share) + safe * density
    # Centred on the later one, so that nothing cancels.
    top = np.maximum(first, other)
    a, b, m = first - top, other - top, mean - top
    square = (a**2 + first_spread**2) * share + (b**2 + other_spread**2) * (1 - share) + (a + b) * safe * density
    spread = np.sqrt(np.maximum(square - m**2, 0.0))
    return np.where(theta > 0, mean, top), np.where(theta > 0, spread, 0.0)
