"""Costs of a step of several servers, each with drives of its own: arrays in, arrays out. Pure.

Each server's part is that of an array by itself (`cost`). All wait for the slowest, then add up with each other, and
whoever waits idles. A server of which no drive takes part has nothing to do but to add up with the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from csd_emu.perfmodel.kind_steps import Paces
from host.policies.selection.cluster import Counts, Floats
from host.policies.selection.costs.step_costs import Corrections, Figures, Flags, Points, StepCosts, step_costs


def servers_step_costs(
    figures: Figures,
    points: Points,
    compute: Floats,
    slowdowns: Floats | float = 1.0,
    paces: Paces | None = None,
    corrections: Corrections | None = None,
    unused_powered: bool = True,
) -> StepCosts:
    """Return what a step costs all servers; the arguments are those of `step_costs`, kinds those of all servers."""
    paces, corrections = paces or Paces(), corrections or Corrections()
    parts, drive_joules = [], np.zeros(points.counts.shape)
    for own, of_server in figures.servers:
        part = step_costs(
            of_server,
            Points(points.counts[:, own], points.batches[:, own]),
            compute[:, own],
            _own(slowdowns, own),
            Paces(_own(paces.late, own), _own(paces.early, own), _own(paces.spread, own)),
            replace(corrections, active=_own(corrections.active, own)),
            unused_powered,
        )
        drive_joules[:, own] = part.drive_joules
        parts.append(_resting(part, points.counts[:, own].sum(axis=1) > 0))
    seconds = np.max([part.seconds for part in parts], axis=0) + figures.cluster.between_seconds
    waiting = sum(part.idle_watts * (seconds - part.seconds) for part in parts)
    return StepCosts(
        seconds,
        np.asarray(sum(part.joules for part in parts) + waiting),
        np.asarray(sum(part.records for part in parts)),
        drive_joules,
        np.asarray(sum(part.idle_watts for part in parts)),
    )


def _resting(part: StepCosts, active: Flags) -> StepCosts:
    """Return a server's part where those that have no drive in a configuration do nothing."""
    return replace(part, seconds=np.where(active, part.seconds, 0.0), joules=np.where(active, part.joules, 0.0))


def _own(values: Floats | float, own: Counts) -> Floats | float:
    """Return the columns of a server's kinds."""
    return values if isinstance(values, float | int) else values[..., own]
