"""Steps of one server among several: all step by the sum of their gradients, or take the mean of weights after some.

The second is local SGD (Stich 2019). With server s at weights w_s after a window of steps, in which its drives computed
n_s records, all go on from ``sum_s n_s w_s / sum_s n_s`` (Stich, "Local SGD converges fast and communicates little",
arXiv:1805.09767, algorithm 1, where all n_s are equal). What the optimiser remembers is averaged alike (for momentum:
Yu, Jin and Yang, ICML 2019, arXiv:1905.03817).

In such windows, who takes part and with which batches is fixed, on all servers: inside of one nobody knows what becomes
of others' drives. When it is over, what has not counted comes again, and the tuner sees the steps. A window ends early
where an epoch or a round does, for then all have to stand at the same point.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import numpy as np

from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Array
from host.core.records import ServersRecord
from host.core.states.peer_servers import Averaged, DevicePart, PeerServers, ReducedStep, ServerPart
from host.core.tuning.batch_tuner import StepCost
from host.training.accounting import Accountant
from host.training.sync.step_batches import StepAssignment
from host.training.sync.step_result import StepReport, StepResult, step_joules
from host.training.sync.sync_step import OwnEnding, StepEnding, Stepper, Underway
from host.training.sync.sync_training import SyncTraining


@dataclass(frozen=True)
class ServersStepResult(StepResult):
    """What came of a step on all servers; `devices`, `late`, `failed` and `accounted` are this server's own.

    Attributes:
        parts: server -> what it said of its part.
        cost_seconds: of the step for all servers, where they differ; None if `accounted` says it.
    """

    parts: Mapping[str, ServerPart] = field(default_factory=dict)
    cost_seconds: float | None = None

    @property
    def took_part(self) -> list[str]:
        """Whose gradients went into it, on all servers."""
        return [part.device for server in self.parts.values() for part in server.counted]

    @property
    def observed(self) -> list[DevicePart]:
        """What each device computed, whether or not it counts, on all servers."""
        return [part for server in self.parts.values() for part in server.observed]

    @property
    def cost(self) -> StepCost:
        """What the step cost all servers together; their hosts are one node."""
        counted = [part for server in self.parts.values() for part in server.counted]
        seconds = self.accounted.array_seconds if self.cost_seconds is None else self.cost_seconds
        joules: dict[str, float] = {}
        for server in self.parts.values():
            for node, own in server.joules.items():
                waiting = server.idle_watts[node] * (seconds - server.array_seconds)
                joules[node] = joules.get(node, 0.0) + own + waiting
        return StepCost(
            records={part.device: part.records for part in counted},
            compute_seconds={part.device: part.compute_seconds for part in counted},
            array_seconds=seconds,
            joules=joules,
            missing=frozenset(device for server in self.parts.values() for device in server.missing),
        )


@dataclass(frozen=True)
class ServersEnding:
    """Steps with other servers: the optimiser steps when all gradients of all servers are there.

    Drives of which the host has part of a gradient when they are lost do not count: what they have sent is dropped, and
    their records come again.

    Attributes:
        together: the other servers.
    """

    together: PeerServers

    async def end(self, stepper: Stepper, step: Underway, report: StepReport) -> StepResult:
        """See a step through on all servers.

        Raises:
            StateBehind: other servers have taken the step already.
        """
        local = stepper.accounting.result(report, False, step.update.rate)
        if local.devices:
            await step.gathering.finish({*local.late, *local.failed})
        part = server_part(step, local, stepper.accounting.accountant)
        reduced = await self.together.reduce(step.number, own_means(stepper, step), part)
        total = sum(part.records for part in reduced.parts.values())
        rate = 0.0
        if total:
            rate = step.learning_rate(sum(part.rated for part in reduced.parts.values()))
            await asyncio.to_thread(apply_means, stepper, reduced.means, rate)
        step.update.end()
        return self._of_all(stepper.accounting.accountant, local, reduced, total, rate)

    def _of_all(
        self, accountant: Accountant, local: StepResult, reduced: ReducedStep, total: int, rate: float
    ) -> ServersStepResult:
        parts = reduced.parts.values()
        slowest = max(part.array_seconds for part in parts)
        seconds, own = slowest + reduced.link_seconds, local.accounted.array_seconds
        servers = ServersRecord(
            server=self.together.server,
            present=list(reduced.parts),
            samples=total,
            own_seconds=own,
            slowest_seconds=slowest,
            reduce_seconds=reduced.link_seconds,
            sent_bytes=reduced.sent_bytes,
            meetings=reduced.meetings,
        )
        devices = [msgspec.structs.replace(part, weight=part.batch_size / total) for part in local.devices]
        return ServersStepResult(
            accounted=accountant.extend(local.accounted, seconds, reduced.link_seconds),
            loss=sum(part.loss * part.records for part in parts) / total if total else math.nan,
            devices=devices,
            late=local.late,
            failed=local.failed,
            mixed=False,
            learning_rate=rate,
            failed_probes=local.failed_probes,
            servers=servers,
            parts=reduced.parts,
        )


def own_means(stepper: Stepper, step: Underway) -> dict[str, Array]:
    """Return the mean of every tensor over one's own records; zeros if there are none."""
    weights, whole = stepper.model.weights, step.update.whole
    names = [spec.name for spec in stepper.tensors.specs]
    return {name: whole[name] if name in whole else np.zeros_like(weights[name]) for name in names}


def apply_means(stepper: Stepper, means: Mapping[str, Array], rate: float) -> None:
    """Step by the means of gradients, and take those of buffers over."""
    buffers = {name: means[name] for name in stepper.tensors.buffers}
    stepper.model.optimiser.step_all({name: mean for name, mean in means.items() if name not in buffers}, rate)
    for name, mean in buffers.items():
        stepper.model.weights[name][...] = mean
    stepper.model.copy_tied()


def server_part(step: Underway, local: StepResult, accountant: Accountant) -> ServerPart:
    """Return what a server says of its part in a step."""
    return ServerPart(
        records=sum(part.batch_size for part in local.devices),
        rated=step.records(without=local.late),
        loss=0.0 if math.isnan(local.loss) and not local.devices else local.loss,
        array_seconds=local.accounted.array_seconds,
        counted=[DevicePart(part.device, part.batch_size, part.compute_seconds) for part in local.devices],
        observed=local.observed,
        joules=step_joules(local.accounted),
        idle_watts=accountant.idle_watts(),
        missing=sorted({*local.late, *local.failed}),
    )


_WEIGHTS, _OPTIMISER = "weights/", "optimiser/"


@dataclass(frozen=True)
class LocalEnding:
    """Takes steps on the weights of this server alone, and the mean with all servers at a window's end.

    Attributes:
        together: the other servers.
    """

    together: PeerServers

    async def end(self, stepper: Stepper, step: Underway, report: StepReport) -> StepResult:
        """See a step through on this server; without a record in time weights stay."""
        rate = step.learning_rate(step.records())
        local = stepper.accounting.result(report, False, rate)
        if local.devices:
            await step.gathering.finish({*local.late, *local.failed})
            await asyncio.to_thread(apply_means, stepper, own_means(stepper, step), rate)
        step.update.end()
        return local

    async def end_window(
        self,
        stepper: Stepper,
        number: int,
        steps: Sequence[StepResult],
        own: Sequence[ServerPart],
        usual_steps: int,
    ) -> list[ServersStepResult]:
        """Go on from the mean of all servers' weights, and return what each step of the window came to on all of them.

        A step costs what it took on the server whose window took longest, and its part of the sum: of a window with as
        many steps as are usual, for one that an epoch cuts short says nothing else of what a step costs.

        Args:
            stepper: has taken the steps.
            number: of the window's last step.
            steps: of the window, in order.
            own: what this server says of each.
            usual_steps: of a window.

        Raises:
            CaughtUp: other servers have ended the window already.
        """
        averaged = await self.together.average(number, await asyncio.to_thread(_arrays, stepper), own)
        if len(averaged.parts) > 1:  # alone the weights are the mean, to the last bit
            await asyncio.to_thread(_take_over, stepper, averaged.means)
        spent = {server: sum(part.array_seconds for part in parts) for server, parts in averaged.parts.items()}
        slowest = max(spent, key=spent.__getitem__)  # of several the first one, on all servers alike
        waited = spent[slowest] - sum(part.array_seconds for part in own)
        sum_seconds = averaged.link_seconds / usual_steps
        return [
            self._of_window(
                stepper.accounting.accountant,
                local,
                {server: parts[place] for server, parts in averaged.parts.items()},
                averaged.parts[slowest][place].array_seconds + sum_seconds,
                (waited, averaged) if place == len(steps) - 1 else None,
            )
            for place, local in enumerate(steps)
        ]

    def _of_window(
        self,
        accountant: Accountant,
        local: StepResult,
        parts: Mapping[str, ServerPart],
        cost_seconds: float,
        end: tuple[float, Averaged] | None,
    ) -> ServersStepResult:
        """Return a step as one of all servers; the window's last one has waiting and averaging, too."""
        total, own = sum(part.records for part in parts.values()), local.accounted.array_seconds
        accounted, slowest, reduce_seconds, sent_bytes, meetings = local.accounted, own, 0.0, 0, 0
        if end is not None:
            waited, averaged = end
            slowest, reduce_seconds = own + waited, averaged.link_seconds
            sent_bytes, meetings = averaged.sent_bytes, averaged.meetings
            accounted = accountant.extend(accounted, slowest + reduce_seconds, reduce_seconds)
        servers = ServersRecord(
            server=self.together.server,
            present=list(parts),
            samples=total,
            own_seconds=own,
            slowest_seconds=slowest,
            reduce_seconds=reduce_seconds,
            sent_bytes=sent_bytes,
            meetings=meetings,
        )
        return ServersStepResult(
            accounted=accounted,
            loss=sum(part.loss * part.records for part in parts.values()) / total if total else 0.0,
            devices=[msgspec.structs.replace(part, weight=part.batch_size / total) for part in local.devices],
            late=local.late,
            failed=local.failed,
            mixed=False,
            learning_rate=local.learning_rate,
            failed_probes=local.failed_probes,
            servers=servers,
            parts=parts,
            cost_seconds=cost_seconds,
        )


def _arrays(stepper: Stepper) -> dict[str, Array]:
    """Return what steps change: parameters, buffers, and the optimiser's state.

    An optimiser that has not stepped yet has the state after a step: it has no weight in the mean.
    """
    optimiser = stepper.model.optimiser
    state = optimiser.state() or optimiser.state_after_a_step()
    arrays = {_WEIGHTS + spec.name: stepper.model.weights[spec.name] for spec in stepper.tensors.specs}
    return arrays | {_OPTIMISER + name: state[name] for name in sorted(state)}


def _take_over(stepper: Stepper, means: Mapping[str, Array]) -> None:
    if not means:
        return
    for spec in stepper.tensors.specs:
        stepper.model.weights[spec.name][...] = means[_WEIGHTS + spec.name]
    stepper.model.copy_tied()
    kept = {name.removeprefix(_OPTIMISER): mean for name, mean in means.items() if name.startswith(_OPTIMISER)}
    stepper.model.optimiser.load_state(kept)


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

    async def _run_step(self) -> bool:
        """Take one step, and return whether an epoch has ended with it."""
        number = self._progress.step + 1
        begun = self._deal(number, self._still_here()) if self._window else await self._begin(number)
        if begun is None:
            return True
        result = await self._stepper.finish(begun)
        self._progress.step = number
        self._participants.took_part(result.returned, result.failed)
        self._divergence.check_step(number, result, self.weights)
        self._batches.expected.count_late(begun.devices, result.late)
        self._tables.look_at_memory(result.accounted.devices)
        sending = begun.sent_with(self._transfers.take(number))
        part, seconds = server_part(begun, result, self._accountant), self._progress.step_seconds(time.monotonic())
        self._window.append(_Taken(number, begun.dealt, sending, result, part, seconds))
        return await self._end_window() if self._is_last() else False

    def _still_here(self) -> dict[str, Any]:
        """Return the sessions of one's own devices that were there when the window began, and are."""
        sessions, nodes = self._participants.here(), self._plan.nodes
        return {node: session for node, session in sessions.items() if nodes.index(node) in self._batches.here}

    def _rate_of(self, dealt: StepAssignment, number: int) -> Callable[[int], float]:
        """Return the learning rate by the records of all servers, as far as anybody knows."""
        rate = super()._rate_of(dealt, number)(dealt.size)
        return lambda _: rate

    def _is_last(self) -> bool:
        """Whether the window is over, by what all servers know."""
        self._batches.sampler.epoch_open = True
        dealt, steps = sum(taken.dealt.size for taken in self._window), len(self._window)
        whole = steps >= self._reduce_every or self._progress.over(self._ledger, dealt, steps)
        # A round that is to end here ends on all servers, with what they have taken.
        return whole or self._guide.pause() or not self._batches.has_more

    async def _end_window(self) -> bool:
        """Take the mean with the others, and make up for what had to wait for it."""
        window, self._window, sampler = self._window, [], self._batches.sampler
        steps, own = [taken.result for taken in window], [taken.part for taken in window]
        results = await self._shared.end_window(self._stepper, self._progress.step, steps, own, self._usual_steps)
        for taken, result in zip(window, results, strict=True):
            sampler.put_back(taken.dealt, result.took_part)
            self._add(taken.number, result, taken.sending, taken.wall_seconds)
        sampler.epoch_open = self._batches.has_more
        await self._observe(results, [taken.number for taken in window])
        return not sampler.epoch_open

    async def _observe(self, results: Sequence[ServersStepResult], numbers: Sequence[int]) -> None:
        """Show the tuner the window's steps, until it retunes: those after had the batches that were before."""
        for place, (number, result) in enumerate(zip(numbers, results, strict=True), 1):
            if not result.took_part:
                continue
            self._batches.watch(result)
            left, in_force = self._steps_left() + len(results) - place, self._progress.step + 1
            if await self._batches.observe(number, result, left, in_force, self._ledger) is not None:
                return


def make_parts(together: PeerServers | None) -> tuple[StepEnding, type[SyncTraining]]:
    """Return what becomes of the weights after each step of a run, and its training: alone, or with other servers."""
    if together is None:
        return OwnEnding(), SyncTraining
    if together.reduce_every == 1:
        return ServersEnding(together), SyncTraining
    return LocalEnding(together), LocalTraining
