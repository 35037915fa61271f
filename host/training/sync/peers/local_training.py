"""Training in windows of steps that each server takes on its own, after which all take the mean of their weights.

Who takes part and with which batches is fixed for a window, on all servers: inside of it nobody knows what becomes of
others' drives. When it is over, what has not counted comes again, and the tuner sees the steps. A window ends early
where an epoch or a round does, for then all have to stand at the same point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from firmware_agent.common.send_queue import TransferSettings
from host.core.states.peer_servers import PeerServers
from host.core.tuning.batch_tuner import DeviceSelector
from host.training.sync.peers.local_steps import LocalResult, LocalStepper
from host.training.sync.peers.server_step import ServersStepper, ServersStepResult
from host.training.sync.round_totals import RoundTotals
from host.training.sync.step_assignment import StepAssignment
from host.training.sync.sync_step import Stepper
from host.training.sync.sync_training import SyncTraining
from host.training.sync.tuner_thread import observe_step


@dataclass(frozen=True)
class _Taken:
    """A step of the window that this server has taken; its gradients are gone."""

    number: int
    dealt: StepAssignment
    sending: TransferSettings
    result: LocalResult
    wall_seconds: float


class LocalTraining(SyncTraining):
    """A synchronous job on several servers, which add up after several steps; its stepper is a `LocalStepper`."""

    def __init__(self, *arguments: Any) -> None:
        """Prepare; the arguments are those of `SyncTraining`, with other servers."""
        super().__init__(*arguments)
        self._local = cast(LocalStepper, self._stepper)
        self._reduce_every = 1 if self._together is None else self._together.reduce_every
        self._usual_steps = self._plan.window_steps(self._reduce_every)
        self._window: list[_Taken] = []

    async def _run_step(self, ledger: RoundTotals) -> bool:
        """Take one step, and return whether an epoch has ended with it."""
        number = self._step + 1
        begun = self._deal(number, self._still_here()) if self._window else await self._begin(number, ledger)
        if begun is None:
            return True
        result = await self._local.finish(begun.step)
        self._step = number
        self._participants.took_part(result.returned, result.failed)
        self._divergence.check_step(number, result, self.weights)
        self._expected.count_late(begun.step.records, result.late)
        self._memory.look(result.accounted.devices)
        sending = begun.sent_with(self._transfers.logs.take(number))
        self._window.append(_Taken(number, begun.dealt, sending, result, self._since_last()))
        return await self._end_window(ledger) if self._is_last(ledger) else False

    def _still_here(self) -> dict[str, Any]:
        """Return the sessions of one's own devices that were there when the window began, and are."""
        sessions = self._participants.here()
        return {node: session for node, session in sessions.items() if self._nodes.index(node) in self._here}

    def _rate_of(self, dealt: StepAssignment) -> Callable[[int], float]:
        """Return the learning rate by the records of all servers, as far as anybody knows."""
        rate = super()._rate_of(dealt)(dealt.size)
        return lambda _: rate

    def _is_last(self, ledger: RoundTotals) -> bool:
        """Whether the window is over, by what all servers know."""
        self._dealer.epoch_open = True
        dealt, steps = sum(taken.dealt.size for taken in self._window), len(self._window)
        whole = steps >= self._reduce_every or self._round_end.over_with(ledger, dealt, steps)
        # A round that is to end here ends on all servers, with what they have taken.
        return whole or self._pause() or not self._dealer.has_more(self._batches())

    async def _end_window(self, ledger: RoundTotals) -> bool:
        """Take the mean with the others, and make up for what had to wait for it."""
        window, self._window = self._window, []
        results = await self._local.end_window(self._step, [taken.result for taken in window], self._usual_steps)
        for taken, result in zip(window, results, strict=True):
            self._dealer.put_back(taken.dealt, result.took_part)
            self._add(ledger, taken.number, result, taken.sending, taken.wall_seconds)
        self._dealer.epoch_open = self._dealer.has_more(self._batches())
        await self._observe(results, [taken.number for taken in window], ledger)
        return not self._dealer.epoch_open

    async def _observe(self, results: Sequence[ServersStepResult], numbers: Sequence[int], ledger: RoundTotals) -> None:
        """Show the tuner the window's steps, until it retunes: those after had the batches that were before."""
        for place, (number, result) in enumerate(zip(numbers, results, strict=True), 1):
            if not result.took_part:
                continue
            if isinstance(self._tuner, DeviceSelector):
                self._tuner.watch(result.cost)
            before = self._tuner.batches.copy()
            observed = self._expected.observed(result.observed, before)
            left = self._steps_left(ledger) + len(results) - place
            retune = await observe_step(self._tuner, number, observed, left)
            if retune is not None:
                self._announce(self._step + 1, retune, before, ledger)
                return


def parts_of(together: PeerServers | None) -> tuple[Callable[..., Stepper], Callable[..., SyncTraining]]:
    """Return what makes the stepper and the training of a run: alone, or with other servers."""
    if together is None:
        return Stepper, SyncTraining
    if together.reduce_every == 1:
        return partial(ServersStepper, together), SyncTraining
    return partial(LocalStepper, together), LocalTraining
