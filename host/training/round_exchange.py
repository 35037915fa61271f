"""One round's exchange with the devices: weights out, local training in the drives, weights back."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import msgspec

from csd_emu.util.deadline import Deadline
from csd_emu.util.node_names import HOST
from firmware_agent.common.clients.client_program import STATE
from firmware_agent.common.clients.client_round import EXCHANGED, MOST_EXCHANGES
from firmware_agent.common.errors import (
    CsdError,
    DeviceCodeFailed,
    DeviceFailed,
    DeviceLost,
    DeviceSilent,
    ProtocolError,
)
from firmware_agent.common.frames.session_frames import Code, Exchange, Job, Ready, Tensors, Train, Trained
from firmware_agent.common.losses.objective import ObjectiveSpec
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array, cut_slices, tensor_specs
from firmware_agent.common.wire import encode, pack
from host.config.job_file import JobConfig
from host.config.participation import RoundSelection
from host.config.plugins.plugin_loading import Plugin
from host.core.failures import Failures
from host.core.interrupts import all_or_none
from host.core.records import EventKind, OnEvent
from host.core.tensor_sums import first_not_finite, scan_update
from host.fleet.device_session import DeviceSession, ExpectedTensors
from host.fleet.fleet import Fleet
from host.training.accounting import DeviceReport
from host.training.contributions import Refusal, ScreenedContribution, dealt_passes
from host.training.device_conduct import Conduct, all_diverge, diverged
from host.training.rounds.client_contract import AS_USUAL, ClientContract, Instruction, RoundMessages, encoded_bytes
from host.training.rounds.drive_meeting import Answer, DriveMeeting
from host.training.rounds.round_answer import RoundAnswer
from host.training.rounds.round_attempt import RoundAttempt
from host.training.screening import Screen

T = TypeVar("T")
# How often a host that waits for its devices to dial again looks whether they still exist.
_LOOK_SECONDS = 1.0
# To look at fewer takes less than to have a thread do it.
_SMALL_BYTES = 256 << 10
# What the wire takes as a drive's own deadline.
MAX_DEADLINE_SECONDS = 1e6


@dataclass(frozen=True)
class Visited:
    """Whom a round asked, or should have asked, and what came back, in the array's order of devices."""

    asked: frozenset[str]
    answers: list[RoundAnswer]


def job_frame(
    job: JobConfig,
    spec: ShippedCode,
    objective: ObjectiveSpec,
    proximal: float = 0.0,
    overlap: bool = False,
    cut: str | None = None,
    optimizer: Plugin | None = None,
) -> Job:
    """Return the frame that tells a drive what it trains; `proximal` is the strategy's.

    `optimizer` is the job's, if it is a class of the user's own. With `overlap` a synchronous job's slices cross while
    the drive computes; `cut` names the layer that the host's part of the model begins with.
    """
    return Job(
        model=spec.name,
        arguments=dict(spec.arguments),
        source=spec.source,
        input_scale=objective.input_scale,
        seed=job.seed,
        learning_rate=job.learning_rate,
        momentum=job.momentum,
        optimiser=_optimiser_code(job, optimizer),
        clip_norm=job.chosen_clip_norm if job.mode == "federated" else None,
        freeze=job.freeze,
        batch_size=job.batch_size,
        proximal=proximal,
        batch_norm=job.sync.batch_norm,
        precision=job.chosen_precision,
        overlap=overlap,
        # Longer than the host's own: it gives up whom a drive waits for, not the drive.
        deadline_seconds=min(3 * job.watchdog, MAX_DEADLINE_SECONDS),
        cut=cut,
        input_fields=list(objective.input_fields),
        loss=code_frame(objective.loss),
        collate=None if objective.collate is None else code_frame(objective.collate),
        augment=[code_frame(each) for each in objective.augment],
    )


def code_frame(code: ShippedCode) -> Code:
    """Return the job's code as it is sent to drives."""
    return Code(code.name, code.source, dict(code.arguments))


def _optimiser_code(job: JobConfig, own: Plugin | None) -> Code | None:
    """Return what steps weights in a drive; None for plain SGD, and where the host does."""
    name, options = job.chosen_optimiser.name, job.chosen_optimiser.arguments
    if job.mode == "sync" or (job.by_sgd and not options):
        return None
    return Code(name, None if own is None else own.source, ({"momentum": job.momentum} if job.by_sgd else {}) | options)


async def prepare_device(session: DeviceSession, frame: Job, deadline: Deadline) -> None:
    """Have the device build the job's model.

    Raises:
        DeviceError: it was lost, or could not build the model.
    """
    await session.send(frame, deadline)
    await session.expect(Ready, deadline)


@dataclass(frozen=True)
class RoundTask:
    """What a device does in a round.

    Attributes:
        number: the round's.
        messages: that tell it so.
        instruction: of the strategy.
        weights: that it begins with.
        buffers: names of those that are not trained.
        meeting: for exchanges of its client program; None if it asks for none.
    """

    number: int
    messages: RoundMessages
    instruction: Instruction
    weights: Mapping[str, Array]
    buffers: Collection[str]
    meeting: DriveMeeting | None = None


NOTHING_SAID: Mapping[str, Instruction] = MappingProxyType({})
BeforeTask = Callable[[DeviceSession, Deadline], Awaitable[None]]
"""May speak with a device before it gets its next task; raises `DeviceError` if that device is lost."""


async def leave_alone(session: DeviceSession, deadline: Deadline) -> None:
    """Say nothing to a device before its task."""


class RoundExchange:
    """Exchanges weights with the devices of a fleet, round by round; one instance per run.

    A session takes part in a round at most once, and what a closed session still sends is never read. So an answer to
    an old round cannot enter a newer one, whenever its device comes back.

    Attributes:
        screen: judges what comes back; one that has seen nothing, at first.
        conduct: reports and counts what is refused.
        learning_rate: returns that of a round; None for the job's.
        clock_of: see `host.core.device_time.DeviceTime.clock`; at first the stopwatch's own.
        states: device -> what its client program keeps, as it returned it last, by names on the wire.
    """

    def __init__(
        self,
        job: JobConfig,
        frame: Job,
        fleet: Fleet,
        list_existing: Callable[[], Collection[str]],
        on_event: OnEvent,
        before_task: BeforeTask = leave_alone,
        failures: Failures | None = None,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            job: what to train.
            frame: the same, as drives get it.
            fleet: the drives that have dialled in.
            list_existing: returns which devices exist and may dial again; it may block.
            on_event: called with device, what happened, and more about it.
            before_task: called for each device before a round's frames go to it.
            failures: is told when the user's code fails in a device; without, the run goes on.
        """
        self.states: dict[str, dict[str, Array]] = {}
        self.screen, self.conduct = Screen(), Conduct(on_event)
        self.learning_rate: Callable[[int], float | None] = lambda _: None
        self.clock_of: Callable[[str, str], str] = lambda _, stopwatch: stopwatch
        self._job, self._frame, self._fleet = job, frame, fleet
        self._list_existing, self._before_task = list_existing, before_task
        self._failures = failures or Failures(goes_on=True)
        self._prepared: weakref.WeakSet[DeviceSession] = weakref.WeakSet()

    @property
    def on_event(self) -> OnEvent:
        """What is called with device, what happened, and more about it."""
        return self.conduct.on_event

    @property
    def contract(self) -> ClientContract | None:
        """Of the job's client program; None without one."""
        return ClientContract.of(self._frame)

    def list_samples(self) -> dict[str, int]:
        """Return device -> records of its shard, of those that are there."""
        return {device: session.hello.samples for device, session in self._fleet.sessions().items()}

    async def visit(
        self,
        number: int,
        weights: Mapping[str, Array],
        choice: RoundSelection,
        buffers: Collection[str] = (),
        instructions: Mapping[str, Instruction] = NOTHING_SAID,
        answer: Answer | None = None,
    ) -> Visited:
        """Train one round on the chosen devices; `buffers` are the weights that are not trained.

        `answer` is the strategy's to exchanges within the round. If no device can be had, or believed, others stand in.
        If none at all can, those that still exist are given the watchdog's time to dial again, and are asked again, a
        few times.

        Raises:
            DeviceLost: no device returned its weights, and none came back.
            DeviceFailed: no device returned its weights, and one said why; or the user's code failed in one, and the
                job says that the run ends then.
            Diverged: all devices' weights or losses are no finite numbers any more, or explode.
        """
        task = Train(number, self._job.epochs, learning_rate=self.learning_rate(number))
        messages = RoundMessages(weights, task)
        attempt = RoundAttempt(number, choice)
        while True:
            sessions = attempt.candidates(self.conduct.without_aside(self._fleet.sessions()))
            if not sessions:
                await self._wait_for_newcomer(attempt)
                continue
            if stand_ins := [session.device for session in sessions if session.device in attempt.reserves]:
                told = f"{', '.join(choice.chosen)} cannot be had; {', '.join(stand_ins)} stand in"
                self.on_event(HOST, EventKind.NOTE, f"round {number}: {told}")
            attempt.begin(sessions)
            names = [session.device for session in sessions]
            meets = self.contract is not None and self.contract.exchanges
            start = weights, buffers, DriveMeeting(names, answer) if answer is not None and meets else None
            tasks = [RoundTask(number, messages, instructions.get(each.device, AS_USUAL), *start) for each in sessions]
            visits = [self._visit(session, task) for session, task in zip(sessions, tasks, strict=True)]
            results = self._screened(number, await all_or_none(visits), weights)
            if answers := [result for result in results if isinstance(result, RoundAnswer)]:
                return Visited(frozenset({*choice.chosen, *attempt.counts}), answers)
            attempt.errors += [result for result in results if not isinstance(result, RoundAnswer)]

    def _screened(
        self, number: int, results: Sequence[RoundAnswer | CsdError], weights: Mapping[str, Array]
    ) -> list[RoundAnswer | CsdError]:
        """Return what is believed of the results, and the errors; a refused drive's weights are let go."""
        parts = {result.session: self._part(result) for result in results if isinstance(result, RoundAnswer)}
        refused = self.screen.judge(list(parts.values()), self.screen.weight_norm(weights))
        return [self._verdict(number, result, refused) for result in results]

    def _verdict(
        self, number: int, result: RoundAnswer | CsdError, refused: Mapping[str, Refusal]
    ) -> RoundAnswer | CsdError:
        if not isinstance(result, RoundAnswer):
            return result
        session, where = result.session, f"round {number}"
        if (why := refused.get(session.device)) is None:
            self.conduct.accept(session, where, result.returned.trained.loss)
            self.conduct.note_unchanged(session.device, where, self.contract, result.scan.norms)
            return result
        session.recycle(result.weights)
        return self.conduct.refuse(session, why, where)

    def _part(self, answer: RoundAnswer) -> ScreenedContribution:
        returned, session = answer.returned, answer.session
        dealt = dealt_passes(session.hello.samples, returned.epochs, returned.batch_size)
        clock = self.clock_of(session.device, session.hello.clock)
        return ScreenedContribution(
            *(session.device, dealt, returned.trained, answer.scan, clock), by_program=self.contract is not None
        )

    async def _wait_for_newcomer(self, attempt: RoundAttempt) -> None:
        """Return when there is a session that can be asked in this round.

        Raises:
            DeviceError: no device that can be asked still exists without a session, or patience has ended.
        """
        patience = attempt.patience = attempt.patience or Deadline(self._job.watchdog)
        told = False
        while True:
            newcomer, sessions = self._fleet.newcomer, self._fleet.sessions()
            if attempt.candidates(self.conduct.without_aside(sessions)):
                return
            existing = await asyncio.to_thread(self._list_existing)
            awaited = sorted(device for device in set(existing) - set(sessions) if attempt.may_ask(device))
            if not awaited or patience.expired:
                if all_diverge(attempt.errors):
                    raise diverged(self.on_event, self._job, f"round {attempt.number}", attempt.errors)
                raise attempt.verdict()
            if not told:
                told, waits = True, f"waits up to {patience.left_seconds:.0f} s for {', '.join(awaited)} to dial in"
                self.on_event(HOST, EventKind.NOTE, f"round {attempt.number}: {waits}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(newcomer.wait(), min(_LOOK_SECONDS, patience.left_seconds))

    async def _visit(self, session: DeviceSession, task: RoundTask) -> RoundAnswer | CsdError:
        """Train one round on one device; an error, which is recorded, if the device was lost or its task failed.

        Raises:
            DeviceCodeFailed: the user's code failed, and the run ends.
        """
        try:
            try:
                return await self._train_device(session, task)
            finally:
                if task.meeting is not None:
                    task.meeting.leave(session.device)
        except DeviceFailed as error:  # the session goes on: the next round is another chance
            self.on_event(session.device, EventKind.FAILED, f"in round {task.number}: {error}")
            if isinstance(error, DeviceCodeFailed):
                error.code = "client program" if self.contract and error.code == "model" else error.code
                self._failures.take(error, session.device)
                self._failures.check()
            return error
        except (DeviceLost, ProtocolError) as lost:
            told = self._explained(lost)
            session.close(str(told))
            self.on_event(session.device, EventKind.LOST, f"in round {task.number}: {told}")
            return told

    async def _returned(self, session: DeviceSession, task: RoundTask) -> tuple[dict[str, Array], Trained]:
        """Return what a device returns from a round, in which it may ask for exchanges."""
        expected: ExpectedTensors = tensor_specs(task.weights)
        if (contract := self.contract) is not None:
            expected = partial(contract.expected, weights=task.weights)
        more = None if task.meeting is None else Exchange
        for _ in range(1 + MOST_EXCHANGES):
            arrays, closing = await session.receive_tensors(
                task.number, expected, Trained, Deadline(self._job.watchdog), more
            )
            if isinstance(closing, Exchange) != next(iter(arrays), "").startswith(EXCHANGED):
                raise ProtocolError(f"{session.device}: sent {type(closing).__name__} after tensors of another kind")
            if isinstance(closing, Trained):
                return arrays, closing
            assert task.meeting is not None  # or no exchange had been taken
            if bad := first_not_finite(arrays):
                raise ProtocolError(f"{session.device}: exchanged {bad} with values that are no finite numbers")
            given = {name.removeprefix(EXCHANGED): array for name, array in arrays.items()}
            answer = await task.meeting.meet(session.device, given)
            frames = [Tensors(task.number, tensor_specs(answer)), *cut_slices(task.number, answer), closing]
            for data in pack(encode(frame) for frame in frames):
                await session.send_encoded(data, Deadline(self._job.watchdog))
        raise ProtocolError(f"{session.device}: asked for more than {MOST_EXCHANGES} exchanges in a round")

    def _explained(self, lost: CsdError) -> CsdError:
        """Return the loss of a device that fell silent with the client program that may be why."""
        if self.contract is None or not isinstance(lost, DeviceSilent):
            return lost
        program = f"client {self.contract.code.name!r} has not returned"
        return DeviceLost(f"{lost}: {program}; raise watchdog if it takes that long")

    async def _train_device(self, session: DeviceSession, task: RoundTask) -> RoundAnswer:
        state: Mapping[str, Array] = {}
        if session not in self._prepared:
            state = self.states.get(session.device, {})
            await prepare_device(session, self._frame, Deadline(self._job.watchdog))
        await self._before_task(session, Deadline(self._job.watchdog))
        sent, received, contract = session.sent_bytes, session.received_bytes, self.contract
        for data in task.messages.of(task.instruction, state):
            await session.send_encoded(data, Deadline(self._job.watchdog))
        self._prepared.add(session)
        weights, trained = await self._returned(session, task)
        kept = {name: weights.pop(name) for name in list(weights) if name.startswith(STATE)} if contract else {}
        start = task.weights, task.buffers
        if sum(array.nbytes for array in weights.values()) < _SMALL_BYTES:
            scan = scan_update(weights, *start)
        else:  # beside what other drives still send
            scan = await asyncio.to_thread(scan_update, weights, *start)
        self.states |= {session.device: kept} if contract else {}
        returned = DeviceReport(
            device=session.device,
            hello_clock=session.hello.clock,
            trained=msgspec.structs.replace(trained, metrics=contract.believed(trained.metrics) if contract else {}),
            epochs=task.instruction.epochs(self._job.epochs),
            batch_size=task.instruction.batch_size(self._job.batch_size),
            by_program=contract is not None,
            # The state stays in the drive; that the host has a copy is for runs that are resumed.
            sent_bytes=session.sent_bytes - sent - task.messages.state_bytes(task.instruction, state),
            received_bytes=session.received_bytes - received - encoded_bytes(task.number, kept),
        )
        return RoundAnswer(session, weights, returned, scan)
