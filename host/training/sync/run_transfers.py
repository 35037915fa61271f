"""Transfers of a run's steps: how they are sent and composed, and what a transfer tuner is told of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.layer_work import Costs, DriveTransfers, LayerCost, TensorCost
from csd_emu.perfmodel.overlap.overlapped_step import OverlapComposer
from firmware_agent.common.frames.step_frames import Timed
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Array
from host.core.evaluation import Evaluator
from host.core.layer_time_shares import BY_ARITHMETIC, Shares
from host.core.slice_record import TransferChange
from host.policies.transfer.transfer_tuner import Change, StepSeen
from host.training.accounting import StepAccount
from host.training.sync.exchange.slice_log import PUSH, SliceLog
from host.training.transfer_policy import UNSLICED, TransferPolicy


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
    drives = tuple(DriveTransfers(layer_costs(timed, log.names, sizes), _crossed(log)) for log, timed in told)
    return StepSeen(step, step_seconds, sending, drives)


def _crossed(log: SliceLog) -> npt.NDArray[np.float64]:
    """Return the slices of a device, as `DriveTransfers` has them."""
    records = [
        (r.direction == PUSH, r.size_bytes, r.begin_seconds, r.end_seconds) for r in log.records() if r.size_bytes
    ]
    return np.array(records, np.float64).reshape(-1, 4)


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


class RunTransfers:
    """How the steps of a run are sent, and what becomes of their slices.

    Attributes:
        policy: how they are sent, and whether they overlap.
    """

    def __init__(
        self, policy: TransferPolicy = UNSLICED, on_slices: Callable[[SliceLog], None] = lambda _: None
    ) -> None:
        """Begin with no step; `on_slices` is told of each log."""
        self.policy, self._on_slices = policy, on_slices
        self._logs: dict[int, list[SliceLog]] = {}

    def add(self, log: SliceLog) -> None:
        """Take the log of a device that has reported its step, whose slices overlapped."""
        self._logs.setdefault(log.step, []).append(log)
        self._on_slices(log)

    def take(self, step: int) -> list[SliceLog]:
        """Return the logs of a step that is over, and forget them and those before."""
        logs = self._logs.get(step, [])
        self._logs = {number: each for number, each in self._logs.items() if number > step}
        return logs

    async def learn(
        self,
        step: int,
        wall_seconds: float,
        sending: TransferSettings,
        logs: Sequence[SliceLog],
        weights: Mapping[str, Array],
        accounted: StepAccount,
    ) -> Change | None:
        """Tell the tuner what a step cost whose slices overlapped, and return what it changes; None for nothing.

        Where they really did, that is what the host saw; where the step was composed, what was composed of what drives
        computed. The tuner may think for longer than a step lasts: slices of the next one cross meanwhile.
        """
        seen = None
        if self.policy.overlap and logs:
            seen = see_step(step, wall_seconds, sending, logs, {name: array.nbytes for name, array in weights.items()})
        elif accounted.transfers and accounted.array_seconds > 0:
            seen = StepSeen(step, accounted.array_seconds, sending, accounted.transfers)
        return None if seen is None else await asyncio.to_thread(self.policy.tuner.observe, seen)


def record_change(change: Change, clock: str) -> tuple[TransferChange, str]:
    """Return what is written down of a change that was decided on by seconds of `clock`, and what people are told."""
    sending = change.sending
    record = TransferChange(
        step=change.step,
        slice_bytes=sending.slice_bytes,
        credit_bytes=sending.credit_bytes,
        reason=change.reason,
        gain=None if math.isnan(change.gain) else change.gain,
        clock=clock,
    )
    size = f"slices of {sending.slice_bytes} bytes, credit {sending.credit_bytes}"
    return record, f"from step {change.step}: {size}: {change.reason} (clock: {clock})"


def make_overlap(
    evaluator: Evaluator,
    weights: Mapping[str, Array],
    batch_norm: str,
    block_bytes: int | None,
    barrier: bool,
    moved: Collection[str] = (),
    shares: Shares = BY_ARITHMETIC,
) -> OverlapComposer:
    """Return what composes a job's steps.

    Args:
        evaluator: has the model.
        weights: in the precision in which they are exchanged.
        batch_norm: see `host.config.sync_section.SyncSection`; unless ``frozen``, buffers are exchanged too.
        block_bytes: the host's optimiser steps tensors in ranges of so many bytes; None for whole ones.
        barrier: whether it needs the whole gradient first.
        moved: layers that the host has, and drives have not.
        shares: what each of the model's layers has of a step.
    """
    structure = evaluator.structure()
    names = (*structure.trained, *(structure.buffers if batch_norm != "frozen" else ()))
    layers = tuple(layer for layer in shares.weigh(evaluator.layers()) if layer.name not in moved)
    kept = {name for layer in layers for name in layer.tensors}
    return OverlapComposer(layers, {name: weights[name].nbytes for name in names if name in kept}, block_bytes, barrier)
