"""Synchronous training: step after step, batches as the tuner has them, records as the epoch deals them out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import CheckpointError
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Array
from host.core.device_time import WALL
from host.core.evaluation import WeightsJudge
from host.core.learning.judgement import Judgement
from host.core.records import EventKind, RoundRecord, StepRecord
from host.core.states.peer_servers import PeerServers, StateBehind
from host.core.states.training_state import TrainingState, hash_weights, pack_state, unpack_state
from host.core.tuning.batch_tuner import DeviceSelector
from host.fleet.device_session import DeviceSession
from host.training.accounting import Accountant, StepAccount
from host.training.sampler import OUTSTANDING
from host.training.sync.disturbances import Disturbances
from host.training.sync.exchange.slice_log import SliceLog
from host.training.sync.participants import Participants
from host.training.sync.round_totals import PLANNED, RoundTotals, RunGuide, RunProgress
from host.training.sync.run_checks import DivergenceCheck, TableWatch
from host.training.sync.run_transfers import RunTransfers, record_change
from host.training.sync.step_batches import RecordSampler, StepAssignment, StepBatches
from host.training.sync.step_result import StepResult
from host.training.sync.sync_step import PartCounter, Stepper, Underway
from host.training.sync_plan import SyncPlan
from host.training.training_protocol import is_done

# Servers compare their weights before a round, and before every so-many-th step, or the window that begins next.
COMPARED_STEPS = 16


class SyncTraining:
    """A synchronous job on the nodes of an array; one instance per run."""

    def __init__(
        self,
        plan: SyncPlan,
        participants: Participants,
        stepper: Stepper,
        disturbances: Disturbances,
        evaluator: WeightsJudge,
        transfers: RunTransfers,
        guide: RunGuide = PLANNED,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            plan: what to train, and what deals out the records; if there are other servers, it has their devices too.
            participants: who of the devices is there.
            stepper: takes the steps, on weights that start as the evaluator's.
            disturbances: competing work by step.
            evaluator: judges the weights.
            transfers: how steps are sent.
            guide: decides on batches and pauses.
        """
        job, on_event, together = plan.job, participants.on_event, stepper.ending.together
        self._plan, self._participants, self._stepper = plan, participants, stepper
        stepper.screening.conduct = participants.conduct
        statistics = any(name.endswith("running_var") for name in evaluator.structure().buffers)
        outstanding = OUTSTANDING if together is None else max(OUTSTANDING, together.reduce_every + 1)
        sampler = RecordSampler(plan, statistics and job.sync.batch_norm == "device", outstanding)
        tuner = guide.tuner or plan.make_tuner(lambda text: on_event(HOST, EventKind.NOTE, text))
        self._batches = StepBatches(plan, tuner, sampler, on_event)
        self._progress = RunProgress(job, sum(plan.batches) if isinstance(tuner, DeviceSelector) else None)
        self._guide, self._disturbances, self._evaluator = guide, disturbances, evaluator
        self._tables, self._divergence = TableWatch(plan.classes, on_event), DivergenceCheck(job, on_event)
        self._transfers = transfers
        # A step that has begun before the one before it was over; None between rounds.
        self._ahead: Underway | None = None

    def count_with(self, counter: PartCounter | None) -> None:
        """Have what devices report get its seconds from `counter`; None: they are their own."""
        self._stepper.counter = counter

    @property
    def cut_short(self) -> bool:
        """Whether the last round ended before its last step, for a pause was asked for."""
        return self._progress.cut_short

    @property
    def is_deciding(self) -> bool:
        """Whether devices are being chosen, in trials."""
        return self._batches.is_deciding

    @property
    def steps(self) -> Sequence[StepRecord]:
        """Those of the round that goes on, or was the last one."""
        return self._ledger.steps

    @property
    def _ledger(self) -> RoundTotals:
        """Of the round that goes on, or was the last one."""
        return self._progress.ledger

    @property
    def _accountant(self) -> Accountant:
        """What has the array's time."""
        return self._stepper.accounting.accountant

    @property
    def _together(self) -> PeerServers | None:
        """The other servers; None if there is none."""
        return self._stepper.ending.together

    @property
    def weights(self) -> dict[str, Array]:
        """Parameters and buffers as they are now; the next step changes them in place."""
        return self._stepper.model.weights

    @property
    def done(self) -> bool:
        """Whether the target is reached, or the rounds are done."""
        return is_done(self._plan.job, self._progress.rounds, self._progress.accuracy)

    async def run_round(self) -> RoundRecord:
        """Train one more round: whole passes over the data, or so many steps as the job says.

        Raises:
            DeviceLost: no device is left.
            DeviceFailed: those that are left cannot do their task.
            Diverged: weights, or all gradients or losses, are no finite numbers any more, or explode.
        """
        self.begin_round()
        await self.take_steps()
        return await self.end_round()

    def begin_round(self) -> None:
        """Begin one more round."""
        self._progress.ledger = self._next_ledger(self._progress.rounds, time.monotonic())

    async def take_steps(self, stop: Callable[[Sequence[StepRecord]], bool] = lambda _: False) -> bool:
        """Take the steps of the round that goes on (see `run_round`); return whether it has all that it gets.

        `stop` is shown the round's steps after each; where it says so the rest waits for the next call.
        """
        await self._batches.begin(self._progress.step + 1, self._ledger)
        self._progress.ended_seconds = time.monotonic()
        while not self._is_over():
            taken = len(self._ledger.steps)
            try:
                self._progress.epochs += await self._run_step()
            except StateBehind as ahead:
                await self._catch_up(ahead)
                if self._progress.rounds != self._ledger.rounds and not self._ledger.steps:
                    rounds, begun = self._progress.rounds - self.done, self._ledger.begin_seconds
                    self._progress.ledger = self._next_ledger(rounds, begun)  # it had no part in the rounds before
            if self._ahead is not None or not self._ledger.steps:
                continue
            if self._guide.pause():
                return True
            if len(self._ledger.steps) > taken and stop(self._ledger.steps) and not self._is_over():
                return False
        return True

    def _is_over(self) -> bool:
        return self._progress.rounds != self._ledger.rounds or self._progress.over(self._ledger)

    async def end_round(self) -> RoundRecord:
        """End the round that goes on, and return its record (see `run_round`)."""
        ledger, number = self._ledger, self._ledger.rounds + 1
        await asyncio.to_thread(self._divergence.check_weights, f"round {number}", self.weights)
        judged, noise = await self._judge(), self._stepper.screening.noise.records
        worth = {"accuracy": self._progress.accuracy, "test_loss": judged.loss, "metrics": judged.metrics}
        worth |= {"wall_seconds": time.monotonic() - ledger.begin_seconds, "gradient_noise_records": noise}
        return ledger.record(self._participants.nodes, self._accountant.service.take_figures, round=number, **worth)

    async def _judge(self) -> Judgement:
        """Go on to the next round, unless others have already, and return what the weights are worth."""
        judged = await asyncio.to_thread(self._evaluator.evaluate, self.weights)
        if self._progress.rounds != self._ledger.rounds:  # their accuracy counts
            return judged
        if self._together is not None:
            try:
                judged = await self._together.end_round(self._progress.step, judged)
            except StateBehind as ahead:
                await self._catch_up(ahead)
                return judged
        self._progress.end_round(self._ledger, judged.accuracy)
        return judged

    def _next_ledger(self, rounds: int, begin_seconds: float) -> RoundTotals:
        """Return the ledger of the round that goes on; of one taken over, without the steps that others have taken."""
        ledger = RoundTotals(self._accountant.array_seconds, self._guide, rounds, begin_seconds)
        self._progress.count_missed(ledger)
        return ledger

    async def _catch_up(self, ahead: StateBehind) -> None:
        """Go on from where another server is; if that is a later round, what the ledger has is all of its own."""
        before, step = self._progress.rounds, self._progress.step
        # One that chooses devices repeats its thoughts.
        await self._batches.consult(self.restore, unpack_state(ahead.state), always=True)
        if self._progress.rounds == before:
            self._progress.count_missed(self._ledger)
        told = f"goes on after step {self._progress.step} of server {ahead.server}; this one had taken {step}"
        self._participants.on_event(HOST, EventKind.NOTE, told)

    def state(self) -> TrainingState:
        """Return where the training stands; the arrays are not copied."""
        progress = {
            **self._progress.state(),
            **self._batches.state(),
            "screen": self._stepper.screening.screen.state(),
            "noise": self._stepper.screening.noise.state(),
            "communication": self._transfers.policy.tuner.state(),
        }
        if self._together is not None:
            progress["turn"] = self._together.turn
        return TrainingState(
            *(self._progress.rounds, self._progress.accuracy, self._accountant.array_seconds),
            *(self.weights, self._stepper.model.optimiser.state(), progress, self._accountant.service.state()),
        )

    def restore(self, state: TrainingState) -> None:
        """Go on from `state`.

        Raises:
            CheckpointError: it is of another model, optimiser or mode.
        """
        self._restore_model(state)
        self._progress.rounds, self._progress.accuracy = state.round, state.accuracy
        self._restore_progress(state.progress)

    def _restore_model(self, state: TrainingState) -> None:
        for name, array in state.weights_like(self.weights).items():
            self.weights[name][...] = array
        self._stepper.model.optimiser.load_state(state.strategy)
        self._accountant.restore(state.array_seconds, state.service)

    def _restore_progress(self, progress: Mapping[str, Any]) -> None:
        try:
            if self._together is not None:
                self._together.turn = int(progress.get("turn", 0))
            self._progress.load_state(progress)
            self._batches.load_state(progress)
            self._stepper.screening.screen.load_state(progress.get("screen", {}))
            self._stepper.screening.noise.load_state(progress.get("noise", (0, 0.0, 0.0)))
            self._transfers.policy.tuner.load_state(progress.get("communication", {}))
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            raise CheckpointError(
                f"the checkpoint does not say where a synchronous run stood ({error!r}); resume with what wrote it"
            ) from error

    def take_over(self, other: SyncTraining) -> None:
        """Go on between steps from where `other` stands, whose model is cut elsewhere.

        It is of the same job on the same weights, records and rounds; tuners, and what is known of devices, begin anew.
        """
        self._restore_model(other.state())
        self._progress = other._progress
        self._batches.take_over(other._batches)
        self._disturbances.take_over(other._disturbances)

    async def _run_step(self) -> bool:
        """Take one step, and return whether an epoch has ended with it; nothing counts if nobody returned anything."""
        begun = self._ahead or await self._begin(self._progress.step + 1)
        self._ahead = None
        if begun is None:
            return True
        if self._may_look_ahead(begun):
            self._ahead = await self._begin_ahead(begun.number + 1)
        number, result = begun.number, await self._stepper.finish(begun)
        self._participants.took_part(result.returned, result.failed)
        self._divergence.check_step(number, result, self.weights)
        batches = self._batches
        batches.sampler.put_back(begun.dealt, result.took_part)
        if not result.took_part:
            return self._nobody_returned(number, result)
        self._progress.step = number
        batches.expected.count_late(begun.devices, result.late)
        logs = self._transfers.take(number)
        seconds, sending = self._progress.step_seconds(time.monotonic()), begun.sent_with(logs)
        self._add(number, result, sending, seconds)
        # Trials of devices compare steps that are sent alike.
        if begun.dealt.comparable and not self.is_deciding:
            await self._see(seconds, sending, logs, result.accounted)
        self._tables.look_at_memory(result.accounted.devices)
        batches.watch(result, self._stepper.screening.noise.records)
        batches.sampler.epoch_open = self._ahead is not None or batches.has_more
        # A step that is announced already keeps the batches that it has.
        in_force = number + (1 if self._ahead is None else 2)
        await batches.observe(number, result, self._steps_left(), in_force, self._ledger)
        return not batches.sampler.epoch_open

    async def _see(
        self, wall_seconds: float, sending: TransferSettings, logs: Sequence[SliceLog], accounted: StepAccount
    ) -> None:
        """Tell the communication's tuner what the step cost; write down what it makes of it, and do it."""
        change = await self._transfers.learn(self._progress.step, wall_seconds, sending, logs, self.weights, accounted)
        if change is not None:
            if self._ahead is not None and change.step <= self._ahead.number:
                self._stepper.resend(self._ahead, change.sending)
            clock = WALL if logs else "+".join(sorted({part.clock for part in accounted.devices}))
            record, told = record_change(change, clock)
            self._ledger.transfer_changes.append(record)
            self._participants.on_event(HOST, EventKind.RETUNED, told)

    async def _begin(self, number: int) -> Underway | None:
        """Begin a step when those who shall take part are there; None if nothing is left of the epoch."""
        sessions, elsewhere = await self._gather(number)
        await self._batches.admit(number, {*sessions, *elsewhere}, self._ledger)
        if self._batches.sampler.epoch_open and not self._batches.has_more:
            self._batches.sampler.epoch_open = False  # who is gone had the last records
            return None
        return self._deal(number, sessions)

    async def _gather(self, number: int) -> tuple[Mapping[str, DeviceSession], Collection[str]]:
        """Return who takes part in a step: sessions of one's own devices, and names of other servers'."""
        if self._together is None:
            return await self._participants.present(number), ()
        while True:
            newcomer, sessions = self._participants.newcomer, self._participants.here()
            compared = not self._ledger.count or number % COMPARED_STEPS < self._together.reduce_every
            weights = await asyncio.to_thread(hash_weights, self.weights) if compared else b""
            elsewhere = await self._together.begin(number, list(sessions), weights, self._pack_state)
            if sessions or elsewhere:
                return sessions, elsewhere
            await self._participants.wait(number, newcomer)

    def _pack_state(self) -> bytes:
        """Return where the training stands in the middle of a round, for a server that is behind."""
        state = self.state()
        done = [self._ledger.count, self._ledger.samples, self._progress.epochs]
        return pack_state(replace(state, progress={**state.progress, "in_round": done}))

    def _may_look_ahead(self, begun: Underway) -> bool:
        """Whether the next step may begin before this one is over: it must be of the same round and epoch.

        Not beside probes, which nobody waits for before weights change.
        """
        return (
            self._transfers.policy.overlap
            and self._stepper.may_look_ahead
            and not self._progress.over(self._ledger, begun.records(), 1)
            and not begun.probed
            and not self._guide.pause()
            and not self._batches.tuner.probes(begun.number + 1).any()
        )

    async def _begin_ahead(self, number: int) -> Underway | None:
        """Begin the next step with those who are there; None if the epoch has no record left for them."""
        sessions = self._participants.here()
        if not sessions:
            return None
        await self._batches.admit(number, set(sessions), self._ledger)
        self._batches.sampler.epoch_open = True
        return self._deal(number, sessions) if self._batches.has_more else None

    def _deal(self, number: int, sessions: Mapping[str, DeviceSession]) -> Underway:
        batches = self._batches
        dealt = batches.sampler.deal(sessions, batches.current())
        dealt = replace(dealt, comparable=dealt.comparable and not self.is_deciding)
        probes = batches.sampler.probes(sessions, batches.tuner.probes(number), dealt)
        records = {work.device: len(work.records) for work in dealt.works}
        expected = batches.expected.of_step(records, batches.tuner.slowdowns)
        sending = self._transfers.policy.tuner.sending(number)
        return self._stepper.begin(number, dealt, self._rate_of(dealt, number), probes, expected, sending)

    def _nobody_returned(self, number: int, result: StepResult) -> bool:
        """Note a step from which nobody returned; what all had sent in full before they were lost is applied.

        It is taken again, unless the next one is announced already: that goes on with the weights as they are.
        """
        self._batches.sampler.epoch_open = True
        if result.mixed or self._ahead is not None:
            self._progress.step = number
        if result.mixed:
            told = f"step {number}: all were lost after gradients had come: these count, and their records come again"
            self._participants.on_event(HOST, EventKind.NOTE, told)
        return False

    def _steps_left(self) -> int:
        """Return how many steps the run still has, if batches stay as they are."""
        batches = self._batches.current()
        job, progress = self._plan.job, self._progress
        if (left := progress.steps_left(self._ledger, int(batches.sum()))) is not None:
            return left
        epochs = (job.rounds - progress.rounds) * job.epochs - progress.epochs - 1
        return self._batches.sampler.steps_left(batches, max(0, epochs))

    def _rate_of(self, dealt: StepAssignment, number: int) -> Callable[[int], float]:
        """Return what says the learning rate of step `number` by the records in its gradient."""
        return self._batches.rate_of(dealt, number)

    def _add(self, number: int, result: StepResult, sending: TransferSettings, wall_seconds: float) -> None:
        """Write a step down."""
        told, possible = self._transfers.policy.told(sending), self._batches.tuner.possible_records_per_second()
        disturbed = self._disturbances.at(number)
        self._tables.look_at_speeds([] if disturbed or result.accounted.waits else result.devices)
        self._ledger.add(result.record(number, possible, disturbed, told, wall_seconds), result.accounted)
