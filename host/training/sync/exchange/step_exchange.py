"""One step's exchange with the devices: weights and record numbers out, gradients back."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from csd_emu.util.deadline import Deadline
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import CsdError, DeviceCodeFailed, DeviceFailed, DeviceLost, ProtocolError
from firmware_agent.common.frames.frame_fields import MAX_SLICE_BYTES
from firmware_agent.common.frames.session_frames import Job, Tensors
from firmware_agent.common.frames.step_frames import Reduce, Reduced, SendingSpec, Step, Stepped
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Array, cut_slices, tensor_specs
from firmware_agent.common.wire import AnyFrame, encode, pack
from host.core.evaluation import NormSum
from host.core.failures import Failures
from host.core.records import EventKind, OnEvent
from host.fleet.device_session import DeviceSession
from host.training.round_exchange import prepare_device
from host.training.screening import Screen
from host.training.sync.exchange.activation_exchange import ActivationExchange, ActivationReceiver, part_sizes
from host.training.sync.exchange.batch_norm_sums import Reductions
from host.training.sync.exchange.channel_step import Crossed, check_order
from host.training.sync.exchange.gradient_buffer import GradientBuffer
from host.training.sync.exchange.gradient_receiver import GradientReceiver
from host.training.sync.exchange.overlapped_channel import Channel, OnSlices
from host.training.sync.exchange.watchdog import Pace
from host.training.sync.exchange.weight_release import Release
from host.training.sync.server_model.activation_types import ActivationBatch

Records = npt.NDArray[np.uint32]
FIFO = TransferSettings()
NOTHING = Release(())


BeforeStep = Callable[[DeviceSession, int, Deadline], Awaitable[None]]
"""May speak with a device before its part of this step; raises `DeviceError` if that device is lost."""
Speaks = Callable[[DeviceSession, int], bool]
"""Whether there is something to say to a device before its part of this step."""


@dataclass(frozen=True)
class StepWork:
    """What one device does in a step.

    Attributes:
        session: of the device.
        records: indices into its shard.
        micro_batch: at most so many of them at a time.
    """

    session: DeviceSession
    records: Records
    micro_batch: int

    @property
    def parts(self) -> tuple[int, ...]:
        """How many records it computes at a time, one part after the other."""
        return part_sizes(len(self.records), self.micro_batch)


@dataclass(frozen=True)
class DeviceOutcome:
    """What came of one device's step: its report, or the error that took its place; bytes as they crossed the wire.

    Of these `up_bytes` and `down_bytes` crossed the cut of the model; of overlapping steps without what frames add.
    """

    work: StepWork
    stepped: Stepped | None
    error: CsdError | None
    sent_bytes: int = 0
    received_bytes: int = 0
    up_bytes: int = 0
    down_bytes: int = 0

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.work.session.device


@dataclass(frozen=True)
class Outbound:
    """What goes out for a step.

    Attributes:
        number: of the step, from 1.
        weights: parameters and buffers that the gradients are taken at; of overlapping steps, as they will be.
        order: their names in the order of first use in the forward pass; a tied parameter may be left out.
        sending: how they, and the gradients, are sent.
        release: of overlapping steps: which of the tensors that are stepped are there.
    """

    number: int
    weights: Mapping[str, Array]
    order: Sequence[str] = ()
    sending: TransferSettings = FIFO
    release: Release = NOTHING

    @property
    def spec(self) -> SendingSpec | None:
        """The settings as the devices get them; None for what was before there were any."""
        sending = self.sending
        if sending.schedule == "fifo":
            return None
        return SendingSpec(sending.schedule, sending.slice_bytes, sending.credit_bytes)

    def frames(self) -> list[bytes]:
        """Return the messages of all weights at once, in the order and the slices of the settings."""
        weights, slice_bytes = self.weights, MAX_SLICE_BYTES
        if self.sending.schedule == "priority":
            slice_bytes = min(MAX_SLICE_BYTES, self.sending.slice_bytes or MAX_SLICE_BYTES)
            first = {name: weights[name] for name in self.order}
            weights = first | dict(weights)
        pieces = cut_slices(self.number, weights, slice_bytes)
        return list(pack(encode(frame) for frame in (Tensors(self.number, tensor_specs(self.weights)), *pieces)))


class StepExchange:
    """Exchanges weights and gradients with devices, step by step; one instance per run."""

    def __init__(
        self,
        frame: Job,
        watchdog_seconds: float,
        on_event: OnEvent,
        before_step: BeforeStep,
        speaks: Speaks = lambda _, __: False,
        on_slices: OnSlices = lambda _: None,
        failures: Failures | None = None,
        sums: Sequence[NormSum] = (),
    ) -> None:
        """Prepare; nothing is sent yet. With `frame.overlap` slices cross while the devices compute.

        Args:
            frame: the job as devices get it.
            watchdog_seconds: wall time after which a silent device counts as dead.
            on_event: called with device, what happened, and more about it.
            before_step: called for each device before a step's frames go to it.
            on_slices: is told, after each device's overlapping step, what became of its slices.
            speaks: whether `before_step` would: a device must then be through with the step before.
            failures: is told when the user's code fails in a device.
            sums: that a step has, with batch normalisation over all devices; none otherwise.
        """
        self._frame, self._watchdog_seconds = frame, watchdog_seconds
        self._on_event, self._before_step = on_event, before_step
        self._speaks, self._on_slices = speaks, on_slices
        self._failures, self._sums = failures or Failures(goes_on=True), tuple(sums)
        self._channels: weakref.WeakKeyDictionary[DeviceSession, Channel] = weakref.WeakKeyDictionary()
        self._prepared: weakref.WeakSet[DeviceSession] = weakref.WeakSet()
        self._spare: weakref.WeakKeyDictionary[DeviceSession, dict[str, Array]] = weakref.WeakKeyDictionary()
        # Bytes that had crossed, each way, at a device's last report; and sessions whose loss was told.
        self._counted: weakref.WeakKeyDictionary[DeviceSession, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._gone: weakref.WeakSet[DeviceSession] = weakref.WeakSet()
        self._turns: weakref.WeakKeyDictionary[DeviceSession, asyncio.Lock] = weakref.WeakKeyDictionary()

    async def visit(
        self,
        outbound: Outbound,
        works: Sequence[StepWork],
        gathering: GradientBuffer,
        probes: Sequence[StepWork] = (),
        crossings: ActivationExchange | None = None,
        screen: Screen | None = None,
    ) -> list[DeviceOutcome]:
        """Have all devices compute their part of a step; their gradients come together in `gathering`.

        Args:
            outbound: what they are sent.
            works: one per device that takes part, in participant order.
            gathering: of this step, for these devices.
            probes: of further devices, whose gradients are dropped.
            crossings: of this step, for the devices of `works`, if the model is cut.
            screen: judges what devices add up; None for a new one.

        Returns:
            What came of each work, then of each probe, in order; `gathering` knows of a device that was lost or failed.
        """
        frames = [] if self._frame.overlap else outbound.frames()
        records = {work.session.device: len(work.records) for work in works}
        reductions = Reductions(records, self._sums, screen, gathering.screen.refused)
        tasks = [self._visit(outbound, frames, work, gathering, reductions, crossings) for work in works]
        for work in probes:
            device = work.session.device
            alone = GradientBuffer(gathering.specs, {device: len(work.records)}, lambda *_: None, barrier=True)
            own = None if crossings is None else crossings.alone(device, work.parts)
            sums = Reductions({device: len(work.records)}, self._sums)
            tasks.append(self._visit(outbound, frames, work, alone, sums, own))
        outcomes = list(await asyncio.gather(*tasks))
        if crossings is not None and crossings.failure is not None:
            self._failures.take(crossings.failure, HOST, outbound.number)
        return outcomes

    def resend(self, step: int, sending: TransferSettings) -> None:
        """Send by other settings what of an overlapping step has not left yet, weights and gradients."""
        for channel in self._channels.values():
            channel.resend(step, sending)

    async def _visit(
        self,
        outbound: Outbound,
        frames: Sequence[bytes],
        work: StepWork,
        gathering: GradientBuffer,
        reductions: Reductions,
        crossings: ActivationExchange | None,
    ) -> DeviceOutcome:
        session, number = work.session, outbound.number
        try:
            return await self._step_device(outbound, frames, work, gathering, reductions, crossings)
        except DeviceFailed as error:  # the session goes on: the next step is another chance
            if crossings is None or session.device not in crossings.refused:  # of that the event tells
                self._on_event(session.device, EventKind.FAILED, f"in step {number}: {error}")
            if isinstance(error, DeviceCodeFailed):
                self._failures.take(error, session.device, number)
            failure: CsdError = error
        except (DeviceLost, ProtocolError) as error:
            session.close(str(error))
            if session not in self._gone:  # it may be lost in two steps at once
                self._gone.add(session)
                self._on_event(session.device, EventKind.LOST, f"in step {number}: {error}")
            failure = error
        reductions.leave(session.device)
        if crossings is not None:
            crossings.leave(session.device)
        gathering.lose(session.device)
        return DeviceOutcome(work, None, failure)

    async def _step_device(
        self,
        outbound: Outbound,
        frames: Sequence[bytes],
        work: StepWork,
        gathering: GradientBuffer,
        reductions: Reductions,
        crossings: ActivationExchange | None,
    ) -> DeviceOutcome:
        session, number = work.session, outbound.number
        async with self._turns.setdefault(session, asyncio.Lock()):  # the step before may still be at this place
            channel = await self._make_ready(session, number)
            intake = GradientReceiver(number, session.device, gathering, self._spare.pop(session, None))
            task = Step(number, work.records.astype("<u4").tobytes(), work.micro_batch, outbound.spec)
            before = self._counted.get(session, (session.sent_bytes, session.received_bytes))
            if channel is None and self._frame.overlap:
                channel = self._channels[session] = self._open(session, outbound)
            crossed = None if crossings is None else (crossings, crossings.hand(session.device))
            if channel is not None:
                names = frozenset(spec.name for spec in gathering.specs)
                report = channel.begin(task, outbound.sending, names, outbound.release, intake, reductions, crossed)
        if channel is not None:
            stepped = await report
        else:
            stepped = await self._in_turn(frames, session, task, intake, reductions, crossed)
        outcome = self._whole(work, stepped, intake, before)
        if crossed is None:
            return outcome
        return replace(outcome, up_bytes=crossed[1].up_bytes, down_bytes=crossed[1].down_bytes)

    async def _make_ready(self, session: DeviceSession, number: int) -> Channel | None:
        """Have a device ready for a step, and return the channel that it has already."""
        if session not in self._prepared:
            await prepare_device(session, self._frame, self._deadline())
            self._prepared.add(session)
        channel = self._channels.get(session)
        if channel is not None and channel.busy:
            if not self._speaks(session, number):
                return channel
            await channel.wait_idle()
        await self._before_step(session, number, self._deadline())
        return channel

    def _open(self, session: DeviceSession, outbound: Outbound) -> Channel:
        weights = {name: outbound.weights[name] for name in outbound.weights if name in set(outbound.order)}
        return Channel(session, weights, outbound.order, self._watchdog_seconds, self._on_slices)

    def _whole(
        self, work: StepWork, stepped: Stepped, intake: GradientReceiver, before: tuple[int, int]
    ) -> DeviceOutcome:
        """Return the outcome of a part that is whole; what crossed since the report before counts as of this step."""
        session = work.session
        if intake.spare is not None:
            self._spare[session] = intake.spare
        sent, received = session.sent_bytes, session.received_bytes
        if self._frame.overlap:
            before = self._counted.get(session, before)
            self._counted[session] = sent, received
        return DeviceOutcome(work, stepped, None, sent - before[0], received - before[1])

    async def _in_turn(
        self,
        frames: Sequence[bytes],
        session: DeviceSession,
        task: Step,
        intake: GradientReceiver,
        reductions: Reductions,
        crossed: Crossed | None,
    ) -> Stepped:
        """Send everything, then take what a device sends in a step, up to its report.

        Raises:
            DeviceError: it was lost, or failed, or sends too little that is new.
            ProtocolError: it sent something that does not belong there, such as a tensor that no gradient has.
        """
        mark = session.received_bytes
        for data in frames:
            await session.send_encoded(data, self._deadline())
        await session.send(task, self._deadline())
        pace = Pace(self._watchdog_seconds)
        while True:
            frame = await self._receive(session, pace)
            check_order(session.device, frame, reductions, crossed)
            if isinstance(frame, Reduce) and frame.step == task.step:
                summed = await reductions.add(session.device, frame)
                await session.send(Reduced(task.step, frame.index, summed), self._deadline())
                pace.begin()
            elif crossed is not None and crossed[1].wants(frame):
                if (batch := crossed[1].take(frame)) is not None:
                    before, mark = mark, session.received_bytes  # no more comes before the answer
                    crossed[1].up_bytes += mark - before
                    await self._cross(session, *crossed, batch)
                    pace.begin()
                elif crossed[1].news:
                    pace.moved()
            elif (stepped := intake.take(frame)) is not None:
                return stepped
            elif intake.news:
                pace.moved()

    async def _receive(self, session: DeviceSession, pace: Pace) -> AnyFrame:
        """Return the next frame of a device that keeps pace.

        Raises:
            DeviceError: it does not, was lost, or failed.
        """
        try:
            if pace.left_seconds:
                return await session.receive(Deadline(pace.left_seconds))
        except DeviceLost:
            if pace.left_seconds:
                raise
        session.close(pace.told)
        raise DeviceLost(f"{session.device}: {pace.told}")

    async def _cross(
        self, session: DeviceSession, crossings: ActivationExchange, hand: ActivationReceiver, batch: ActivationBatch
    ) -> None:
        """Have the tail compute a part, and send what goes back; of a tail that failed the device hears, and fails."""
        answer = hand.answer(await crossings.add(hand.part, batch))
        before = session.sent_bytes
        for data in answer.messages():
            await session.send_encoded(data, self._deadline())
        hand.down_bytes += session.sent_bytes - before

    def _deadline(self) -> Deadline:
        return Deadline(self._watchdog_seconds)
