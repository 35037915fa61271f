"""One device's stream while its steps overlap: slices leave by a send queue, and come in beside them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import CsdError, DeviceFailed, DeviceLost, ProtocolError
from firmware_agent.common.frames.frame_fields import MAX_SLICE_BYTES
from firmware_agent.common.frames.session_frames import Received, Slice, Tensors
from firmware_agent.common.frames.step_frames import Reduce, Reduced, Resend, SendingSpec, Step, Stepped, Timed
from firmware_agent.common.send_queue import Piece, SendQueue, TransferSettings
from firmware_agent.common.slices import Array, make_slice, tensor_specs
from firmware_agent.common.split.activations import CROSSING_ORDER, crossing_name, named_piece
from firmware_agent.common.wire import AnyFrame, encode, join
from host.fleet.device_session import DeviceSession
from host.training.sync.exchange.activation_exchange import ActivationExchange, ActivationReceiver
from host.training.sync.exchange.batch_norm_sums import Reductions
from host.training.sync.exchange.channel_step import ChannelStep, Crossed, check_order, settle
from host.training.sync.exchange.gradient_receiver import GradientReceiver
from host.training.sync.exchange.slice_log import SliceLog
from host.training.sync.exchange.watchdog import Pace
from host.training.sync.exchange.weight_release import Cells, Release
from host.training.sync.server_model.activation_types import ActivationBatch
from host.training.tensor_ranges import TensorRange

OnSlices = Callable[[SliceLog], None]


class Channel:
    """Speaks with one device as long as a step of it is outstanding; otherwise its session is anyone's.

    The weights' memory is read when a slice leaves, not when it is offered. Nothing is stepped meanwhile: for that the
    host needs this device's gradient, which comes after it has the weights, or its loss, after which nothing leaves.
    """

    def __init__(
        self,
        session: DeviceSession,
        weights: Mapping[str, Array],
        order: Sequence[str],
        watchdog_seconds: float,
        on_slices: OnSlices = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            session: of the device.
            weights: what it is sent in each step; their memory stays, their values change.
            order: their names in the order of first use in the forward pass.
            watchdog_seconds: for so long it may be silent, or acknowledge nothing.
            on_slices: is told, after each step, what became of its slices.
            now: returns monotonic seconds.
        """
        self._on_slices = on_slices
        self._session, self._watchdog_seconds, self._now = session, watchdog_seconds, now
        self._specs = tensor_specs(weights)
        self._flat = {name: array.reshape(-1).view(np.uint8) for name, array in weights.items()}
        self._order = {name: place for place, name in enumerate(order)}
        self._crossing: dict[tuple[int, str], npt.NDArray[np.uint8]] = {}
        self._queue = SendQueue(TransferSettings())
        self._offered_exchange = 0
        # The last step whose settings changed after it was announced, and these.
        self._resent: tuple[int, TransferSettings] = 0, TransferSettings()
        self._parts: dict[int, ChannelStep] = {}
        self._messages: deque[bytes] = deque()
        self._read_bytes: dict[int, int] = {}
        self._frames: Iterator[bytes] = iter(())
        self._wake, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._progress = now()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._guard: asyncio.Task[None] | None = None
        self._pace = Pace(watchdog_seconds, now)

    @property
    def busy(self) -> bool:
        """Whether a step is outstanding."""
        return bool(self._parts)

    async def wait_idle(self) -> None:
        """Wait until no step is outstanding."""
        await self._idle.wait()

    def begin(
        self,
        task: Step,
        sending: TransferSettings,
        stepped: frozenset[str],
        release: Release,
        intake: GradientReceiver,
        sums: Reductions,
        crossed: Crossed | None = None,
    ) -> asyncio.Future[Stepped]:
        """Have the device take a step; a step before it may still be outstanding.

        Args:
            task: the step.
            sending: how its weights are sent.
            stepped: names of the weights that `release` tells of.
            release: tells which of them are there.
            intake: takes what comes back.
            sums: of batch normalisation in this step.
            crossed: takes what crosses the cut in this step; None if the model is whole.

        Returns:
            What the device will report; or a `DeviceError` if it is lost or fails, a `ProtocolError` if it sends what
            does not belong there.
        """
        part = ChannelStep(
            task.step, intake, sums, sending, asyncio.get_running_loop().create_future(), crossed=crossed
        )
        part.slices = SliceLog(task.step, self._session.device, self._now)
        part.constants = [name for name in self._order if name not in stepped]
        part.held_bytes = sum(len(self._flat[name]) for name in stepped)
        self._post(encode(Tensors(task.step, self._specs)), encode(task))
        if not self._parts:
            self._offer_constants(part)
        self._parts[task.step] = part
        if self._resent[0] == task.step:
            self.resend(*self._resent)
        self._idle.clear()
        release.subscribe(functools.partial(self._released, part))
        self._run()
        return part.report

    def resend(self, step: int, sending: TransferSettings) -> None:
        """Send by other settings what of a step has not left yet, on both sides; also if it begins only later."""
        self._resent = step, sending
        if (part := self._parts.get(step)) is None:
            return
        part.sending = sending
        if self._offered_exchange == step:
            self._queue.change(sending)
        self._post(encode(Resend(step, SendingSpec(sending.schedule, sending.slice_bytes, sending.credit_bytes))))

    def _released(self, part: ChannelStep, block: TensorRange) -> None:
        if part.report.done():
            return
        part.held_bytes -= block.end - block.start
        self._pace.moved()
        cells = part.cells.get(block.tensor)
        if cells is None:
            size = len(self._flat[block.tensor])
            cells = part.cells[block.tensor] = Cells(size, part.sending.slice_bytes)
        if (ready := cells.add(block.start, block.end)) is not None:
            self._offer(part, block.tensor, *ready)

    def _offer_constants(self, part: ChannelStep) -> None:
        names, part.constants = part.constants, []
        for name in names:
            self._offer(part, name, 0, len(self._flat[name]))

    def _offer(self, part: ChannelStep, tensor: str, start: int, end: int) -> None:
        self._offer_ranked(part, self._order[tensor], tensor, start, end)

    def _offer_ranked(self, part: ChannelStep, order: int, tensor: str, start: int, end: int) -> None:
        if part.number > self._offered_exchange:  # all of the step before has left
            self._offered_exchange = part.number
            self._queue.change(part.sending)
        self._queue.offer(part.number, order, tensor, start, end)
        part.slices.offer(named_piece(Piece(part.number, order, start, end - start, tensor)).tensor, start, end)
        self._wake.set()

    def _post(self, *messages: bytes) -> None:
        self._messages.extend(messages)
        self._wake.set()

    def _run(self) -> None:
        if self._reader is None or self._reader.done():
            self._reader = asyncio.ensure_future(self._read())
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._write())
        if self._guard is None or self._guard.done():
            self._pace.begin()
            self._guard = asyncio.ensure_future(self._watch())

    async def _read(self) -> None:
        try:
            while self._parts:
                try:
                    self._take(await self._session.receive(None))
                except DeviceFailed as error:
                    self._end(next(iter(self._parts.values())), error)
        except CsdError as error:
            self._fail(error)

    async def _watch(self) -> None:
        """Give the device up if it owes something and for too long sends nothing new, or not enough.

        It owes nothing while its weights wait for another device's gradient, or what it handed over for another's: then
        it is not the one to be given up.
        """
        while self._parts:
            part = next(iter(self._parts.values()))
            if part.held_bytes or part.turning:
                self._pace.begin()
            left_seconds = self._pace.left_seconds
            if left_seconds <= 0:
                self._fail(DeviceLost(f"{self._session.device}: {self._pace.told}"))
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), min(left_seconds, self._watchdog_seconds / 4))

    def _take(self, frame: AnyFrame) -> None:
        if self._is_news(frame):
            self._pace.moved()

    def _is_news(self, frame: AnyFrame) -> bool:
        """Take a frame, and return whether it brought anything that was not there."""
        part = next(iter(self._parts.values()))
        if isinstance(frame, Received):
            self._queue.acknowledge(frame.size_bytes)
            for each in self._parts.values():
                if each.number == frame.exchange:
                    each.slices.acknowledge(frame.size_bytes)
            self._progress = self._now()
            self._wake.set()
        elif isinstance(frame, Reduce) and frame.step in self._parts:
            summing = self._parts[frame.step]
            check_order(self._session.device, frame, summing.reductions, summing.crossed)
            summing.turning = True
            self._start(self._reduce(summing, frame))
        elif isinstance(frame, Timed):
            part.slices.take(frame)
            return False
        elif part.crossed is not None and part.crossed[1].wants(frame):
            check_order(self._session.device, frame, part.reductions, part.crossed)
            self._take_crossing(part, *part.crossed, frame)
            return part.crossed[1].news
        else:
            check_order(self._session.device, frame, part.reductions, part.crossed)
            report = part.intake.take(frame)
            if isinstance(frame, Tensors):
                part.slices.names = [spec.name for spec in frame.specs]
            if isinstance(frame, Slice):
                part.slices.arrive(frame.tensor, frame)
                self._note_read(frame)
            if report is not None:
                self._end(part, report)
            return part.intake.news
        return True

    def _note_read(self, frame: Slice) -> None:
        self._read_bytes[frame.exchange] = self._read_bytes.get(frame.exchange, 0) + len(frame.data)
        self._wake.set()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_crossing(
        self, part: ChannelStep, crossings: ActivationExchange, hand: ActivationReceiver, frame: AnyFrame
    ) -> None:
        batch = hand.take(frame)
        if isinstance(frame, Slice):
            part.slices.arrive(crossing_name(frame.tensor), frame)
            hand.up_bytes += len(frame.data)
            self._note_read(frame)
        else:
            part.slices.crossing = list(map(crossing_name, hand.names))
        if batch is not None:
            part.turning = True
            self._start(self._cross(part, crossings, hand, batch))

    async def _cross(
        self, part: ChannelStep, crossings: ActivationExchange, hand: ActivationReceiver, batch: ActivationBatch
    ) -> None:
        """Send the host's answer to what has crossed, ahead of all weights."""
        answer = hand.answer(await crossings.add(hand.part, batch))
        if part.report.done():  # the device waits no longer
            return
        part.turning = False
        self._pace.begin()
        self._post(encode(answer.announced))
        for name, array in answer.arrays.items():
            little = np.ascontiguousarray(array, dtype=np.dtype(array.dtype).newbyteorder("<"))
            data = self._crossing[part.number, name] = little.reshape(-1).view(np.uint8)
            hand.down_bytes += len(data)
            self._offer_ranked(part, CROSSING_ORDER, name, 0, len(data))

    async def _reduce(self, part: ChannelStep, frame: Reduce) -> None:
        try:
            summed = await part.reductions.add(self._session.device, frame)
        except ProtocolError as error:
            self._fail(error)
        else:
            part.turning = False
            self._pace.begin()
            self._post(encode(Reduced(part.number, frame.index, summed)))

    def _end(self, part: ChannelStep, outcome: Stepped | CsdError) -> None:
        """Report a step, and send what only this device's report was missing for."""
        del self._parts[part.number]
        self._pace.begin()
        if isinstance(outcome, Stepped):
            self._on_slices(part.slices)
        settle(part, outcome)
        for following in self._parts.values():
            self._offer_constants(following)
        if not self._parts:
            self._idle.set()
        self._wake.set()

    def _fail(self, error: CsdError) -> None:
        """End the session and all steps; a step that is announced ahead has the same error."""
        self._session.close(str(error))
        parts, self._parts = list(self._parts.values()), {}
        for part in parts:
            settle(part, error)
        self._idle.set()
        for task in (self._writer, self._reader, self._guard, *self._tasks):
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    async def _write(self) -> None:
        try:
            while messages := await self._next_messages():
                for message in messages:
                    await self._session.send_encoded(message, Deadline(self._watchdog_seconds))
        except CsdError as error:
            self._fail(error)

    async def _next_messages(self) -> list[bytes]:
        """Return what leaves next, small frames that wait together; nothing if there will be nothing more.

        Raises:
            DeviceLost: slices wait, and the device has acknowledged nothing for too long.
        """
        while True:
            self._wake.clear()
            if (first := self._take_frame()) is not None:
                return join(first, self._take_frame)
            if not self._parts:
                return []
            await self._wait()

    def _take_frame(self) -> bytes | None:
        """Return what leaves next, in the order of `firmware_agent.outbox.Outbox`, if anything can leave now."""
        if self._messages:
            return self._messages.popleft()
        if self._read_bytes:
            exchange = min(self._read_bytes)
            return encode(Received(exchange, self._read_bytes.pop(exchange)))
        while (frame := next(self._frames, None)) is None:
            if (piece := self._queue.next()) is None:
                return None
            self._progress, self._frames = self._now(), self._encoded(piece)
            if (part := self._parts.get(piece.exchange)) is not None:
                part.slices.leave(named_piece(piece))
        return frame

    async def _wait(self) -> None:
        left_seconds = None
        if self._queue.queued_bytes:
            left_seconds = self._progress + self._watchdog_seconds - self._now()
        try:
            async with asyncio.timeout(left_seconds):
                await self._wake.wait()
        except TimeoutError:
            raise DeviceLost(
                f"{self._session.device}: has acknowledged none of {self._queue.in_flight_bytes} bytes under way for "
                f"{self._watchdog_seconds:g} s"
            ) from None

    def _encoded(self, piece: Piece) -> Iterator[bytes]:
        key, crosses = (piece.exchange, piece.tensor), piece.order == CROSSING_ORDER
        data, end = self._crossing[key] if crosses else self._flat[piece.tensor], piece.offset + piece.size_bytes
        for start in range(piece.offset, end, MAX_SLICE_BYTES):
            view = data[start : min(end, start + MAX_SLICE_BYTES)].data
            yield encode(make_slice(piece.exchange, piece.tensor, start, view))
        if crosses and end == len(data):
            del self._crossing[key]
