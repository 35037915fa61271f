"""Training in windows of steps that each server takes on its own, after which all take the mean of their weights.

Who takes part and with which batches is fixed for a window, on all servers: inside of it nobody knows what becomes of
others' drives. When it is over, what has not counted comes again, and the tuner sees the steps. A window ends early
where an epoch or a round does, for then all have to stand at the same point.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from firmware_agent.common.send_queue import TransferSettings
from host.core.states.peer_servers import PeerServers, ServerPart
from host.training.sync.peers.server_step import LocalEnding, ServersEnding, ServersStepResult, server_part
from host.training.sync.round_totals import RoundTotals
from host.training.sync.step_batches import StepAssignment
from host.training.sync.step_result import StepResult
from host.training.sync.sync_step import OwnEnding, StepEnding
from host.training.sync.sync_training import SyncTraining


@dataclass(frozen=True)
class _Taken:
    """A step of the window that this server has taken; its gradients are gone."""

    number: int
    dealt: StepAssignment
    sending: TransferSettings
    result: StepResult
    part: ServerPart
    wall_seconds: float


class LocalTraining(SyncTraining):
    """A synchronous job on several servers, which add up after several steps; steps end with a `LocalEnding`."""

    def __init__(self, *arguments: Any) -> None:
        """Prepare; the arguments are those of `SyncTraining`, with other servers."""
        super().__init__(*arguments)
        self._shared = cast(LocalEnding, self._stepper.ending)
        self._reduce_every = self._shared.together.reduce_every
        self._usual_steps = self._plan.window_steps(self._reduce_every)
        self._window: list[_Taken] = []

    async def _run_step(self, ledger: RoundTotals) -> bool:
        """Take one step, and return whether an epoch has ended with it."""
        number = self._progress.step + 1
        begun = self._deal(number, self._still_here()) if self._window else await self._begin(number, ledger)
        if begun is None:
            return True
        result = await self._stepper.finish(begun)
        self._progress.step = number
        self._participants.took_part(result.returned, result.failed)
        self._divergence.check_step(number, result, self.weights)
        self._batches.expected.count_late(begun.devices, result.late)
        self._memory.look(result.accounted.devices)
        sending = begun.sent_with(self._transfers.take(number))
        part, seconds = server_part(begun, result, self._accountant), self._progress.step_seconds(time.monotonic())
        self._window.append(_Taken(number, begun.dealt, sending, result, part, seconds))
        return await self._end_window(ledger) if self._is_last(ledger) else False

    def _still_here(self) -> dict[str, Any]:
        """Return the sessions of one's own devices that were there when the window began, and are."""
        sessions, nodes = self._participants.here(), self._plan.nodes
        return {node: session for node, session in sessions.items() if nodes.index(node) in self._batches.here}

    def _rate_of(self, dealt: StepAssignment) -> Callable[[int], float]:
        """Return the learning rate by the records of all servers, as far as anybody knows."""
        rate = super()._rate_of(dealt)(dealt.size)
        return lambda _: rate

    def _is_last(self, ledger: RoundTotals) -> bool:
        """Whether the window is over, by what all servers know."""
        self._batches.sampler.epoch_open = True
        dealt, steps = sum(taken.dealt.size for taken in self._window), len(self._window)
        whole = steps >= self._reduce_every or self._progress.over_with(ledger, dealt, steps)
        # A round that is to end here ends on all servers, with what they have taken.
        return whole or self._guide.pause() or not self._batches.has_more

    async def _end_window(self, ledger: RoundTotals) -> bool:
        """Take the mean with the others, and make up for what had to wait for it."""
        window, self._window, sampler = self._window, [], self._batches.sampler
        steps, own = [taken.result for taken in window], [taken.part for taken in window]
        results = await self._shared.end_window(self._stepper, self._progress.step, steps, own, self._usual_steps)
        for taken, result in zip(window, results, strict=True):
            sampler.put_back(taken.dealt, result.took_part)
            self._add(ledger, taken.number, result, taken.sending, taken.wall_seconds)
        sampler.epoch_open = self._batches.has_more
        await self._observe(results, [taken.number for taken in window], ledger)
        return not sampler.epoch_open

    async def _observe(self, results: Sequence[ServersStepResult], numbers: Sequence[int], ledger: RoundTotals) -> None:
        """Show the tuner the window's steps, until it retunes: those after had the batches that were before."""
        for place, (number, result) in enumerate(zip(numbers, results, strict=True), 1):
            if not result.took_part:
                continue
            self._batches.watch(result)
            left, in_force = self._steps_left(ledger) + len(results) - place, self._progress.step + 1
            if await self._batches.observe(number, result, left, in_force, ledger) is not None:
                return


def make_parts(together: PeerServers | None) -> tuple[StepEnding, type[SyncTraining]]:
    """Return what becomes of the weights after each step of a run, and its training: alone, or with other servers."""
    if together is None:
        return OwnEnding(), SyncTraining
    if together.reduce_every == 1:
        return ServersEnding(together), SyncTraining
    return LocalEnding(together), LocalTraining
