"""Bytes, seconds and memory of every cut of a situation: what needs no timeline.

Per drive and step, with P the bytes of its layers, b its batch and a the bytes of a record's activations at the cut:
2 P with nothing moved, 2 P + 2 b a with a cut (algorithms section 4 of the design notes), and a label for each record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from csd_emu.placement.costs import (
    LABEL_BYTES,
    DrivePlace,
    Floats,
    HostPlace,
    Situation,
    backward_shares,
    forward_shares,
    running_shares,
    running_sums,
)


@dataclass(frozen=True)
class Amounts:
    """What each cut of a situation moves and takes; arrays begin with the cut 0, which none may take."""

    situation: Situation

    @property
    def unmoved(self) -> int:
        """The cut with nothing moved: all layers."""
        return len(self.situation.layers)

    @cached_property
    def crossing_bytes(self) -> Floats:
        """(cuts,) of one record; NaN where the model cannot be cut, 0 with nothing moved."""
        own = [layer.crossing_bytes for layer in self.situation.layers]
        inner = [np.nan if size is None else float(size) for size in own[1:]]
        return np.array([np.nan, *inner, 0.0])

    @cached_property
    def push_bytes(self) -> Floats:
        """(cuts,) gradients of the drives' layers, each way as they are exchanged."""
        return running_sums([layer.push_bytes for layer in self.situation.layers])

    @cached_property
    def pull_bytes(self) -> Floats:
        """(cuts,) parameters and buffers of the drives' layers."""
        return running_sums([layer.pull_bytes for layer in self.situation.layers])

    @cached_property
    def activation_bytes(self) -> Floats:
        """(cuts,) that a record leaves in the drives' layers."""
        return running_sums([layer.activation_bytes for layer in self.situation.layers])

    @cached_property
    def batches(self) -> Floats:
        """(remote drives,) records per step."""
        return np.array([drive.batch_size for drive in self.situation.remote], dtype=np.float64)

    @cached_property
    def labels(self) -> Floats:
        """(cuts,) bytes of one record's label, where it crosses."""
        return np.where(np.arange(self.unmoved + 1) == self.unmoved, 0.0, float(LABEL_BYTES))

    @cached_property
    def up_bytes(self) -> Floats:
        """(cuts, remote drives) from each drive to the host in a step."""
        return self.push_bytes[:, None] + self.batches * (self.crossing_bytes + self.labels)[:, None]

    @cached_property
    def down_bytes(self) -> Floats:
        """(cuts, remote drives) from the host to each drive in a step."""
        return self.pull_bytes[:, None] + self.batches * self.crossing_bytes[:, None]

    @cached_property
    def traffic_bytes(self) -> Floats:
        """(cuts,) over the host's side of the link in a step, both ways together."""
        return (self.up_bytes + self.down_bytes).sum(axis=1)

    def forward_seconds(self, drive: DrivePlace) -> Floats:
        """Return (cuts,) the seconds of a drive's forward pass."""
        return self._unmoved(drive, drive.forward_seconds * forward_shares(self.situation, drive))

    def backward_seconds(self, drive: DrivePlace) -> Floats:
        """Return (cuts,) the seconds of a drive's backward pass, with encoding."""
        seconds = drive.backward_seconds * backward_shares(self.situation, drive)
        return self._unmoved(drive, seconds) + drive.encode_seconds * self._push_shares

    def tail_seconds(self, part: DrivePlace | HostPlace) -> Floats:
        """Return (cuts,) what the layers behind each cut take of `part`, forward and backward."""
        forward = part.forward_seconds * (1 - forward_shares(self.situation, part))
        backward = part.backward_seconds * (1 - backward_shares(self.situation, part))
        return np.maximum(0.0, forward + backward)

    @cached_property
    def host_seconds(self) -> Floats:
        """(cuts,) forward and backward of the tail with all records, on the host."""
        return self.tail_seconds(self.situation.host)

    @cached_property
    def relief_seconds(self) -> Floats:
        """(cuts,) by how much the host is done sooner with the tail of all than the slowest drive with that of its own.

        0 where it is not.
        """
        own = np.max([self.tail_seconds(drive) for drive in self.situation.drives], axis=0)
        return np.maximum(0.0, own - self.host_seconds)

    def drive_memory_bytes(self, drive: DrivePlace) -> Floats:
        """Return (cuts,) what a step takes of a drive's memory, 0 if nothing bounds it."""
        if drive.memory is None:
            return np.zeros(self.unmoved + 1)
        records = np.full(self.unmoved + 1, float(drive.batch_size))
        records[self.unmoved] = min(drive.batch_size, drive.micro_batch or drive.batch_size)
        memory = drive.memory
        return (
            memory.fixed_bytes
            + memory.parameter_copies * self.pull_bytes
            + memory.activation_copies * records * self.activation_bytes
        )

    @cached_property
    def host_memory_bytes(self) -> Floats:
        """(cuts,) what the tail of all records takes of the host's memory, 0 if nothing bounds it."""
        memory = self.situation.host.memory
        if memory is None:
            return np.zeros(self.unmoved + 1)
        parameters = self.pull_bytes[-1] - self.pull_bytes
        activations = self.activation_bytes[-1] - self.activation_bytes
        needed = (
            memory.fixed_bytes
            + memory.parameter_copies * parameters
            + memory.activation_copies * self.situation.records * activations
        )
        needed[self.unmoved] = 0.0  # a host that only adds up needs no more than it always does
        return needed

    @cached_property
    def _push_shares(self) -> Floats:
        return running_shares([float(layer.push_bytes) for layer in self.situation.layers])

    def _unmoved(self, drive: DrivePlace, seconds: Floats) -> Floats:
        seconds = seconds.copy()
        seconds[self.unmoved] *= drive.unmoved_factor
        return seconds


def step_bytes(parameter_bytes: float, batch_size: int, crossing_bytes: float) -> float:
    """Return what one drive's step puts on the wire, both ways, labels and frames left out: 2 P + 2 b a.

    Args:
        parameter_bytes: P, of the layers that the drive keeps.
        batch_size: b.
        crossing_bytes: a, of one record at the cut; 0 with nothing moved.
    """
    return 2 * parameter_bytes + 2 * batch_size * crossing_bytes


def traffic_ratio(parameter_bytes: Sequence[float], cut: int, batch_size: int, crossing_bytes: float) -> float:
    """Return how many times as much a step without a cut puts on the wire.

    Args:
        parameter_bytes: of each layer.
        cut: so many of them stay.
        batch_size: of a drive.
        crossing_bytes: of one record at the cut.
    """
    whole = step_bytes(sum(parameter_bytes), batch_size, 0)
    return whole / step_bytes(sum(parameter_bytes[:cut]), batch_size, crossing_bytes)
