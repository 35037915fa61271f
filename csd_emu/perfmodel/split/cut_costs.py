"""Bytes, seconds and memory of every cut of a situation: what needs no timeline.

Per drive and step, with P the bytes of its layers, b its batch and a the bytes of a record's activations at the cut:
2 P with nothing moved, 2 P + 2 b a with a cut (algorithms section 4 of the design notes), and a label for each record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from csd_emu.perfmodel.split.split_problem import (
    ACTIVATION_COPIES,
    LABEL_BYTES,
    PARAMETER_COPIES,
    SPARED_PARAMETER_COPIES,
    DeviceCost,
    Floats,
    HostPlace,
    SplitProblem,
    running_shares,
    running_sums,
)


@dataclass(frozen=True)
class CutCosts:
    """What each cut of a situation moves and takes; arrays begin with the cut 0, which none may take."""

    situation: SplitProblem

    @property
    def unmoved(self) -> int:
        """The cut with nothing moved: all layers."""
        return len(self.situation.layers)

    @cached_property
    def crossing_bytes(self) -> Floats:
        """(cuts,) of one record; NaN where the model cannot be cut, 0 with nothing moved."""
        own = [layer.crossing_bytes for layer in self.situation.layers]
        return np.array([np.nan, *(np.nan if size is None else float(size) for size in own[1:]), 0.0])

    @cached_property
    def push_bytes(self) -> Floats:
        """(cuts,) gradients of the drives' layers, each way as they are exchanged."""
        return running_sums([layer.push_bytes for layer in self.situation.layers])

    @cached_property
    def pull_bytes(self) -> Floats:
        """(cuts,) parameters and buffers of the drives' layers."""
        return running_sums([layer.pull_bytes for layer in self.situation.layers])

    @cached_property
    def tail_bytes(self) -> Floats:
        """(cuts,) of what is computed for a record behind each cut."""
        return np.array([*(layer.tail_bytes for layer in self.situation.layers), 0.0])

    @cached_property
    def batches(self) -> Floats:
        """(remote drives,) records per step."""
        return np.array([drive.batch_size for drive in self.situation.remote], dtype=np.float64)

    @cached_property
    def kinds(self) -> list[tuple[int, int]]:
        """(place among the devices, how many there are) of the first of each kind of remote drives.

        Those of one kind differ by their names alone.
        """
        alike: dict[DeviceCost, list[int]] = {}
        for place, drive in enumerate(self.situation.drives):
            if not drive.local:
                alike.setdefault(replace(drive, device=""), []).append(place)
        return [(places[0], len(places)) for places in alike.values()]

    @cached_property
    def tensor_bytes(self) -> tuple[tuple[int, ...], ...]:
        """(layers,) the sizes of each layer's tensors."""
        return tuple(tuple(tensor.size_bytes for tensor in layer.tensors) for layer in self.situation.layers)

    @cached_property
    def labels(self) -> Floats:
        """(cuts,) bytes of one record's label, where it crosses."""
        return np.where(np.arange(self.unmoved + 1) == self.unmoved, 0.0, float(LABEL_BYTES))

    @cached_property
    def up_bytes(self) -> Floats:
        """(cuts, remote drives) from each drive to the host in a step."""
        return np.asarray(self.push_bytes[:, None] + self.batches * (self.crossing_bytes + self.labels)[:, None])

    @cached_property
    def down_bytes(self) -> Floats:
        """(cuts, remote drives) from the host to each drive in a step."""
        return np.asarray(self.pull_bytes[:, None] + self.batches * self.crossing_bytes[:, None])

    @cached_property
    def traffic_bytes(self) -> Floats:
        """(cuts,) over the host's side of the link in a step, both ways together."""
        return np.asarray((self.up_bytes + self.down_bytes).sum(axis=1))

    @cached_property
    def forward_seconds(self) -> Floats:
        """(devices, cuts) of each device's forward pass."""
        seconds = np.array([drive.forward_seconds * self._shares(drive)[0] for drive in self.situation.drives])
        return np.asarray(seconds * self.factors)

    @cached_property
    def backward_seconds(self) -> Floats:
        """(devices, cuts) of each device's backward pass, without any encoding."""
        seconds = np.array([drive.backward_seconds * self._shares(drive)[1] for drive in self.situation.drives])
        return np.asarray(seconds * self.factors)

    @cached_property
    def encode_seconds(self) -> Floats:
        """(devices, cuts) of taking gradients and activations out, by bytes; all of it comes with the backward pass."""
        whole = self.push_bytes[-1]
        batches = np.array([[drive.batch_size] for drive in self.situation.drives], dtype=np.float64)
        shares = (self.push_bytes + batches * self.crossing_bytes) / whole if whole else 0 * batches * self.labels
        return np.array([[drive.encode_seconds] for drive in self.situation.drives]) * shares

    @cached_property
    def compute_seconds(self) -> Floats:
        """(devices, cuts) what each reads and computes in a step; the host's own part reads ahead."""
        computed = self.forward_seconds + self.backward_seconds + self.encode_seconds
        read = np.array([[drive.read_seconds] for drive in self.situation.drives])
        local = np.array([[drive.local] for drive in self.situation.drives])
        return np.asarray(np.where(local, np.maximum(computed, read), computed + read))

    def layer_seconds(self, drive: DeviceCost, cut: int) -> tuple[Floats, Floats, float]:
        """Return (forward, backward) of each of the first `cut` layers, and what reading adds to `compute_seconds`.

        Of the host's own part, which reads ahead, that is what does not fit beside its computing. Encoding activations
        comes with the last layer's forward pass, encoding gradients with each layer's backward pass.
        """
        place = next(number for number, each in enumerate(self.situation.drives) if each is drive)
        factor = float(self.factors[place, cut])
        forward, backward = (np.diff(shares)[:cut] * factor for shares in self._shares(drive))
        forward, backward = forward * drive.forward_seconds, backward * drive.backward_seconds
        whole = self.push_bytes[-1]
        encode = drive.encode_seconds * np.diff(self.push_bytes)[:cut] / whole if whole else np.zeros(cut)
        forward[-1] += self.encode_seconds[place, cut] - encode.sum()
        read = float(self.compute_seconds[place, cut] - forward.sum() - backward.sum() - encode.sum())
        return forward, backward + encode, max(0.0, read)

    def pass_seconds(self, part: DeviceCost | HostPlace) -> tuple[Floats, Floats]:
        """Return (layers,) forward and (layers,) backward seconds of each layer on `part`, all its records at once."""
        forward, backward = (np.diff(shares) for shares in self._shares(part))
        return forward * part.forward_seconds, backward * part.backward_seconds

    @cached_property
    def moved_compute(self) -> Floats:
        """(cuts,) share of the computing that the host has: of a drive's seconds, or of arithmetic if it takes none."""
        seconds = self.tail_seconds(self.situation.remote[0])
        return np.asarray(seconds / seconds[0] if seconds[0] > 0 else 1 - self._by_arithmetic[0])

    def tail_seconds(self, part: DeviceCost | HostPlace) -> Floats:
        """Return (cuts,) what the layers behind each cut take of `part`, forward and backward."""
        forward, backward = self._shares(part)
        return np.maximum(0.0, part.forward_seconds * (1 - forward) + part.backward_seconds * (1 - backward))

    @cached_property
    def host_seconds(self) -> Floats:
        """(cuts,) forward and backward of the tail with all records, on the host."""
        return self.tail_seconds(self.situation.host)

    @cached_property
    def moved_parameters(self) -> Floats:
        """(cuts,) share of the exchanged bytes that the host keeps."""
        return 1 - running_shares([float(layer.push_bytes) for layer in self.situation.layers])

    @cached_property
    def heaviness(self) -> Floats:
        """(cuts,) how many times the host's share of the exchanged bytes is its share of arithmetic; 0 without any.

        Infinity where it gets bytes and no arithmetic.
        """
        operations = [layer.forward_operations + layer.backward_operations for layer in self.situation.layers]
        moved, compute = self.moved_parameters, 1 - running_shares(operations)
        ratio = np.divide(moved, compute, out=np.zeros_like(moved), where=(moved > 0) & (compute > 0))
        return np.asarray(np.where((moved > 0) & (compute <= 0), np.inf, ratio))

    @cached_property
    def drive_memory_bytes(self) -> Floats:
        """(devices, cuts) what a step takes of each device's memory at least, 0 of those that nothing bounds."""
        nothing = np.zeros(self.unmoved + 1)
        return np.array(
            [
                nothing
                if drive.memory is None
                else np.maximum(0.0, drive.memory.least_bytes - self._spared(drive.memory.least_records))
                for drive in self.situation.drives
            ]
        )

    @cached_property
    def short_of_memory(self) -> list[int | None]:
        """(cuts,) the place of the first device whose memory does not do; None where all have enough."""
        memories = [drive.memory for drive in self.situation.drives]
        available = np.array([[np.inf if each is None else each.available_bytes] for each in memories])
        return [int(each.argmax()) if each.any() else None for each in (self.drive_memory_bytes > available).T]

    @cached_property
    def host_memory_bytes(self) -> Floats:
        """(cuts,) what the tail of all records takes of the host's memory, 0 if nothing bounds it."""
        if self.situation.host.memory_bytes is None:
            return np.zeros(self.unmoved + 1)
        activations = self.situation.records * self.tail_bytes
        return np.asarray(PARAMETER_COPIES * self._moved_bytes + ACTIVATION_COPIES * activations)

    @cached_property
    def _moved_bytes(self) -> Floats:
        return np.asarray(self.pull_bytes[-1] - self.pull_bytes)

    def _spared(self, records: int) -> Floats:
        """Return (cuts,) the bytes that a drive is spared in a step that computes so many records at once."""
        return np.asarray(SPARED_PARAMETER_COPIES * self._moved_bytes + records * self.tail_bytes)

    @cached_property
    def factors(self) -> Floats:
        """(devices, cuts) what seconds are multiplied by: memory may not hold all records at once."""
        rows = []
        for drive in self.situation.drives:
            parts = np.full(self.unmoved + 1, drive.in_parts)
            if (memory := drive.memory) is not None:
                parts |= memory.whole_bytes - self._spared(drive.batch_size) > memory.available_bytes
            rows.append(np.where(parts, drive.parts_factor, 1.0))
        return np.array(rows)

    @cached_property
    def _by_arithmetic(self) -> tuple[Floats, Floats]:
        layers = self.situation.layers
        return (
            running_shares([layer.forward_operations for layer in layers]),
            running_shares([layer.backward_operations for layer in layers]),
        )

    def _shares(self, part: DeviceCost | HostPlace) -> tuple[Floats, Floats]:
        """Return (cuts,) the shares of forward and backward seconds that the first layers take."""
        if part.layer_shares is None:
            return self._by_arithmetic
        return running_shares(part.layer_shares[0]), running_shares(part.layer_shares[1])
