"""One device's stream while steps of it are outstanding: a step's frames, both ways, go through its channel.

Of the slices of gradients it is only told: the session has them taken straight to their tensors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import CsdError, DeviceFailed, DeviceLost, ProtocolError
from firmware_agent.common.frames.session_frames import Slice, Tensors
from firmware_agent.common.frames.step_frames import Step, Stepped
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Array, Assembler
from firmware_agent.common.split.activations import crossing_name
from firmware_agent.common.wire import AnyFrame
from host.fleet.device_session import DeviceSession
from host.training.sync.exchange.gradient_buffer import GradientBuffer
from host.training.sync.exchange.slice_log import SliceLog
from host.training.sync.exchange.step_extension import Answer, DeviceExtension, StepStage
from host.training.sync.exchange.watchdog import Pace
from host.training.sync.exchange.weight_sender import Outbound, SliceSender, TensorSender

OnSlices = Callable[[SliceLog], None]
"""Is told, after each device's overlapping step, what became of its slices."""


@dataclass
class ChannelStep:
    """A step that is announced to the device and not reported yet.

    Attributes:
        number: its own.
        gathering: where all devices' gradients come together.
        spare: memory that an earlier step took, to be overwritten.
        extensions: take what else comes.
        log: of its slices.
        only_timed: whether nothing comes but the report.
        report: what the device will report; or a `DeviceError` if it is lost or fails, a `ProtocolError` if it sends
            what does not belong there.
        assembler: where the device's gradients come together, once they are announced.
        hands_over: whether the device is about to hand over an extension's tensors: all slices are of these.
        waits: whether the device waits for what the host makes of what it has sent.
        up_bytes, down_bytes: that extensions' tensors count as so far.
    """

    number: int
    gathering: GradientBuffer
    spare: dict[str, Array] | None
    extensions: Sequence[DeviceExtension]
    log: SliceLog
    only_timed: bool = False
    report: asyncio.Future[Stepped] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    assembler: Assembler | None = None
    hands_over: bool = False
    waits: bool = False
    up_bytes: int = 0
    down_bytes: int = 0

    def check_order(self, device: str, stage: StepStage) -> None:
        """Raise if a frame of a stage comes before something that all others would wait for in vain.

        Raises:
            ProtocolError: a drive reports a step of which it owes something to an extension, or sends what extensions
                want out of its order.
        """
        for extension in self.extensions:
            if owed := extension.owed(stage):
                raise ProtocolError(f"{device} {owed}")

    def settle(self, outcome: Stepped | CsdError) -> None:
        """Report the step once: the device's own report, or the error that takes its place."""
        if self.report.done():
            return
        if isinstance(outcome, CsdError):
            self.report.set_exception(outcome)
        else:
            self.report.set_result(outcome)


class Channel:
    """Speaks with one device as long as a step of it is outstanding; otherwise its session is anyone's.

    Steps in turn are the simplest setting: their weights are sent whole, and none begins before the last one reported.
    """

    def __init__(
        self,
        session: DeviceSession,
        watchdog_seconds: float,
        overlap: bool,
        on_slices: OnSlices = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            session: of the device.
            watchdog_seconds: for so long it may be silent, or acknowledge nothing.
            overlap: whether slices cross while it computes, and the next step is announced before it reports.
            on_slices: is told, after each step of which they do, what became of its slices.
            now: returns monotonic seconds.
        """
        self._session, self._on_slices, self._now = session, on_slices, now
        self._pace = Pace(watchdog_seconds, now)
        self._sender: TensorSender | SliceSender = TensorSender(session, self._pace)
        if overlap:
            self._sender = SliceSender(self._pace, Pace(watchdog_seconds, now), self._wake)
        self._steps: dict[int, ChannelStep] = {}
        # Memory of the gradients of a step that is over.
        self._spare: dict[str, Array] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether a step is outstanding."""
        return bool(self._steps)

    @property
    def outstanding_bytes(self) -> tuple[int, int]:
        """What extensions' tensors of the outstanding steps count as so far: to the device, from it."""
        steps = self._steps.values()
        return sum(step.down_bytes for step in steps), sum(step.up_bytes for step in steps)

    async def wait_idle(self) -> None:
        """Wait until no step is outstanding."""
        while self._steps:
            await asyncio.wait([step.report for step in self._steps.values()])

    def begin(
        self,
        outbound: Outbound,
        task: Step,
        gathering: GradientBuffer,
        extensions: Sequence[DeviceExtension] = (),
    ) -> ChannelStep:
        """Have the device take a step; with overlap a step before it may still be outstanding.

        Args:
            outbound: its weights.
            task: the step.
            gathering: takes the gradients that come back; the release of `outbound` tells of the same tensors.
            extensions: take what else comes back.
        """
        log = SliceLog(task.step, self._session.device, self._now)
        step = ChannelStep(task.step, gathering, self._spare, extensions, log, task.timed is not None)
        self._spare = None
        idle, self._steps[task.step] = not self._steps, step
        self._sender.begin(outbound, task, {spec.name for spec in gathering.specs}, log)
        self._wake()
        if self._reader is None or self._reader.done():
            self._reader = asyncio.ensure_future(self._read())
        if idle:
            self._pace.begin()
            self._look()
        return step

    def resend(self, step: int, sending: TransferSettings) -> None:
        """Send by other settings what of a step has not left yet, on both sides; also if it begins only later."""
        self._sender.resend(step, sending)

    @property
    def _writing(self) -> bool:
        return self._writer is not None and not self._writer.done()

    def _wake(self) -> None:
        """Send what can leave, as long as anything can."""
        if not self._writing and not self._session.closed:
            self._writer = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        try:
            while messages := self._sender.next_messages():
                for message in messages:
                    await self._session.send_encoded(message, Deadline(self._pace.watchdog_seconds))
        except CsdError as error:
            self._fail(error)

    async def _read(self) -> None:
        try:
            while self._steps:
                try:
                    if self._take(await self._session.receive(None)):
                        self._pace.moved()
                except DeviceFailed as error:
                    self._end(next(iter(self._steps.values())), error)
        except CsdError as error:
            self._fail(error)

    def _look(self) -> None:
        """Give the device up if it owes something and for too long sends nothing new, or not enough; look again later.

        It owes nothing while its weights wait for another device's gradient, or have not left, or what it has sent
        waits for another's: then it is not the one to be given up.
        """
        if not self._steps:
            return
        step = next(iter(self._steps.values()))
        if self._sender.holds(step.number) or step.waits:
            self._pace.begin()
        stalled = not self._writing and not self._sender.left_seconds
        if stalled or not self._pace.left_seconds:
            told = self._sender.told if stalled else self._pace.told
            self._fail(DeviceLost(f"{self._session.device}: {told}"))
            return
        seconds = min(self._pace.left_seconds, self._sender.left_seconds or 1.0, self._pace.watchdog_seconds / 4)
        self._watch = asyncio.get_running_loop().call_later(seconds, self._look)

    def _take(self, frame: AnyFrame) -> bool:
        """Take a frame, and return whether it brought anything that was not there."""
        if (news := self._sender.take(frame)) is not None:
            return news
        for step in self._steps.values():
            for extension in step.extensions:
                if (stage := extension.stage(frame)) is not None:
                    step.check_order(self._session.device, stage)
                    return self._take_extension(step, extension, frame)
        self._take_gradient(next(iter(self._steps.values())), frame)
        return True

    def _take_gradient(self, step: ChannelStep, frame: AnyFrame) -> None:
        """Take what announces the device's gradients, or its report, with which its part is whole.

        Raises:
            ProtocolError: the frame does not belong there.
        """
        device, assembler = self._session.device, step.assembler
        if isinstance(frame, Stepped):
            step.check_order(device, StepStage.REPORT)
        if isinstance(frame, Tensors) and assembler is None and not step.only_timed:
            step.assembler = Assembler(step.number, frame.specs, step.gathering.specs, step.spare)
            step.gathering.open(device, step.assembler)
            step.log.names = [spec.name for spec in frame.specs]
            self._collect()
        elif isinstance(frame, Stepped) and frame.step == step.number and (assembler is not None or step.only_timed):
            self._spare = None if assembler is None else assembler.arrays()
            self._end(step, frame)
        else:
            raise ProtocolError(f"{device} sent {type(frame).__name__}, which has no place in step {step.number}")

    def _collect(self) -> None:
        """Have the session collect the gradients of the first step, if they are announced and no slice is another's."""
        steps = [*self._steps.values()]
        gradients = steps and not any(step.hands_over for step in steps)
        self._session.collect(steps[0].assembler if gradients else None, self._arrived)

    def _arrived(self, tensor: str, start: int, end: int, news: bool) -> None:
        """Note that a slice of the first step's gradients has come."""
        step = next(iter(self._steps.values()))
        if news:
            step.gathering.arrived(self._session.device, tensor, start, end)
            self._pace.moved()
        self._sender.arrived(step.log, tensor, start, end)

    def _take_extension(self, step: ChannelStep, extension: DeviceExtension, frame: AnyFrame) -> bool:
        answer = extension.take(frame)
        if isinstance(frame, Slice):
            self._sender.arrived(step.log, crossing_name(frame.tensor), frame.offset, frame.offset + len(frame.data))
        elif extension.tensors:
            step.log.crossing = list(map(crossing_name, extension.tensors))
            step.hands_over = True
            self._collect()
        if extension.tensors:
            step.up_bytes += self._sender.crossed_bytes(frame, last=answer is not None)
        if answer is not None:
            step.waits = True
            task = asyncio.ensure_future(self._answer(step, extension, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return extension.news

    async def _answer(self, step: ChannelStep, extension: DeviceExtension, answer: Answer) -> None:
        """Send the host's answer, ahead of all weights."""
        try:
            reply = await answer()
        except ProtocolError as error:
            self._fail(error)
            return
        if step.report.done():  # the device waits no longer
            return
        step.waits, step.hands_over = False, step.hands_over and not extension.tensors
        self._collect()
        self._pace.begin()
        sent_bytes = self._sender.reply(step.number, reply)
        step.down_bytes += sent_bytes if extension.tensors else 0
        self._wake()

    def _end(self, step: ChannelStep, outcome: Stepped | CsdError) -> None:
        """Report a step."""
        del self._steps[step.number]
        self._collect()
        self._pace.begin()
        log = self._sender.end(step.number)
        if log is not None and isinstance(outcome, Stepped):
            self._on_slices(log)
        step.settle(outcome)
        if not self._steps and self._watch is not None:
            self._watch.cancel()

    def _fail(self, error: CsdError) -> None:
        """End the session and all steps; a step that is announced ahead has the same error."""
        self._session.close(str(error))
        steps, self._steps = list(self._steps.values()), {}
        self._collect()
        for step in steps:
            step.settle(error)
        if self._watch is not None:
            self._watch.cancel()
        for task in (self._writer, self._reader, *self._tasks):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
