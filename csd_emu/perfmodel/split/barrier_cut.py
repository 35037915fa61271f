"""Step time of each cut where nothing overlaps: all is received, then computed, then sent.

Two steps of `csd_emu.perfmodel.step` with a turn between them: each drive receives the parameters of its layers, reads,
computes its forward pass and sends activations and labels; the host begins when the last of them has arrived, computes
the tail of all records and sends each drive the gradient of its activations; each drive computes its backward pass and
sends its gradients; when all are there the host adds them up and steps, the tail's parameters too. With nothing moved
there is no turn, and one step. All cuts are worked out at once.
"""

from __future__ import annotations

import numpy as np

from csd_emu.perfmodel.host_node import reduce_seconds
from csd_emu.perfmodel.sharing import Floats
from csd_emu.perfmodel.split.cut_costs import CutCosts
from csd_emu.perfmodel.split.split_problem import SplitProblem
from csd_emu.perfmodel.step import DriveFigures, StepWork, time_step


def barrier_seconds(situation: SplitProblem, amounts: CutCosts | None = None) -> Floats:
    """Return (cuts,) how long a step takes with each number of layers on the drives; NaN where no cut is possible.

    The last entry, with all of them, is what `csd_emu.perfmodel.timeline.compose` says of it, the others what
    `csd_emu.perfmodel.cut_timeline.compose_cut` says.
    """
    amounts, link, devices = amounts or CutCosts(situation), situation.link, situation.drives
    local = np.array([device.local for device in devices])
    figures = DriveFigures(
        *(np.full(len(devices), np.inf), np.zeros(len(devices))),  # reading is in seconds already
        np.array([device.link_bytes_per_second for device in devices]),
        np.array([device.link_latency_seconds for device in devices]),
    )
    pull, push = (sizes[:, None] * ~local for sizes in (amounts.pull_bytes, amounts.push_bytes))
    cuts = np.flatnonzero(~np.isnan(amounts.crossing_bytes[:-1]))
    records = np.array([device.batch_size for device in devices]) * ~local
    down = records * amounts.crossing_bytes[cuts, None]
    up = down + records * amounts.labels[cuts, None]
    forward, backward = amounts.forward_seconds.T, (amounts.backward_seconds + amounts.encode_seconds).T
    # The host reads its next records ahead, beside what follows the turn; with nothing moved, beside all of it.
    read = np.array([device.read_seconds for device in devices])
    read_first, read_ahead = np.where(local, 0.0, read), np.where(local, read, 0.0)
    front = time_step(StepWork(pull[cuts], read_first + forward[cuts], up), figures, link)
    turn_seconds = (front.end_seconds + amounts.host_seconds[cuts])[:, None]
    rest = StepWork(down, np.maximum(backward[cuts], read_ahead), push[cuts])
    seconds = np.full(amounts.unmoved + 1, np.nan)
    seconds[cuts] = time_step(rest, figures, link, turn_seconds).end_seconds
    whole = StepWork(pull[-1], amounts.compute_seconds[:, -1], push[-1])
    seconds[-1] = time_step(whole, figures, link).end_seconds
    moved = amounts.push_bytes[-1] - amounts.push_bytes
    return np.asarray(seconds + _reduce(amounts.push_bytes, len(devices)) + _reduce(moved, 0))


def _reduce(sizes: Floats, gradients: int) -> Floats:
    return sizes * (reduce_seconds(1 << 40, gradients) / (1 << 40))  # it is proportional to them
