"""From a recorded simulation to the spans of its slices: when each was ready, when its turn came, when it was read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter

from csd_emu.perfmodel.overlap.event_simulation import PUSH
from csd_emu.perfmodel.overlap.layer_work import Costs
from csd_emu.perfmodel.overlap.simulated_drive import BACKWARD
from csd_emu.perfmodel.overlap.simulated_step import Simulated
from csd_emu.perfmodel.overlap.slice_trace import PULL_NAME, PUSH_NAME, SliceRecord


def slice_spans(run: Simulated, costs: Costs, devices: Sequence[str]) -> Iterator[SliceRecord]:
    """Yield every slice of every drive, in the order of arrival; the drives of a group do the same.

    Args:
        run: simulated with `record`.
        costs: of any of its drives, for the tensors' layers.
        devices: their names, in the order of the simulation.
    """
    layers = {tensor.name: index for index, layer in enumerate(costs) for tensor in layer.tensors}
    gradients = {
        (passed.group, passed.computed.step, passed.computed.layer): passed.computed.end_seconds
        for passed in run.passes
        if passed.computed.phase == BACKWARD
    }
    # Of each tensor, up to which byte it was stepped when; both rise.
    parameters: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for stepped in run.stepped:
        parameters.setdefault((stepped.exchange, stepped.order), []).append((stepped.end, stepped.ready_seconds))
    members: dict[int, list[str]] = {}
    for device, group in zip(devices, run.groups, strict=True):
        members.setdefault(group, []).append(device)
    for direction, (arrival, begin, _, group, piece) in run.transfers:
        if direction == PUSH:
            way, ready = PUSH_NAME, gradients[group, piece.exchange, layers[piece.tensor]]
        else:
            blocks = parameters[piece.exchange, piece.order]
            position = bisect_left(blocks, piece.offset + piece.size_bytes, key=itemgetter(0))
            way, ready = PULL_NAME, blocks[position][1]
        place = piece.tensor, piece.offset, piece.size_bytes
        for device in members[group]:
            yield SliceRecord(piece.exchange, device, way, *place, ready, begin, arrival)
