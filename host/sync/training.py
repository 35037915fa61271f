"""Synchronous training: step after step, batches as the tuner has them, records as the epoch deals them out."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from csd_emu.timeline import HOST
from firmware_agent.errors import CheckpointError, DeviceLost
from firmware_agent.exchange import Array, tensor_specs
from firmware_agent.send_queue import Sending
from host.accounting import Accountant
from host.conduct import all_diverge, diverged
from host.evaluation import Judge
from host.job import JobConfig
from host.records import OnEvent, RetuneRecord, RoundRecord, StepRecord, What
from host.scanning import first_not_finite
from host.screening import believed_seconds
from host.session import DeviceSession
from host.sync.communicating import TODAY, Communication
from host.sync.dealing import Dealer, Dealt
from host.sync.disturbances import Disturbances
from host.sync.epochs import OUTSTANDING
from host.sync.exchange import Work
from host.sync.ledger import Ledger
from host.sync.measuring import see_step
from host.sync.memory_watch import MemoryWatch
from host.sync.optimiser import HostOptimiser, scale_learning_rate
from host.sync.participants import Participants
from host.sync.plan import SyncPlan
from host.sync.pondering import begin_choosing, change_devices, observe_step, take_over
from host.sync.round_end import RoundEnd
from host.sync.slice_log import SliceLog, StepLogs
from host.sync.states import hash_weights, pack_state, unpack_state
from host.sync.stepping import Stepper, StepResult, Underway
from host.sync.together import CaughtUp, Together
from host.training import TrainingState, is_done, round_totals
from host.tuning.base import Batches, Chooser, Floats, Retune, Tuner

# A device that was late so often in a row is waited for.
_MOST_LATE_STEPS = 3
# Servers compare their weights before a round, and before every so-many-th step, or the window that begins next.
COMPARED_STEPS = 16


@dataclass(frozen=True)
class Begun:
    """A step that has begun: what it was dealt, whether somebody is probed beside it, and how it was announced."""

    step: Underway
    dealt: Dealt
    probed: bool
    sending: Sending

    def sent_with(self, logs: Sequence[SliceLog]) -> Sending:
        """Return how it was sent: by settings that came after it was announced, if all devices had them in time."""
        in_time = bool(logs) and all(log.timed is not None and log.timed.resent for log in logs)
        return self.step.sending if in_time else self.sending


class SyncTraining:
    """A synchronous job on the nodes of an array; one instance per run.

    Attributes:
        cut_short: whether the last round ended before its last step, for a pause was asked for.
    """

    def __init__(
        self,
        job: JobConfig,
        participants: Participants,
        stepper: Stepper,
        optimiser: HostOptimiser,
        plan: SyncPlan,
        disturbances: Disturbances,
        accountant: Accountant,
        evaluator: Judge,
        on_event: OnEvent,
        communication: Communication = TODAY,
        logs: StepLogs | None = None,
        tuner: Tuner | None = None,
        pause: Callable[[], bool] = lambda: False,
        together: Together | None = None,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            job: what to train.
            participants: who of them is there.
            stepper: takes the steps, on weights that start as the evaluator's.
            optimiser: the stepper's.
            plan: makes the tuner, and what deals out the records.
            disturbances: competing work by step.
            accountant: the stepper's.
            evaluator: judges the weights.
            on_event: called with device, what happened, and more about it.
            communication: how steps are sent, and whether they overlap.
            logs: what became of the slices of steps that overlap.
            tuner: decides on batches; None for the plan's.
            pause: whether the round shall end with the steps that have begun.
            together: the other servers, whose devices the plan has too.
        """
        self._job, self._nodes = job, list(plan.nodes)
        self._together = together
        self._participants, self._stepper, self._optimiser = participants, stepper, optimiser
        stepper.conduct = participants.conduct
        statistics = any(name.endswith("running_var") for name in evaluator.structure().buffers)
        outstanding = OUTSTANDING if together is None else max(OUTSTANDING, together.reduce_every + 1)
        self._dealer = Dealer(plan, statistics and job.sync.batch_norm == "device", outstanding)
        self._plan, self._pause = plan, pause
        self._tuner = tuner or plan.make_tuner(lambda text: on_event(HOST, What.NOTE, text))
        self._disturbances, self._accountant, self._evaluator = disturbances, accountant, evaluator
        self._memory = MemoryWatch(plan.classes, on_event)
        self._on_event = on_event
        self._round, self._step, self._accuracy = 0, 0, 0.0
        self._round_end = RoundEnd(job, sum(plan.batches) if isinstance(self._tuner, Chooser) else None)
        self._here = set(range(len(self._nodes)))
        # Of the state that was restored last: steps, records and epochs of the round that was going on.
        self._in_round = [0, 0, 0]
        # How many steps in a row each device was late.
        self._late_steps: Counter[str] = Counter()
        self._first_records = 0
        self._communication, self._logs = communication, logs or StepLogs()
        # A step that has begun before the one before it was over; None between rounds.
        self._ahead: Begun | None = None
        self._ended = 0.0
        self.cut_short = False

    @property
    def weights(self) -> dict[str, Array]:
        """Parameters and buffers as they are now; the next step changes them in place."""
        return self._stepper.weights

    @property
    def done(self) -> bool:
        """Whether the target is reached, or the rounds are done."""
        return is_done(self._job, self._round, self._accuracy)

    async def run_round(self) -> RoundRecord:
        """Train one more round: whole passes over the data, or so many steps as the job says.

        Raises:
            DeviceLost: no device is left.
            DeviceFailed: those that are left cannot do their task.
            Diverged: weights, or all gradients or losses, are no finite numbers any more, or explode.
        """
        begin, ledger, number = time.monotonic(), self._next_ledger(), self._round
        self._ended = begin
        await begin_choosing(self._tuner)
        paused = False
        while self._round == number and not self._round_end.over(ledger) and not paused:
            try:
                self._round_end.epochs += await self._run_step(ledger)
            except CaughtUp as ahead:
                await self._catch_up(ahead, ledger)
                if self._round != number and not ledger.steps:  # it had no part in the rounds before
                    number, ledger = self._round - self.done, self._next_ledger()
            paused = self._pause() and self._ahead is None and bool(ledger.steps)
        await asyncio.to_thread(self._check_weights, f"round {number + 1}")
        test_loss = await self._end_round(ledger, number)
        fields = ledger.fields(self._participants.nodes)
        samples = sum(step.samples for step in ledger.steps)
        totals = round_totals(fields["devices"])
        totals["train_loss"] = sum(step.loss * step.samples for step in ledger.steps) / samples if samples else 0.0
        return RoundRecord(
            round=number + 1,
            accuracy=self._accuracy,
            test_loss=test_loss,
            wall_seconds=time.monotonic() - begin,
            **fields,
            **totals,
        )

    async def _end_round(self, ledger: Ledger, number: int) -> float:
        """Go on to the next round, unless others have already, and return the loss on held-out records."""
        accuracy, test_loss = await asyncio.to_thread(self._evaluator.evaluate, self.weights)
        if self._round != number:  # their accuracy counts
            return test_loss
        if self._together is not None:
            try:
                accuracy, test_loss = await self._together.end_round(self._step, accuracy, test_loss)
            except CaughtUp as ahead:
                await self._catch_up(ahead, ledger)
                return test_loss
        self._accuracy = accuracy
        self.cut_short = self._round_end.end(ledger)
        self._round += 1
        return test_loss

    def _next_ledger(self) -> Ledger:
        """Return the ledger of the round that goes on; of one taken over, without the steps that others have taken."""
        ledger = Ledger(self._accountant.array_seconds)
        self._count_missed(ledger)
        return ledger

    def _count_missed(self, ledger: Ledger) -> None:
        steps, samples, self._round_end.epochs = self._in_round
        ledger.missed(steps, samples)
        self._in_round = [0, 0, 0]

    async def _catch_up(self, ahead: CaughtUp, ledger: Ledger) -> None:
        """Go on from where another server is; if that is a later round, what there is in `ledger` is all of its."""
        before, step = self._round, self._step
        await take_over(self._tuner, partial(self.restore, unpack_state(ahead.state)))
        if self._round == before:
            self._count_missed(ledger)
        told = f"goes on after step {self._step} of server {ahead.server}; this one had taken {step}"
        self._on_event(HOST, What.NOTE, told)

    def state(self) -> TrainingState:
        """Return where the training stands; the arrays are not copied."""
        progress = {
            "step": self._step,
            "here": sorted(self._here),
            "first_records": self._first_records,
            "late_steps": dict(self._late_steps),
            "carried": self._round_end.carried,
            "in_round": list(self._in_round),
            "tuner": self._tuner.state(),
            "screen": self._stepper.screen.state(),
            "communication": self._communication.tuner.state(),
            **self._dealer.state(),
        }
        if self._together is not None:
            progress["turn"] = self._together.turn
        return TrainingState(
            self._round, self._accuracy, self._accountant.array_seconds, self.weights, self._optimiser.state(), progress
        )

    def restore(self, state: TrainingState) -> None:
        """Go on from `state`.

        Raises:
            CheckpointError: it is of another model, optimiser or mode.
        """
        weights = {name: state.weights[name] for name in self.weights if name in state.weights}
        if len(weights) != len(state.weights) or tensor_specs(weights) != tensor_specs(self.weights):
            raise CheckpointError("the checkpoint's weights are not those of the model; resume with what wrote it")
        for name, array in self.weights.items():
            array[...] = weights[name]
        self._optimiser.load_state(state.strategy)
        self._round, self._accuracy = state.round, state.accuracy
        self._accountant.array_seconds = state.array_seconds
        self._restore_progress(state.progress)

    def _restore_progress(self, progress: Mapping[str, Any]) -> None:
        try:
            self._step, self._first_records = int(progress["step"]), int(progress["first_records"])
            if self._together is not None:
                self._together.turn = int(progress.get("turn", 0))
            self._here, self._late_steps = set(progress["here"]), Counter(progress["late_steps"])
            self._round_end.carried = int(progress.get("carried", 0))
            self._in_round = [int(number) for number in progress.get("in_round", (0, 0, 0))]
            self._tuner.load_state(progress["tuner"])
            self._stepper.screen.load_state(progress.get("screen", {}))
            self._dealer.load_state(progress)
            self._communication.tuner.load_state(progress.get("communication", {}))
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            raise CheckpointError(
                f"the checkpoint does not say where a synchronous run stood ({error!r}); resume with what wrote it"
            ) from error

    async def _run_step(self, ledger: Ledger) -> bool:
        """Take one step, and return whether an epoch has ended with it; nothing counts if nobody returned anything."""
        begun = self._ahead or await self._begin(self._step + 1, ledger)
        self._ahead = None
        if begun is None:
            return True
        if self._may_look_ahead(begun, ledger):
            self._ahead = await self._begin_ahead(begun.step.number + 1, ledger)
        number, result = begun.step.number, await self._stepper.finish(begun.step)
        self._note_who_returned(number, result)
        self._dealer.put_back(begun.dealt, result.took_part)
        if not result.took_part:
            return self._nobody_returned(number, result)
        self._step = number
        self._count_late(begun.dealt.works, result)
        logs = self._logs.take(number)
        record = self._record(begun.step.number, begun.sent_with(logs), result, self._since_last())
        ledger.add(record, result.accounted)
        await self._see(record.wall_seconds, begun.sent_with(logs), logs)
        self._memory.look(result.accounted.devices)
        if isinstance(self._tuner, Chooser):
            self._tuner.watch(result.cost)
        before = self._tuner.batches.copy()
        self._dealer.epoch_open = self._ahead is not None or self._dealer.has_more(self._batches())
        if (
            retune := await observe_step(self._tuner, number, self._observed(result, before), self._steps_left(ledger))
        ) is not None:
            # One that is announced already keeps the batches that it has.
            self._announce(number + (1 if self._ahead is None else 2), retune, before, ledger)
        return not self._dealer.epoch_open

    def _note_who_returned(self, number: int, result: StepResult) -> None:
        """Note who took part in a step, and who did not.

        Raises:
            Diverged: nobody did, for all that came is of a training that diverges.
        """
        self._participants.took_part([part.device for part in result.devices], result.failed)
        if not result.devices and all_diverge(list(result.failed.values())):
            self._check_weights(f"step {number}")
            raise diverged(self._on_event, self._job, f"step {number}", list(result.failed.values()))

    def _check_weights(self, where: str) -> None:
        """Return if all weights are finite numbers.

        Raises:
            Diverged: they are not.
        """
        if bad := first_not_finite(self.weights):
            what = f"the weights of {bad} are no finite numbers any more, after gradients that were"
            raise diverged(self._on_event, self._job, where, what=what)

    async def _see(self, wall_seconds: float, sending: Sending, logs: Sequence[SliceLog]) -> None:
        """Tell the communication's tuner what the step cost; write down what it makes of it, and do it.

        The tuner may think for longer than a step lasts: slices of the next one cross meanwhile.
        """
        if not self._communication.overlap or not logs:
            return
        sizes = {name: array.nbytes for name, array in self.weights.items()}
        seen = see_step(self._step, wall_seconds, sending, logs, sizes)
        change = None if seen is None else await asyncio.to_thread(self._communication.tuner.observe, seen)
        if change is not None:
            sending = change.sending
            if self._ahead is not None and change.step <= self._ahead.step.number:
                self._stepper.resend(self._ahead.step, sending)
            told = f"slices of {sending.slice_bytes} bytes, credit {sending.credit_bytes}: {change.reason}"
            self._on_event(HOST, What.RETUNED, f"from step {change.step}: {told}")

    async def _begin(self, number: int, ledger: Ledger) -> Begun | None:
        """Begin a step when those who shall take part are there; None if nothing is left of the epoch."""
        sessions, elsewhere = await self._gather(number, ledger)
        await self._admit(number, {*sessions, *elsewhere}, ledger)
        if self._dealer.epoch_open and not self._dealer.has_more(self._batches()):
            self._dealer.epoch_open = False  # who is gone had the last records
            return None
        return self._deal(number, sessions)

    async def _gather(self, number: int, ledger: Ledger) -> tuple[Mapping[str, DeviceSession], Collection[str]]:
        """Return who takes part in a step: sessions of one's own devices, and names of other servers'."""
        if self._together is None:
            return await self._participants.present(number), ()
        while True:
            newcomer, sessions = self._participants.newcomer, self._participants.here()
            compared = not ledger.count or number % COMPARED_STEPS < self._together.reduce_every
            weights = await asyncio.to_thread(hash_weights, self.weights) if compared else b""
            give_state = partial(self._pack_state, ledger)
            elsewhere = await self._together.begin(number, list(sessions), weights, give_state)
            if sessions or elsewhere:
                return sessions, elsewhere
            await self._participants.wait(number, newcomer)

    def _pack_state(self, ledger: Ledger) -> bytes:
        """Return where the training stands in the middle of a round, for a server that is behind."""
        state = self.state()
        done = [ledger.count, ledger.samples, self._round_end.epochs]
        return pack_state(replace(state, progress={**state.progress, "in_round": done}))

    def _may_look_ahead(self, begun: Begun, ledger: Ledger) -> bool:
        """Whether the next step may begin before this one is over: it must be of the same round and epoch.

        Not beside probes, which nobody waits for before weights change.
        """
        records = sum(len(work.records) for work in begun.dealt.works)
        return (
            self._communication.overlap
            and self._stepper.may_look_ahead
            and not self._round_end.over_with(ledger, records)
            and not begun.probed
            and not self._pause()
            and not self._tuner.probes(begun.step.number + 1).any()
        )

    async def _begin_ahead(self, number: int, ledger: Ledger) -> Begun | None:
        """Begin the next step with those who are there; None if the epoch has no record left for them."""
        sessions = self._participants.here()
        if not sessions:
            return None
        await self._admit(number, set(sessions), ledger)
        self._dealer.epoch_open = True
        return self._deal(number, sessions) if self._dealer.has_more(self._batches()) else None

    def _deal(self, number: int, sessions: Mapping[str, DeviceSession]) -> Begun:
        dealt = self._dealer.deal(sessions, self._batches())
        probes = self._dealer.probes(sessions, self._tuner.probes(number), dealt)
        self._first_records = self._first_records or dealt.size
        expected, sending = self._expected(dealt.works), self._communication.sending(number)
        step = self._stepper.begin(number, dealt.works, self._rate_of(dealt), probes, expected, sending)
        return Begun(step, dealt, bool(probes), sending)

    def _nobody_returned(self, number: int, result: StepResult) -> bool:
        """Note a step from which nobody returned; what all had sent in full before they were lost is applied.

        It is taken again, unless the next one is announced already: that goes on with the weights as they are.
        """
        self._dealer.epoch_open = True
        if result.mixed or self._ahead is not None:
            self._step = number
        if result.mixed:
            told = f"step {number}: all were lost after gradients had come: these count, and their records come again"
            self._on_event(HOST, What.NOTE, told)
        return False

    def _count_late(self, works: Sequence[Work], result: StepResult) -> None:
        for work in works:
            device = work.session.device
            self._late_steps[device] = self._late_steps[device] + 1 if device in result.late else 0

    def _steps_left(self, ledger: Ledger) -> int:
        """Return how many steps the run still has, if batches stay as they are."""
        job, batches, rounds = self._job, self._batches(), self._job.rounds - self._round
        left = self._round_end.steps_left(rounds, self._step, ledger, int(batches.sum()))
        if left is not None:
            return left
        return self._dealer.steps_left(batches, max(0, rounds * job.epochs - self._round_end.epochs - 1))

    async def _admit(self, number: int, present: Collection[str], ledger: Ledger) -> None:
        """Tell tuner and queue who has left and who is back since the last step."""
        here = {self._nodes.index(node) for node in present}
        changes = [(self._tuner.leave, node) for node in sorted(self._here - here)]
        changes += [(self._tuner.join, node) for node in sorted(here - self._here)]
        if not changes:
            return
        before = self._tuner.batches.copy()
        if isinstance(self._tuner, Chooser):
            self._tuner.meet(here)
        for change, node in changes:
            retune = await change_devices(self._tuner, change, node)
            self._announce(number, retune, before, ledger)
            before = retune.batches.copy()
        self._here = here

    def _announce(self, step: int, retune: Retune, before: Batches, ledger: Ledger) -> None:
        """Write down new batches, which all devices have from `step` on."""
        batches = {
            node: (int(old), int(new)) for node, old, new in zip(self._nodes, before, retune.batches, strict=True)
        }
        changed = [f"{node} {old} -> {new}" for node, (old, new) in batches.items() if old != new]
        if not changed:
            return
        ledger.retunes.append(
            RetuneRecord(
                step=step,
                reason=retune.reason,
                before={node: old for node, (old, _) in batches.items()},
                after={node: new for node, (_, new) in batches.items()},
                gain_steps=retune.gain_steps,
            )
        )
        self._on_event(HOST, What.RETUNED, f"from step {step}: {', '.join(changed)}: {retune.reason}")

    def _expected(self, works: Sequence[Work]) -> dict[str, float] | None:
        """Return what each device's part should take, as it is believed to be now; None without tables.

        One that was late several steps in a row is waited for, whatever it takes: nobody else has its private records.
        """
        classes, slowdowns = self._plan.classes, dict(zip(self._nodes, self._tuner.slowdowns, strict=True))
        devices = [(work.session.device, len(work.records)) for work in works]
        if any(device not in classes for device, _ in devices):
            return None
        return {
            device: math.inf
            if self._late_steps[device] >= _MOST_LATE_STEPS
            else float(slowdowns[device]) * self._table_seconds(device, count)
            for device, count in devices
        }

    def _table_seconds(self, device: str, records: int) -> float:
        speed = self._plan.classes[device].speed
        return speed.seconds(min(records, speed.largest_batch))

    def _observed(self, result: StepResult, batches: Batches) -> Floats:
        """Return what each node's seconds would have been with its whole batch: an epoch's last step is smaller."""
        seconds, expected = np.full((2, len(self._nodes)), np.nan)
        for part in result.observed:
            node = self._nodes.index(part.device)
            whole = int(batches[node]) or 1  # of a parked device one record is expected
            scale = 1.0
            if whole != part.records and part.device in self._plan.classes:
                scale = self._table_seconds(part.device, whole) / self._table_seconds(part.device, part.records)
            seconds[node] = part.compute_seconds * scale
            if part.device in self._plan.classes:
                expected[node] = self._table_seconds(part.device, whole)
        return believed_seconds(seconds, expected)

    def _batches(self) -> Batches:
        """Return the records per step of each node as they are now, 0 for one that does not take part."""
        batches = self._tuner.batches  # asked for first: one that plans begins with that, and may decide at once
        resting = self._tuner.resting if isinstance(self._tuner, Chooser) else ()
        return self._dealer.batches(self._here.difference(resting), batches)

    def _learning_rate(self, records: int) -> float:
        """Return the learning rate of a step with so many records."""
        rule = self._job.sync.learning_rate_rule
        return scale_learning_rate(rule, self._job.learning_rate, records, self._first_records)

    def _rate_of(self, dealt: Dealt) -> Callable[[int], float]:
        """Return what says the learning rate of a step by the records in its gradient."""
        return self._learning_rate

    def _since_last(self) -> float:
        """Return the wall's seconds since the last step ended."""
        before, self._ended = self._ended, time.monotonic()
        return self._ended - before

    def _record(self, number: int, sending: Sending, result: StepResult, wall_seconds: float) -> StepRecord:
        return StepRecord(
            step=number,
            loss=result.loss,
            learning_rate=result.learning_rate,
            array_seconds=result.accounted.array_seconds,
            possible_images_per_second=self._tuner.possible_images_per_second(),
            devices=result.devices,
            late=result.late,
            lost=[*result.failed, *(d for d, why in result.failed_probes.items() if isinstance(why, DeviceLost))],
            mixed=result.mixed,
            disturbed=self._disturbances.at(number),
            sending=self._communication.told(sending),
            wall_seconds=wall_seconds,
            placement=result.placement,
            servers=result.servers,
        )
