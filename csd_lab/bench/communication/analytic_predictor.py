"""Estimate of a step from a few lines of arithmetic over its layers: the baseline for whatever predicts it.

A step's communication lies between the beginning of its backward pass, 0 here, and the end of the next forward pass:
that needs every parameter, so nothing of it is left when the next backward pass begins. Per layer l, with

* g_l, when its gradients are ready: the backward seconds of it and of all later layers;
* w_l, what its bytes take one way. A slice takes s = theta + p / r, r being a drive's part of the link. With credit c,
  n = ceil(c / p) slices are under way, each known to be read two latencies after it was put on. So they follow each
  other at max(s, (s + 2 latency) / n): a credit below the bandwidth-delay product starves the link (algorithms 6.2);
* R_l, what of later layers still waits at g_l: R_l = max(0, R_{l+1} + w_{l+1} - backward_l);

the gradients are pushed at

* fifo: C_l = g_l + R_l + w_l;
* priority: the first layers go first and interrupt the others, so C_l = D(j, l) with the largest j for which
  D(j, l) = max over i in j..l of (g_i + d_i + w_j + ... + w_i) is over by g_{j-1} + d_{j-1}. What is under way is
  not interrupted: d_i = min(R_i, max(s, n s - 2 latency)).

Parameters come back in the order of C_l. Left to come back of a layer then, v_l, is all of it under fifo, its last
block or slice under priority: Q_l = max(Q of the one before, C_l + latency) + v_l. A latency later they are there, and
the layer's forward pass may begin.

Left out, and simulated in `csd_emu.perfmodel.overlap.steady_steps`: unlike drives (the slowest one's figures stand
for all), priorities on the way back, that settings are rounded to layers and blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.layer_work import Costs
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES, tensor_block_bytes
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.link_conditions import Conditions

Floats = npt.NDArray[np.float64]


class AnalyticPredictor:
    """A `host.policies.transfer.speedup_predictor.Predictor`: the honest baseline of what is trained or simulated."""

    name = "analytic"

    def log_seconds(self, conditions: Conditions, settings: Sequence[TransferSettings]) -> Floats:
        """See `Predictor`."""
        costs = [conditions.costs] * conditions.participants
        seconds: Floats = np.log(predict_steps(costs, conditions.link, settings, conditions.block_bytes))
        return seconds


def predict_steps(
    costs: Sequence[Costs], link: SharedLink, sendings: Sequence[TransferSettings], block_bytes: int = BLOCK_BYTES
) -> Floats:
    """Return what a step should take with each of these settings, (settings,) float64.

    Args:
        costs: one per drive, of one model.
        link: as it is now.
        sendings: the candidates.
        block_bytes: the host steps ranges of so many bytes, but whole tensors under fifo.
    """
    forward = np.max([[layer.forward_seconds for layer in part] for part in costs], axis=0)
    backward = np.max([[layer.backward_seconds for layer in part] for part in costs], axis=0)
    rate = link.bytes_per_second / len(costs)
    fifo = np.array([sending.schedule == "fifo" for sending in sendings])
    ready = np.cumsum(backward[::-1])[::-1]
    result = np.empty(len(sendings))
    for which in (fifo, ~fifo):
        if not which.any():
            continue
        wire = _Wire(costs[0], link, rate, [s for s, this in zip(sendings, which, strict=True) if this], block_bytes)
        waits = _waits(backward, wire)
        if which is fifo:
            there = _pull(_fifo(ready, waits, wire), wire.layers, wire)
        else:
            there = _pull(_priority(ready, waits, wire), wire.pieces, wire)
        result[which] = _step(forward, backward, there)
    return result


class _Wire:
    """What layers take one way, and what is under way meanwhile, for each candidate."""

    def __init__(
        self, costs: Costs, link: SharedLink, rate: float, candidates: Sequence[TransferSettings], block_bytes: int
    ) -> None:
        """Work it out; `rate` is what a drive has of the link, bytes per second."""
        sizes = [[tensor.size_bytes for tensor in layer.tensors] for layer in costs]
        largest = max((size for layer in sizes for size in layer), default=1)
        limit = 1 << 62
        cut = np.array([min(sending.slice_bytes or limit, largest) for sending in candidates], dtype=float)
        credit = np.array([float(sending.credit_bytes or limit) for sending in candidates])
        slice_seconds = link.slice_seconds + cut / rate
        round_trip = 2 * link.latency_seconds
        under_way = np.ceil(credit / cut)
        starved = np.maximum(1.0, (slice_seconds + round_trip) / (under_way * slice_seconds))
        self.latency_seconds = link.latency_seconds
        # (layers, candidates): w, and v of priority.
        self.layers: Floats = np.array([_one_way(layer, cut, link.slice_seconds, rate) * starved for layer in sizes])
        piece = np.minimum(np.maximum(cut, tensor_block_bytes(int(largest), block_bytes)), largest)
        self.pieces = np.minimum(self.layers, _one_way([piece], cut, link.slice_seconds, rate) * starved)
        # (candidates,): what has left the queue and not the pipe.
        self.held = np.maximum(slice_seconds, under_way * slice_seconds - round_trip)


def _one_way(sizes: Sequence[float | Floats], cut: Floats, slice_seconds: float, rate: float) -> Floats:
    seconds = np.zeros_like(cut)
    for size in sizes:
        seconds += np.ceil(size / cut) * slice_seconds + size / rate
    return seconds


def _fifo(ready: Floats, waits: Floats, wire: _Wire) -> Floats:
    """Return when each layer is pushed, (layers, candidates)."""
    return ready[:, None] + waits + wire.layers


def _priority(ready: Floats, waits: Floats, wire: _Wire) -> Floats:
    """Return when each layer is pushed, (layers, candidates)."""
    begin = ready[:, None] + np.minimum(waits, wire.held)
    pushed = _fifo(ready, waits, wire)
    for layer, own in enumerate(wire.layers):
        done = np.full(own.shape, np.inf)
        together = np.zeros_like(own)  # D(first, layer)
        for first in reversed(range(layer + 1)):
            together = wire.layers[first] + np.maximum(begin[first], together)
            next_begin = begin[first - 1] if first else np.inf
            done = np.where(np.isinf(done) & (together <= next_begin), together, done)
        # All of it is under way before anything can overtake it.
        pushed[layer] = np.where(wire.held >= waits[layer] + own, pushed[layer], done)
    return pushed


def _waits(backward: Floats, wire: _Wire) -> Floats:
    """Return what of later layers waits when a layer's gradients are ready, (layers, candidates) seconds."""
    waits = np.zeros_like(wire.layers)
    for layer in reversed(range(len(backward) - 1)):
        waits[layer] = np.maximum(0.0, waits[layer + 1] + wire.layers[layer + 1] - backward[layer])
    return waits


def _pull(pushed: Floats, left: Floats, wire: _Wire) -> Floats:
    """Return when each layer's parameters are there, (layers, candidates); of a layer without any, 0."""
    order = np.argsort(pushed, axis=0, kind="stable")
    there, seconds = np.take_along_axis(pushed, order, 0), np.take_along_axis(left, order, 0)
    carried = np.zeros(there.shape[1])
    for rank, own in enumerate(seconds):
        carried = np.where(own > 0, np.maximum(carried, there[rank] + wire.latency_seconds) + own, carried)
        there[rank] = carried + wire.latency_seconds
    result = np.empty_like(there)
    np.put_along_axis(result, order, there, 0)
    return np.where(wire.layers > 0, result, 0.0)


def _step(forward: Floats, backward: Floats, there: Floats) -> Floats:
    """Return when the forward pass has ended that waits for `there`, (candidates,)."""
    end = np.full(there.shape[1], backward.sum())
    for seconds, parameters in zip(forward, there, strict=True):
        end = np.maximum(end, parameters) + seconds
    return end
