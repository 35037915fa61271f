"""Judge of `bench placement`: the accounting of runs with a cut.

It is what composes the steps of real runs, asked once for every cut: `csd_emu.perfmodel.timeline` and, where the
exchange overlaps what drives compute, `csd_emu.perfmodel.overlap.overlapped_step`, event by event. Without overlap it
shares no formula with the decision; with overlap both ask the same scheduling core. It knows better: its layers take
other seconds than were measured, by `NOISE` each.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np

from csd_emu.perfmodel.host_node import reduce_seconds
from csd_emu.perfmodel.overlap.overlapped_step import OverlapComposer
from csd_emu.perfmodel.split.split_problem import LABEL_BYTES, DeviceCost, HostPlace, SplitProblem
from csd_emu.perfmodel.timeline import Activity, Crossed, compose_cut
from firmware_agent.common.layer_costs import LayerWork

# Standard deviation of what a layer takes, as a log, from what it was measured to take.
NOISE = 0.03
_FLASH = 1e9
Shares = tuple[tuple[float, ...], tuple[float, ...]]


def disturb(situation: SplitProblem, generator: np.random.Generator) -> SplitProblem:
    """Return the situation as it may be: every layer takes something else than was measured, alike everywhere."""
    factors = np.exp(generator.normal(0.0, NOISE, (2, len(situation.layers))))
    forward = [layer.forward_operations * f for layer, f in zip(situation.layers, factors[0], strict=True)]
    backward = [layer.backward_operations * f for layer, f in zip(situation.layers, factors[1], strict=True)]
    shares = tuple(forward), tuple(backward)
    return replace(
        situation,
        drives=tuple(replace(drive, layer_shares=shares) for drive in situation.drives),
        host=replace(situation.host, layer_shares=shares),
    )


class CutJudge:
    """Judges the cuts of one situation."""

    def __init__(self, situation: SplitProblem) -> None:
        """Take the situation as it is."""
        self._situation = situation
        self._pushed = list(accumulate((layer.push_bytes for layer in situation.layers), initial=0))
        self._pulled = list(accumulate((layer.pull_bytes for layer in situation.layers), initial=0))
        # By the identity of the shares that parts of the situation have in common.
        self._first: dict[int, list[tuple[float, float]]] = {}

    def seconds(self, cut: int) -> float:
        """Return how long a step takes with `cut` layers on the drives."""
        situation, moved = self._situation, cut < len(self._situation.layers)
        activities, crossed = self._step(cut)
        reduce = reduce_seconds(self._pushed[cut], len(situation.drives))
        if situation.sending is None:
            return float(compose_cut(activities, situation.link, crossed, reduce).seconds)
        kept = situation.layers[:cut]
        pairs = list(zip(*self._shares(situation.drives[0]), strict=True))
        works = tuple(
            LayerWork(layer.name, {tensor.name: tensor.size_bytes for tensor in layer.tensors}, *pair)
            for layer, pair in zip(kept, pairs[:cut], strict=True)
        )
        sizes = {tensor.name: tensor.size_bytes for layer in kept for tensor in layer.tensors}
        composer = OverlapComposer(works, sizes, situation.block_bytes, situation.barrier)
        own = crossed if moved else None
        return float(composer.compose(activities, situation.link, situation.sending, reduce, own).seconds)

    def _step(self, cut: int) -> tuple[list[Activity], Crossed]:
        layers, drives, host = self._situation.layers, self._situation.drives, self._situation.host
        moved = cut < len(layers)
        record = (layers[cut].crossing_bytes or 0) if moved else 0
        up = {drive.device: drive.batch_size * (record + LABEL_BYTES) if moved else 0 for drive in drives}
        down = {drive.device: drive.batch_size * record for drive in drives}
        forward, backward = self._of_first(host, cut)
        tail = host.forward_seconds * (1 - forward) + host.backward_seconds * (1 - backward)
        activities = [self._activity(drive, cut, up[drive.device], down[drive.device]) for drive in drives]
        stepping = reduce_seconds(self._pushed[-1] - self._pushed[cut], 0)
        return activities, Crossed(up, down, tail if moved else 0.0, step_seconds=stepping)

    def _activity(self, drive: DeviceCost, cut: int, up_bytes: int, down_bytes: int) -> Activity:
        forward, backward = self._of_first(drive, cut)
        encoded = (self._pushed[cut] + down_bytes) / self._pushed[-1]
        return Activity(
            device=drive.device,
            receive_bytes=self._pulled[cut] + down_bytes,
            read_bytes=round(drive.read_seconds * _FLASH),
            read_operations=0,
            phases={
                "forward": drive.forward_seconds * forward,
                "backward": drive.backward_seconds * backward,
                "encode": drive.encode_seconds * encoded,
            },
            send_bytes=self._pushed[cut] + up_bytes,
            flash_bytes_per_second=_FLASH,
            flash_latency_seconds=0.0,
            link_bytes_per_second=drive.link_bytes_per_second,
            link_latency_seconds=drive.link_latency_seconds,
        )

    def _of_first(self, part: DeviceCost | HostPlace, cut: int) -> tuple[float, float]:
        """Return what share of the forward and of the backward seconds the first layers take."""
        known = self._first.get(id(part.layer_shares))
        if known is None:
            forward, backward = (list(accumulate(each, initial=0.0)) for each in self._shares(part))
            known = [(f / forward[-1], b / backward[-1]) for f, b in zip(forward, backward, strict=True)]
            self._first[id(part.layer_shares)] = known
        return known[cut]

    def _shares(self, part: DeviceCost | HostPlace) -> Shares:
        if part.layer_shares is not None:
            return part.layer_shares
        layers = self._situation.layers
        return tuple(each.forward_operations for each in layers), tuple(each.backward_operations for each in layers)
