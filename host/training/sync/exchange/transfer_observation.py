"""Conversion of a step's slice log into the observation that a transfer tuner receives. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from csd_emu.perfmodel.overlap.layer_work import Costs, LayerCost, TensorCost
from firmware_agent.common.frames.step_frames import Timed
from firmware_agent.common.send_queue import TransferSettings
from host.core.slice_record import SliceRecord
from host.policies.transfer.transfer_tuner import StepSeen
from host.training.sync.exchange.slice_log import SliceLog


def see_step(
    step: int, step_seconds: float, sending: TransferSettings, logs: Sequence[SliceLog], sizes: Mapping[str, int]
) -> StepSeen | None:
    """Return what a step cost; None if no device told of its times, or the step took none.

    Args:
        step: its number.
        step_seconds: how long it took.
        sending: its settings.
        logs: of the devices that took part.
        sizes: bytes of each tensor that is exchanged.
    """
    told = [(log, log.timed) for log in logs if log.timed is not None and log.timed.end_seconds > 0]
    if not told or step_seconds <= 0:
        return None
    records = [list(log.records()) for log, _ in told]
    costs = [layer_costs(timed, log.names, sizes) for log, timed in told]
    slowest = max(range(len(told)), key=lambda place: told[place][1].end_seconds)
    rates = [bandwidth(each) for each in records]
    waiting = sum(r.size_bytes * max(0.0, r.begin_seconds - r.ready_seconds) for each in records for r in each)
    return StepSeen(
        step=step,
        step_seconds=step_seconds,
        sending=sending,
        costs=costs[slowest],
        bytes_per_second=tuple(rates),
        rtt_seconds=tuple(round_trip(each, rate) for each, rate in zip(records, rates, strict=True)),
        queue_bytes=waiting / step_seconds,
    )


def bandwidth(slices: Iterable[SliceRecord]) -> float:
    """Return bytes per second while slices were under way, both ways together; NaN without any.

    Where two overlap their time counts once.
    """
    size, busy_seconds = 0, 0.0
    ends = {"push": -math.inf, "pull": -math.inf}
    for each in sorted(slices, key=lambda one: one.begin_seconds):
        size += each.size_bytes
        begin = max(each.begin_seconds, ends[each.direction])
        busy_seconds += max(0.0, each.end_seconds - begin)
        ends[each.direction] = max(ends[each.direction], each.end_seconds)
    return size / busy_seconds if busy_seconds > 0 else math.nan


def round_trip(slices: Iterable[SliceRecord], bytes_per_second: float) -> float:
    """Return the least time from a pull's leaving to its acknowledgement, its transfer taken off; NaN without any."""
    if math.isnan(bytes_per_second):
        return math.nan
    each = [s.end_seconds - s.begin_seconds - s.size_bytes / bytes_per_second for s in slices if s.direction == "pull"]
    return max(0.0, min(each)) if each else math.nan


def layer_costs(timed: Timed, names: Sequence[str], sizes: Mapping[str, int]) -> Costs:
    """Return bytes and compute seconds of each layer, in the order of the forward pass.

    A layer is what has its tensors under one name. Its forward pass lasts until the next layer's first tensor is used,
    its backward pass from the completion of the following layer's gradients to that of its own. What no record came
    through stands last and takes no time.

    Args:
        timed: what the device told.
        names: of the tensors that `timed` counts.
        sizes: bytes of each.
    """
    used: dict[str, float] = {}
    complete: dict[str, float] = {}
    tensors: dict[str, list[TensorCost]] = {}
    for each in timed.tensors:
        name = names[each.tensor]
        layer = name.rpartition(".")[0]
        tensors.setdefault(layer, []).append(TensorCost(name, sizes[name]))
        if each.used_seconds > 0:  # others of the layer's tensors may be unused
            used[layer] = min(used.get(layer, math.inf), each.used_seconds)
        complete[layer] = max(complete.get(layer, 0.0), each.ready_seconds)
    order = sorted(used, key=used.__getitem__)
    idle = tuple(LayerCost(layer, tuple(own), 0.0, 0.0) for layer, own in tensors.items() if layer not in used)
    if not order:
        return idle
    # Of the last layer's passes only the sum is known: its forward pass takes its share, a third as a rule.
    last = order[-1]
    turn = used[last] + max(0.0, complete[last] - used[last]) / 3
    begins = [*(used[layer] for layer in order), turn]
    ends = [*(complete[layer] for layer in order), turn]
    return (
        tuple(
            LayerCost(
                layer,
                tuple(tensors[layer]),
                max(0.0, begins[place + 1] - begins[place]),
                max(0.0, ends[place] - ends[place + 1]) if complete[layer] else 0.0,
            )
            for place, layer in enumerate(order)
        )
        + idle
    )
