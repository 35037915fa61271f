"""Costs of a step that is cut in two: layers, the drives that compute the first of them, the host that has the rest.

A cut is the number of layers that stay on the drives, 1 to all of them; all is "nothing moved". A layer's tensors go
with it: those of the drives' layers are pulled as parameters and pushed as gradients in every step, those of the host's
layers cross no link. What crosses instead are the activations before the host's first layer, with the records' labels,
and the gradient of these activations on the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.layer_work import TensorCost
from csd_emu.perfmodel.sharing import check_numbers
from csd_emu.perfmodel.timeline import Link
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import TransferSettings

Floats = npt.NDArray[np.float64]
# A label is a 64-bit number.
LABEL_BYTES = 8
# What the host holds of what it has moved to it, in copies: weights, gradients, momentum, and the sums of a step; then
# activations, their gradients and the kernels' workspace.
PARAMETER_COPIES, ACTIVATION_COPIES = 5, 3
# What a drive is spared, at least: weights and gradients; activations once.
SPARED_PARAMETER_COPIES = 2


@dataclass(frozen=True)
class LayerSplitCost:
    """A layer, and the cut before it.

    Attributes:
        name: of the layer.
        tensors: what is exchanged for it while a drive has it, so many bytes each way.
        forward_operations, backward_operations: its arithmetic, for one record.
        tail_bytes: of all values that are computed for a record from this layer on.
        crossing_bytes: of one record, if the model is cut before this layer; None if it cannot be.
        pull_only_bytes: of parameters that are not trained, and of buffers that stay as they are.
        reason: why it cannot be cut here; empty if it can.
    """

    name: str
    tensors: tuple[TensorCost, ...]
    forward_operations: float
    backward_operations: float
    tail_bytes: float
    crossing_bytes: int | None
    pull_only_bytes: int = 0
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse what no layer has."""
        counts = {
            "forward operations": self.forward_operations,
            "backward operations": self.backward_operations,
            "bytes behind it": self.tail_bytes,
            "crossing bytes": float(self.crossing_bytes or 0),
            "bytes that are only pulled": self.pull_only_bytes,
        }
        check_numbers(f"layer {self.name!r}", {}, counts | {tensor.name: tensor.size_bytes for tensor in self.tensors})

    @property
    def push_bytes(self) -> int:
        """Gradients of a step, and buffers."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def pull_bytes(self) -> int:
        """Parameters and buffers of a step."""
        return self.push_bytes + self.pull_only_bytes


@dataclass(frozen=True)
class DriveMemory:
    """What a step takes of a drive's memory: with nothing moved, and so much less for what is.

    Attributes:
        available_bytes: for the training process.
        least_bytes: of a step that computes as few records at once as it may.
        least_records: how many those are.
        whole_bytes: of a step that computes all records at once.
    """

    available_bytes: float
    least_bytes: float
    least_records: int
    whole_bytes: float

    def __post_init__(self) -> None:
        """Refuse what no memory has."""
        check_numbers("memory", {}, vars(self) | {"available_bytes": max(0.0, self.available_bytes)})


@dataclass(frozen=True)
class DeviceCost:
    """A device with its batch; seconds are of the whole model, and are shared out over the layers.

    Attributes:
        device: its name.
        batch_size: records per step, at least one.
        forward_seconds, backward_seconds: of the whole batch at once.
        encode_seconds: of taking out all gradients; shared out by bytes.
        read_seconds: of the step's records, from flash.
        link_bytes_per_second: its own side of the link, each way.
        link_latency_seconds: of one message.
        memory: what bounds it; None for nothing.
        parts_factor: what the seconds are multiplied by where memory does not hold all records at once.
        in_parts: whether they are computed in parts in any case.
        local: whether it is the host's own part, whose bytes cross no link and whose records are read ahead.
        layer_shares: (forward, backward) share of each layer, where they were measured; None goes by arithmetic.
        layer_clock: that they were measured by; empty if they were not, or nobody says.
        layer_reason: why they go by arithmetic.
    """

    device: str
    batch_size: int
    forward_seconds: float
    backward_seconds: float
    encode_seconds: float
    read_seconds: float
    link_bytes_per_second: float
    link_latency_seconds: float
    memory: DriveMemory | None = None
    parts_factor: float = 1.0
    in_parts: bool = False
    local: bool = False
    layer_shares: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    layer_clock: str = ""
    layer_reason: str = ""

    def __post_init__(self) -> None:
        """Refuse what no device has."""
        if self.batch_size < 1:
            raise ConfigurationError(f"{self.device}: a batch has at least one record, {self.batch_size} is none")
        check_numbers(
            self.device,
            {"link bandwidth": self.link_bytes_per_second, "factor": self.parts_factor},
            {
                "forward seconds": self.forward_seconds,
                "backward seconds": self.backward_seconds,
                "encode seconds": self.encode_seconds,
                "read seconds": self.read_seconds,
                "link latency": self.link_latency_seconds,
            },
        )


@dataclass(frozen=True)
class HostPlace:
    """The host, which has the tail: the records of all drives together, one part after the other on one machine.

    Attributes:
        forward_seconds, backward_seconds: of the whole model with all records of a step; shared out over the layers.
        memory_bytes: that the tail may take; None for nothing that bounds it.
        layer_shares, layer_clock, layer_reason: see `DeviceCost`.
    """

    forward_seconds: float
    backward_seconds: float
    memory_bytes: float | None = None
    layer_shares: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    layer_clock: str = ""
    layer_reason: str = ""

    def __post_init__(self) -> None:
        """Refuse what no host has."""
        check_numbers(
            "the host",
            {},
            {
                "forward seconds": self.forward_seconds,
                "backward seconds": self.backward_seconds,
                "bytes of memory": self.memory_bytes or 0.0,
            },
        )


@dataclass(frozen=True)
class SplitProblem:
    """All that a decision rests on.

    Attributes:
        layers: of the model, in forward order.
        drives: who computes the front, at least one that is not local.
        host: who computes the tail.
        link: the host's side of it.
        sending: how a step's tensors are sent, if their exchange overlaps what drives compute; None if all is
            received, then computed, then sent.
        cut_overlaps: whether that is so for a model that is cut, too.
        slice_seconds: what a slice costs beside its bytes, where they overlap.
        block_bytes: the host's optimiser steps ranges of so many bytes; None for whole tensors.
        barrier: whether the optimiser needs the whole gradient first.
        max_host_share: share of the model's computing, in seconds of a drive, that the host may have at most, 0 to 1.
    """

    layers: tuple[LayerSplitCost, ...]
    drives: tuple[DeviceCost, ...]
    host: HostPlace
    link: Link
    sending: TransferSettings | None = None
    cut_overlaps: bool = False
    slice_seconds: float = 0.0
    block_bytes: int | None = None
    barrier: bool = False
    max_host_share: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a step of nobody, or of nothing."""
        check_numbers("the link", {"bandwidth": self.link.bytes_per_second}, {"latency": self.link.latency_seconds})
        pairs = (*(drive.layer_shares for drive in self.drives), self.host.layer_shares)
        for message, broken in {
            f"max_host_share: {self.max_host_share} is no share; write one from 0 to 1": (
                not 0 <= self.max_host_share <= 1
            ),
            "a model without a layer has no place to be cut": not self.layers,
            "placement is between drives and the host: a drive must take part": all(each.local for each in self.drives),
            **{
                f"{len(shares)} shares for {len(self.layers)} layers; give one for each": (
                    len(shares) != len(self.layers)
                )
                for pair in pairs
                for shares in pair or ()
            },
        }.items():
            if broken:
                raise ConfigurationError(message)

    @property
    def remote(self) -> tuple[DeviceCost, ...]:
        """Those whose bytes cross the link."""
        return tuple(drive for drive in self.drives if not drive.local)

    @property
    def cuts_overlap(self) -> bool:
        """Whether the exchange of a model that is cut overlaps what drives compute."""
        return self.sending is not None and self.cut_overlaps

    @property
    def records(self) -> int:
        """Of a step, all together."""
        return sum(drive.batch_size for drive in self.drives)


def running_shares(weights: Sequence[float]) -> Floats:
    """Return (n + 1,) the shares of the first 0 to n weights in their sum; evenly if there are none."""
    sums = running_sums(weights)
    return sums / sums[-1] if sums[-1] > 0 else np.linspace(0.0, 1.0, len(sums))


def running_sums(values: Sequence[float]) -> Floats:
    """Return (n + 1,) the sums of the first 0 to n values."""
    return np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])
