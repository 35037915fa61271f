"""Duration of a step of devices of few kinds, for many configurations at once: arrays in, arrays out.

All drives send the same number of bytes, so with C seconds for one send over the host's side, which is shared, the last
one ends at ``max over kinds j of begin_j + C x drives of all kinds that begin at begin_j or later``: the closed form of
`csd_emu.perfmodel.sharing`, by kinds. Devices of a kind differ a little: a kind begins to send when its quickest device
is ready, and its last transfer when its slowest one is (`Paces`). Without such differences a step is that of
`csd_emu.perfmodel.step`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from csd_emu.perfmodel.sharing import Floats, Link, queued
from csd_emu.perfmodel.step import DriveFigures


@dataclass(frozen=True)
class Paces:
    """How devices of a kind differ from each other, (configurations, kinds) each.

    Attributes:
        late: seconds of the slowest device over the kind's typical one.
        early: of the quickest one.
    """

    late: Floats | float = 1.0
    early: Floats | float = 1.0


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
) -> Floats:
    """Return (configurations,) when the last drive's send has arrived, 0 without any.

    Args:
        work: of the kinds.
        figures: of their own sides.
        link: the host's side.
        paces: how devices differ.
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
    return np.asarray(np.where(present, np.maximum(first, end), 0.0).max(axis=1, initial=0.0))
