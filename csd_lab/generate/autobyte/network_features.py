"""Input of the network: a model, the conditions and a setting as a row of dimensionless numbers.

Everything is a ratio of times or of bytes, most of them as logarithms, so a step that is a thousand times as long with
a thousand times as many bytes looks the same. The unit of time is the compute of a step plus the wire time of its bytes
one way at the drive's share of the link.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.layer_work import Costs, compute_seconds
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.link_conditions import Conditions

Floats = npt.NDArray[np.float64]

# Where the profile of a model is read: shares of its bytes, in the order of the forward pass.
QUANTILES = np.array([0.05, 0.2, 0.4, 0.6, 0.8, 0.95])
_CLIP = 12.0
MODEL_FEATURES = (
    "forward share of the compute",
    *(f"share of the compute before byte {share:.0%} of the model, forward" for share in QUANTILES),
    *(f"share of the compute behind byte {share:.0%} of the model, backward" for share in QUANTILES),
    "largest tensor's share of the bytes",
    "log of the effective number of tensors",
    "log of the number of tensors",
    "share of the bytes of the first tensor",
)
CONDITION_FEATURES = (
    "log wire over compute",
    "log round trip over unit",
    "log slice cost over unit",
    "log wire seconds of a block over unit",
    "log participants",
)
SETTING_FEATURES = (
    "log wire seconds of a slice over unit",
    "log wire seconds of the credit over unit",
    "log credit over slice",
    "log cost of all slices over unit",
    "log slice cost over its wire seconds",
    "log throughput that the credit allows over the link's",
    "log slices over tensors",
    "log slice over block",
)
NAMES = (*MODEL_FEATURES, *CONDITION_FEATURES, *SETTING_FEATURES)


class Features:
    """Makes rows; what a model's costs give is worked out once and kept while the costs are the same object."""

    def __init__(self) -> None:
        """Know no model yet."""
        self._costs: Costs | None = None
        self._sizes: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._model: Floats = np.zeros(0)

    def rows(self, conditions: Conditions, settings: Sequence[TransferSettings]) -> tuple[Floats, float]:
        """Return (settings, len(NAMES)) features, and the unit of time in seconds."""
        if conditions.costs is not self._costs:
            self._costs, self._sizes = conditions.costs, _tensor_sizes(conditions.costs)
            self._model = _describe_model(conditions.costs, self._sizes)
        link, sizes = conditions.link, self._sizes
        rate = link.bytes_per_second / conditions.participants
        compute, wire = compute_seconds(conditions.costs), float(sizes.sum()) / rate
        unit = compute + wire
        rtt = 2 * link.latency_seconds
        ratios = (
            wire / max(compute, 1e-12),
            rtt / unit,
            link.slice_seconds / unit,
            conditions.block_bytes / rate / unit,
        )
        shared = np.concatenate([self._model, _log(np.array([*ratios, conditions.participants]))])
        slices = np.array([each.slice_bytes for each in settings], np.float64)
        credits = np.array([each.credit_bytes for each in settings], np.float64)
        counts = np.ceil(sizes[None, :] / slices[:, None]).sum(axis=1)
        # A credit lets so many slices be under way; one more leaves while any of it is left.
        under_way = np.ceil(credits / slices) * slices
        allowed = np.minimum(1.0, under_way / (rate * (rtt + link.slice_seconds) + slices))
        own = [
            slices / rate / unit,
            under_way / rate / unit,
            under_way / slices,
            counts * link.slice_seconds / unit,
            link.slice_seconds * rate / slices,
            allowed,
            counts / len(sizes),
            slices / conditions.block_bytes,
        ]
        rows = np.hstack([np.broadcast_to(shared, (len(settings), len(shared))), _log(np.stack(own, axis=1))])
        return rows, unit


def _tensor_sizes(costs: Costs) -> npt.NDArray[np.int64]:
    """Return the bytes of each tensor that has any, in the order of the forward pass; one byte if there is none."""
    sizes = [tensor.size_bytes for layer in costs for tensor in layer.tensors if tensor.size_bytes]
    return np.array(sizes or [1], np.int64)


def _describe_model(costs: Costs, sizes: npt.NDArray[np.int64]) -> Floats:
    """Return what a model's bytes and seconds look like, without their sizes."""
    layer_bytes = np.array([layer.size_bytes for layer in costs], np.float64)
    forward = np.array([layer.forward_seconds for layer in costs])
    backward = np.array([layer.backward_seconds for layer in costs])
    total = max(float(forward.sum() + backward.sum()), 1e-12)
    ends = np.cumsum(layer_bytes) / max(layer_bytes.sum(), 1.0)
    at = np.minimum(np.searchsorted(ends, QUANTILES), len(costs) - 1)
    before = np.concatenate([[0.0], np.cumsum(forward)])[at] / total
    # The backward pass comes to a layer when it is through with the later ones and with it.
    behind = np.cumsum(backward[::-1])[::-1][at] / total
    shares = sizes / sizes.sum()
    tail = [shares.max(), -np.log((shares**2).sum()), np.log(len(sizes)), shares[0]]
    return np.concatenate([[forward.sum() / total], before, behind, tail])


def _log(ratios: Floats) -> Floats:
    """Return their logarithms, clipped: beyond, they make no difference."""
    logs: Floats = np.clip(np.log(np.maximum(ratios, 1e-12)), -_CLIP, _CLIP)
    return logs
