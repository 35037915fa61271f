"""One step's exchange with the devices: weights and record numbers out, gradients back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from csd_emu.util.deadline import Deadline
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import CsdError, DeviceCodeFailed, DeviceFailed, DeviceLost, ProtocolError
from firmware_agent.common.frames.session_frames import Job
from firmware_agent.common.frames.step_frames import Step
from firmware_agent.common.send_queue import TransferSettings
from host.core.failures import Failures
from host.core.records import EventKind, OnEvent
from host.fleet.device_session import DeviceSession
from host.training.round_exchange import prepare_device
from host.training.sync.exchange.channel import Channel, OnSlices
from host.training.sync.exchange.gradient_buffer import GradientBuffer
from host.training.sync.exchange.step_extension import DeviceOutcome, StepExtension, StepWork
from host.training.sync.exchange.weight_sender import Outbound

BeforeStep = Callable[[DeviceSession, int, Deadline], Awaitable[None]]
"""May speak with a device before its part of this step; raises `DeviceError` if that device is lost."""
Speaks = Callable[[DeviceSession, int], bool]
"""Whether there is something to say to a device before its part of this step."""


def count_bytes(counted: int, crossed: int, own: int, ahead: int) -> int:
    """Return the bytes that count as of steps that are over, one way, at a report of overlapping steps.

    Of the step after it activations or their gradients may have crossed by then, or been counted and not yet crossed:
    they are that step's, so that none has fewer bytes than cross its cut. What all steps count as adds up to what
    has crossed.

    Args:
        counted: those of the steps before.
        crossed: all that have crossed.
        own: those of the step at its cut.
        ahead: those of later steps at theirs, as counted so far.
    """
    return max(counted + own, crossed - ahead)


@dataclass
class _SessionState:
    """What is kept of a session from step to step.

    Attributes:
        channel: its steps go through it.
        turn: held by whoever begins a step.
        prepared: whether the device has the job.
        counted_bytes: that count as of steps that are over, each way, if steps overlap.
        told_lost: whether its loss was told: it may be lost in two steps at once.
    """

    channel: Channel
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    prepared: bool = False
    counted_bytes: tuple[int, int] | None = None
    told_lost: bool = False


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
    ) -> None:
        """Prepare; nothing is sent yet. With `frame.overlap` slices cross while the devices compute.

        Args:
            frame: the job as devices get it.
            watchdog_seconds: wall time after which a silent device counts as dead.
            on_event: called with device, what happened, and more about it.
            before_step: called for each device before a step's frames go to it.
            speaks: whether `before_step` would: a device must then be through with the step before.
            on_slices: is told, after each device's overlapping step, what became of its slices.
            failures: is told when the user's code fails in a device.
        """
        self._frame, self._watchdog_seconds = frame, watchdog_seconds
        self._on_event, self._before_step = on_event, before_step
        self._speaks, self._on_slices = speaks, on_slices
        self._failures = failures or Failures(goes_on=True)
        self._sessions: dict[DeviceSession, _SessionState] = {}

    async def visit(
        self,
        outbound: Outbound,
        works: Sequence[StepWork],
        gathering: GradientBuffer,
        probes: Sequence[StepWork] = (),
        extensions: Sequence[StepExtension] = (),
    ) -> list[DeviceOutcome]:
        """Have all devices compute their part of a step; their gradients come together in `gathering`.

        Args:
            outbound: what they are sent.
            works: one per device that takes part, in participant order.
            gathering: of this step, for these devices.
            probes: of further devices, whose gradients are dropped.
            extensions: what else they exchange in this step, for the devices of `works`.

        Returns:
            What came of each work, then of each probe, in order; `gathering` knows of a device that was lost or failed.
        """
        asked = {work.session for work in (*works, *probes)}
        self._sessions = {s: state for s, state in self._sessions.items() if s in asked or not s.closed}
        tasks = [self._visit(outbound, work, gathering, extensions) for work in works]
        for work in probes:
            dropped = GradientBuffer(gathering.specs, {work.device: len(work.records)}, lambda *_: None, barrier=True)
            tasks.append(self._visit(outbound, work, dropped, [each.alone(work) for each in extensions]))
        outcomes = list(await asyncio.gather(*tasks))
        for extension in extensions:
            if extension.failure is not None:
                self._failures.take(extension.failure, HOST, outbound.number)
        return outcomes

    def resend(self, step: int, sending: TransferSettings) -> None:
        """Send by other settings what of an overlapping step has not left yet, weights and gradients."""
        for state in self._sessions.values():
            state.channel.resend(step, sending)

    async def _visit(
        self, outbound: Outbound, work: StepWork, gathering: GradientBuffer, extensions: Sequence[StepExtension]
    ) -> DeviceOutcome:
        session, number = work.session, outbound.number
        if (state := self._sessions.get(session)) is None:
            channel = Channel(session, self._watchdog_seconds, self._frame.overlap, self._on_slices)
            state = self._sessions[session] = _SessionState(channel)
        try:
            return await self._step_device(state, outbound, work, gathering, extensions)
        except DeviceFailed as error:  # the session goes on: the next step is another chance
            if not any(each.refuses(session.device) for each in extensions):  # of that the event tells
                self._on_event(session.device, EventKind.FAILED, f"in step {number}: {error}")
            if isinstance(error, DeviceCodeFailed):
                self._failures.take(error, session.device, number)
            failure: CsdError = error
        except (DeviceLost, ProtocolError) as error:
            session.close(str(error))
            if not state.told_lost:
                state.told_lost = True
                self._on_event(session.device, EventKind.LOST, f"in step {number}: {error}")
            failure = error
        for extension in extensions:
            extension.leave(session.device)
        gathering.lose(session.device)
        return DeviceOutcome(work, None, failure)

    async def _step_device(
        self,
        state: _SessionState,
        outbound: Outbound,
        work: StepWork,
        gathering: GradientBuffer,
        extensions: Sequence[StepExtension],
    ) -> DeviceOutcome:
        session, number = work.session, outbound.number
        async with state.turn:  # the step before may still be at this place
            await self._make_ready(state, session, number)
            task = Step(number, work.named, work.micro_batch, outbound.spec, timed=work.timed)
            before = session.sent_bytes, session.received_bytes
            opened = [extension.open(session.device) for extension in extensions]
            step = state.channel.begin(outbound, task, gathering, opened)
        report = await step.report
        sent, received = session.sent_bytes, session.received_bytes
        if self._frame.overlap:  # what has crossed since the report before counts as of this step
            before = state.counted_bytes or before
            down_bytes, up_bytes = state.channel.outstanding_bytes
            sent = count_bytes(before[0], sent, step.down_bytes, down_bytes)
            received = count_bytes(before[1], received, step.up_bytes, up_bytes)
            state.counted_bytes = sent, received
        crossed = sent - before[0], received - before[1], step.up_bytes, step.down_bytes
        return DeviceOutcome(work, report, None, *crossed)

    async def _make_ready(self, state: _SessionState, session: DeviceSession, number: int) -> None:
        """Have a device ready for a step."""
        if not state.prepared:
            await prepare_device(session, self._frame, Deadline(self._watchdog_seconds))
            state.prepared = True
        if state.channel.busy and not self._speaks(session, number):
            return
        await state.channel.wait_idle()
        await self._before_step(session, number, Deadline(self._watchdog_seconds))
