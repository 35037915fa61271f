"""Step time of each cut where nothing overlaps: all is received, then computed, then sent.

The composition is that of `csd_emu.perfmodel.timeline` with a turn in the middle: each drive receives the parameters of
its layers, reads, computes its forward pass and sends activations and labels; the host begins when the last of them has
arrived, computes the tail of all records and sends each drive the gradient of its activations; each drive computes its
backward pass and sends its gradients; when all are there the host adds them up and steps, the tail's parameters too.

Everything is in closed form over all cuts at once. Transfers that begin together end in the order of their sizes; the
last of transfers that begin at any time ends at the maximum over t of t + (bytes that begin at t or later) / bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from csd_emu.perfmodel.host_node import reduce_seconds
from csd_emu.perfmodel.split.cut_costs import CutCosts
from csd_emu.perfmodel.split.split_problem import Floats, SplitProblem


@dataclass(frozen=True)
class _Wire:
    """The link as the remote drives see it, (drives,) each."""

    bytes_per_second: float
    latency_seconds: float
    shared: bool
    own_bytes_per_second: Floats
    own_latency_seconds: Floats

    def together(self, sizes: Floats) -> Floats:
        """Return (cuts, drives) when transfers of these sizes, (cuts, drives), are there that all begin at 0."""
        carried = self._carried_together(sizes) if self.shared else sizes / self.bytes_per_second
        arrived = np.maximum(carried, sizes / self.own_bytes_per_second)
        return np.where(sizes > 0, arrived + self.latency_seconds + self.own_latency_seconds, 0.0)

    def last(self, sizes: Floats, begins: Floats) -> Floats:
        """Return (cuts,) when the last of transfers is there that begin at `begins`, (cuts, drives) as their sizes."""
        entered = np.where(sizes > 0, begins + self.own_latency_seconds, begins)
        own = entered + sizes / self.own_bytes_per_second
        carried = self._last_carried(sizes, entered) if self.shared else entered + sizes / self.bytes_per_second
        arrived = np.maximum(own, carried) + np.where(sizes > 0, self.latency_seconds, 0.0)
        return np.asarray(arrived.max(axis=1))

    def _carried_together(self, sizes: Floats) -> Floats:
        order = np.argsort(sizes, axis=1, kind="stable")
        ordered = np.take_along_axis(sizes, order, 1)
        steps = np.diff(ordered, axis=1, prepend=0.0) * np.arange(sizes.shape[1], 0, -1)
        ends = np.empty_like(sizes)
        np.put_along_axis(ends, order, np.cumsum(steps, axis=1) / self.bytes_per_second, 1)
        return ends

    def _last_carried(self, sizes: Floats, begins: Floats) -> Floats:
        """Return (cuts, drives): its maximum over the drives is when the host's side has carried the last."""
        order = np.argsort(begins, axis=1, kind="stable")
        left = np.cumsum(np.take_along_axis(sizes, order, 1)[:, ::-1], axis=1)[:, ::-1]
        ends = np.empty_like(begins)
        moments = np.take_along_axis(begins, order, 1) + left / self.bytes_per_second
        np.put_along_axis(ends, order, moments, 1)
        return ends


def barrier_seconds(situation: SplitProblem, amounts: CutCosts | None = None) -> Floats:
    """Return (cuts,) how long a step takes with each number of layers on the drives; NaN where no cut is possible.

    The last entry, with all of them, is what `csd_emu.perfmodel.timeline.compose` says of the same step.
    """
    amounts = amounts or CutCosts(situation)
    remote = situation.remote
    wire = _Wire(
        situation.link.bytes_per_second,
        situation.link.latency_seconds,
        situation.link.shared,
        np.array([drive.link_bytes_per_second for drive in remote]),
        np.array([drive.link_latency_seconds for drive in remote]),
    )
    near = np.array([drive.local for drive in situation.drives])
    read = np.array([drive.read_seconds for drive in remote])
    each = np.ones(len(remote))
    forward, backward = amounts.forward_seconds.T, (amounts.backward_seconds + amounts.encode_seconds).T
    ready = wire.together(amounts.pull_bytes[:, None] * each) + read + forward[:, ~near]
    crossing = amounts.batches * (amounts.crossing_bytes + amounts.labels)[:, None]
    arrived = np.maximum.reduce([wire.last(crossing, ready), *forward[:, near].T])
    begun = arrived + amounts.host_seconds  # when the gradients of the activations leave
    turned = begun[:, None] + wire.together(amounts.batches * amounts.crossing_bytes[:, None])
    turned[-1] = ready[-1]  # nothing moved: nothing to wait for in the middle
    end = wire.last(amounts.push_bytes[:, None] * each, turned + backward[:, ~near])
    for place in np.flatnonzero(near):
        ahead, own = situation.drives[place].read_seconds, backward[:, place]
        # Its next records come beside what follows the turn; with nothing moved, beside all of it.
        turned_back = begun + np.maximum(own, ahead)
        turned_back[-1] = max(forward[-1, place] + own[-1], ahead)
        end = np.maximum(end, turned_back)
    moved = amounts.push_bytes[-1] - amounts.push_bytes
    return np.asarray(end + _reduce(amounts.push_bytes, len(situation.drives)) + _reduce(moved, 0))


def _reduce(sizes: Floats, gradients: int) -> Floats:
    return sizes * (reduce_seconds(1 << 40, gradients) / (1 << 40))  # it is proportional to them
