"""What a run has of the transfers of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Array
from host.policies.transfer.transfer_tuner import Change
from host.training.sync.exchange.slice_log import SliceLog, StepLogs
from host.training.sync.exchange.transfer_observation import see_step
from host.training.transfer_policy import UNSLICED, TransferPolicy


@dataclass(frozen=True)
class RunTransfers:
    """How the steps of a run are sent, and what becomes of their slices.

    Attributes:
        policy: how they are sent, and whether they overlap.
        logs: what became of the slices of steps that overlap.
    """

    policy: TransferPolicy = UNSLICED
    logs: StepLogs = field(default_factory=StepLogs)

    async def learn(
        self,
        step: int,
        wall_seconds: float,
        sending: TransferSettings,
        logs: Sequence[SliceLog],
        weights: Mapping[str, Array],
    ) -> Change | None:
        """Tell the tuner what a step cost whose slices overlapped, and return what it changes; None for nothing.

        The tuner may think for longer than a step lasts: slices of the next one cross meanwhile.
        """
        if not self.policy.overlap or not logs:
            return None
        sizes = {name: array.nbytes for name, array in weights.items()}
        seen = see_step(step, wall_seconds, sending, logs, sizes)
        return None if seen is None else await asyncio.to_thread(self.policy.tuner.observe, seen)
