"""What a host sends one device of its steps: whole tensors ahead of the step, or slices as they become ready."""

from __future__ import annotations

import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from firmware_agent.common.frames.frame_fields import MAX_SLICE_BYTES
from firmware_agent.common.frames.session_frames import Received, Slice, Tensors
from firmware_agent.common.frames.step_frames import Resend, SendingSpec, Step, Timed
from firmware_agent.common.send_queue import Piece, SendQueue, TransferSettings
from firmware_agent.common.slices import Array, cut_slices, make_slice, spec_bytes, tensor_specs
from firmware_agent.common.split.activations import CROSSING_ORDER, named_piece
from firmware_agent.common.wire import AnyFrame, encode, join, pack
from host.fleet.device_session import DeviceSession
from host.training.host_optimiser import TrainedModel
from host.training.sync.exchange.slice_log import SliceLog
from host.training.sync.exchange.step_extension import Reply
from host.training.sync.exchange.watchdog import Pace
from host.training.sync.server_model.server_model import ServerModel
from host.training.tensor_ranges import Cells, Release, TensorRange, cut_blocks

FIFO = TransferSettings()
NOTHING = Release(())


class SentWeights:
    """The tensors that go out in each step: their memory stays, their values change.

    Attributes:
        arrays: parameters and buffers by name.
        places: name -> place in the order of first use in the forward pass; a tied parameter may be left out.
        specs, flat: of those in `places`: what announces them, and their bytes.
    """

    def __init__(self, arrays: Mapping[str, Array], order: Sequence[str] = ()) -> None:
        """Take tensors, and the names of those whose order is known, in it."""
        self.arrays, self.places = arrays, {name: place for place, name in enumerate(order)}
        ordered = {name: array for name, array in arrays.items() if name in self.places}
        self.specs = tensor_specs(ordered)
        self.flat = {name: array.reshape(-1).view(np.uint8) for name, array in ordered.items()}


class StepTensors:
    """The tensors of a model that cross in each step.

    Attributes:
        sent: what devices are sent.
        trained: parameters of which they return the gradient.
        buffers: that they return, to be averaged.
        specs: of all that they return.
        gradient_bytes: size of that.
        block_bytes: most of a tensor that is stepped at once; None where the whole gradient is needed first.
        blocks: tensor -> its pieces.
    """

    def __init__(self, model: TrainedModel, batch_norm: str, tail: ServerModel | None, whole: bool = False) -> None:
        """Take a model, of which the devices have all, or what comes before the `tail`.

        Unless `batch_norm` is ``frozen`` devices return buffers. `whole` gradients are needed if the optimiser needs
        them, or so.
        """
        weights, structure = model.weights, model.structure
        self.trained, buffers = structure.trained, structure.buffers
        if tail is not None:
            self.trained, buffers = tail.split.front_trained, tail.split.front_buffers
        self.buffers = buffers if batch_norm != "frozen" else ()
        self.specs = tensor_specs({name: weights[name] for name in (*self.trained, *self.buffers)})
        self.gradient_bytes = sum(map(spec_bytes, self.specs))
        sent = {name: weights[name] for name in (weights if tail is None else tail.split.front)}
        order = structure.order or tuple(name for name in weights if name not in structure.tied)
        self.sent = SentWeights(sent, tuple(name for name in order if name in sent))
        optimiser = model.optimiser
        self.block_bytes = None if whole or optimiser.needs_all is not None else optimiser.block_bytes
        self.blocks = cut_blocks(self.specs, self.block_bytes)

    def release(self) -> Release:
        """Return the release of a step of which nothing is updated yet."""
        return Release(itertools.chain.from_iterable(self.blocks.values()))


@dataclass(frozen=True)
class Outbound:
    """What goes out for a step.

    Attributes:
        number: of the step, from 1.
        weights: what the gradients are taken at; of overlapping steps, as they will be; None: what devices have.
        sending: how they, and the gradients, are sent.
        release: of overlapping steps: which of the tensors that are stepped are there.
    """

    number: int
    weights: SentWeights | None
    sending: TransferSettings = FIFO
    release: Release = NOTHING

    @property
    def spec(self) -> SendingSpec | None:
        """The settings as the devices get them; None for what was before there were any."""
        return None if self.sending.schedule == "fifo" else _spec(self.sending)

    @functools.cached_property
    def messages(self) -> list[bytes]:
        """The messages of all weights at once, in the order and the slices of the settings: the same for all devices.

        A queue that is offered whole tensors at once lets them leave so.
        """
        if self.weights is None:
            return []
        arrays, slice_bytes = self.weights.arrays, MAX_SLICE_BYTES
        if self.sending.schedule == "priority":
            slice_bytes = min(MAX_SLICE_BYTES, self.sending.slice_bytes or MAX_SLICE_BYTES)
            arrays = {name: arrays[name] for name in self.weights.places} | dict(arrays)
        pieces = cut_slices(self.number, arrays, slice_bytes)
        return list(pack(map(encode, (Tensors(self.number, tensor_specs(self.weights.arrays)), *pieces))))


class TensorSender:
    """Sends whole tensors at once, and the step behind them, so that the wire is quiet while the device computes.

    This is the simplest setting of what a channel needs of its sender; `SliceSender` has the others.

    Attributes:
        left_seconds: until a device is given up that does not read what was sent; of use while nothing can leave.
        told: what is said of such a device.
    """

    left_seconds, told = math.inf, ""

    def __init__(self, session: DeviceSession, pace: Pace) -> None:
        """Begin with nothing; `pace` is that of the device, which begins when the step has left."""
        self._session, self._pace = session, pace
        self._messages: deque[bytes] = deque()
        self._held, self._counted_bytes = False, 0

    def begin(self, outbound: Outbound, task: Step, stepped: Collection[str], log: SliceLog) -> None:
        """Begin a step.

        Args:
            outbound: its weights.
            task: the step.
            stepped: names of the weights that the release of `outbound` tells of.
            log: takes down what happens to its slices, if they cross while the device computes.
        """
        self._messages += outbound.messages
        self._messages.append(encode(task))
        self._held, self._counted_bytes = True, self._session.received_bytes

    def reply(self, step: int, reply: Reply) -> int:
        """Send what answers a device; return how many bytes that counts as, here those of all its messages."""
        messages = reply.messages(step)
        self._messages += messages
        return sum(map(len, messages))

    def resend(self, step: int, sending: TransferSettings) -> None:
        """Send by other settings what of a step has not left yet, if anything can have been left."""

    def take(self, frame: AnyFrame) -> bool | None:
        """Take a frame that tells of the transfers, and return whether it is news; None if it tells of something else.

        Raises:
            ProtocolError: it tells of what was not sent.
        """
        return None

    def arrived(self, log: SliceLog, name: str, start: int, end: int) -> None:
        """Note that bytes [start, end) have come of the tensor that has this name beside all others."""

    def crossed_bytes(self, frame: AnyFrame, last: bool) -> int:
        """Return what a frame of an extension counts as; with the `last` one before the device waits, all that came."""
        before = self._counted_bytes
        if last:
            self._counted_bytes = self._session.received_bytes
        return self._counted_bytes - before

    def end(self, step: int) -> SliceLog | None:
        """Note that a step is over, and return its log if slices of it crossed while the device computed."""
        return None

    def next_messages(self) -> list[bytes]:
        """Return what leaves next; nothing if nothing can leave now."""
        if self._messages:
            return [self._messages.popleft()]
        if self._held:
            self._held = False
            self._pace.begin()
        return []

    def holds(self, step: int) -> bool:
        """Whether the device cannot begin a step yet, for weights of it have not left."""
        return self._held


@dataclass
class _QueuedStep:
    """A step that is announced to the device and not reported yet."""

    number: int
    sending: TransferSettings
    log: SliceLog
    # Tensors that no step changes: they wait until the device is through with the step before.
    constants: list[str]
    # Bytes of the others that are not stepped yet.
    held_bytes: int
    cells: dict[str, Cells] = field(default_factory=dict)


class SliceSender:
    """Has slices leave by a send queue as they become ready, while others come in.

    The weights' memory is read when a slice leaves, not when it is offered. Nothing is stepped meanwhile: for that the
    host needs this device's gradient, which comes after it has the weights, or its loss, after which nothing leaves.
    """

    def __init__(self, pace: Pace, progress: Pace, wake: Callable[[], None]) -> None:
        """Begin with nothing.

        Args:
            pace: of the device, which gets something to do with each slice.
            progress: of what the device reads of that.
            wake: is called when something can leave that was not there.
        """
        self._pace, self._progress, self._wake = pace, progress, wake
        self._weights = SentWeights({})
        self._crossing: dict[tuple[int, str], npt.NDArray[np.uint8]] = {}
        self._queue = SendQueue(FIFO)
        self._offered_exchange = 0
        # The last step whose settings changed after it was announced, and these.
        self._resent: tuple[int, TransferSettings] = 0, FIFO
        self._steps: dict[int, _QueuedStep] = {}
        self._messages: deque[bytes] = deque()
        self._read_bytes: dict[int, int] = {}
        self._frames: Iterator[bytes] = iter(())

    def begin(self, outbound: Outbound, task: Step, stepped: Collection[str], log: SliceLog) -> None:
        """Announce a step; one before it may still be outstanding."""
        assert outbound.weights is not None  # such steps are only timed, and do not overlap
        weights = self._weights = outbound.weights
        constants = [name for name in weights.places if name not in stepped]
        held_bytes = sum(len(weights.flat[name]) for name in stepped)
        step = _QueuedStep(task.step, outbound.sending, log, constants, held_bytes)
        self._messages += encode(Tensors(task.step, weights.specs)), encode(task)
        if not self._steps:
            self._offer_constants(step)
        self._steps[task.step] = step
        if self._resent[0] == task.step:
            self.resend(*self._resent)
        outbound.release.subscribe(functools.partial(self._released, step))

    def reply(self, step: int, reply: Reply) -> int:
        """Send an answer; of its tensors the bytes count, without what frames add."""
        self._messages.append(encode(reply.announced))
        crossed_bytes = 0
        for name, array in reply.arrays.items():
            little = np.ascontiguousarray(array, dtype=np.dtype(array.dtype).newbyteorder("<"))
            data = self._crossing[step, name] = little.reshape(-1).view(np.uint8)
            crossed_bytes += len(data)
            self._offer(self._steps[step], CROSSING_ORDER, name, 0, len(data))
        return crossed_bytes

    def resend(self, step: int, sending: TransferSettings) -> None:
        """Send by other settings what of a step has not left yet, on both sides; also if it begins only later."""
        self._resent = step, sending
        if (queued := self._steps.get(step)) is None:
            return
        queued.sending = sending
        if self._offered_exchange == step:
            self._queue.change(sending)
        self._messages.append(encode(Resend(step, _spec(sending))))
        self._wake()

    def take(self, frame: AnyFrame) -> bool | None:
        """Take what the device has read, or what it tells of its own times, which is no news."""
        if isinstance(frame, Received):
            self._queue.acknowledge(frame.size_bytes)
            if (step := self._steps.get(frame.exchange)) is not None:
                step.log.acknowledge(frame.size_bytes)
            self._progress.begin()
            self._wake()
            return True
        if isinstance(frame, Timed):
            next(iter(self._steps.values())).log.take(frame)
            return False
        return None

    def arrived(self, log: SliceLog, name: str, start: int, end: int) -> None:
        """Note a slice, of which the device is told that it has been read."""
        log.arrive(name, end)
        self._read_bytes[log.step] = self._read_bytes.get(log.step, 0) + end - start
        self._wake()

    def crossed_bytes(self, frame: AnyFrame, last: bool) -> int:
        """Return the bytes of a slice; other frames count as nothing."""
        return len(frame.data) if isinstance(frame, Slice) else 0

    def end(self, step: int) -> SliceLog | None:
        """Send what only this device's report was missing for, and return the step's log."""
        log = self._steps.pop(step).log
        for following in self._steps.values():
            self._offer_constants(following)
        return log

    def next_messages(self) -> list[bytes]:
        """Return what leaves next, small frames that wait together."""
        first = self._take_frame()
        return [] if first is None else join(first, self._take_frame)

    def holds(self, step: int) -> bool:
        """Whether weights of a step wait for gradients of the one before."""
        return self._steps[step].held_bytes > 0

    @property
    def left_seconds(self) -> float:
        """Seconds until a device is given up that reads nothing though slices wait."""
        return self._progress.left_seconds if self._queue.queued_bytes else math.inf

    @property
    def told(self) -> str:
        """What is said of such a device."""
        under_way, seconds = self._queue.in_flight_bytes, self._progress.watchdog_seconds
        return f"has acknowledged none of {under_way} bytes under way for {seconds:g} s"

    def _released(self, step: _QueuedStep, block: TensorRange) -> None:
        if step.number not in self._steps:
            return
        step.held_bytes -= block.end - block.start
        self._pace.moved()
        cells = step.cells.get(block.tensor)
        if cells is None:
            cells = step.cells[block.tensor] = Cells(len(self._weights.flat[block.tensor]), step.sending.slice_bytes)
        if (ready := cells.add(block.start, block.end)) is not None:
            self._offer(step, self._weights.places[block.tensor], block.tensor, *ready)

    def _offer_constants(self, step: _QueuedStep) -> None:
        names, step.constants = step.constants, []
        for name in names:
            self._offer(step, self._weights.places[name], name, 0, len(self._weights.flat[name]))

    def _offer(self, step: _QueuedStep, order: int, tensor: str, start: int, end: int) -> None:
        if step.number > self._offered_exchange:  # all of the step before has left
            self._offered_exchange = step.number
            self._queue.change(step.sending)
        self._queue.offer(step.number, order, tensor, start, end)
        step.log.offer(named_piece(Piece(step.number, order, start, end - start, tensor)).tensor, start, end)
        self._wake()

    def _take_frame(self) -> bytes | None:
        """Return what leaves next, in the order of `firmware_agent.host_session.Outbox`, if anything can leave now."""
        if self._messages:
            return self._messages.popleft()
        if self._read_bytes:
            exchange = min(self._read_bytes)
            return encode(Received(exchange, self._read_bytes.pop(exchange)))
        while (frame := next(self._frames, None)) is None:
            if (piece := self._queue.next()) is None:
                return None
            self._progress.begin()
            self._frames = self._encoded(piece)
            if (step := self._steps.get(piece.exchange)) is not None:
                step.log.leave(named_piece(piece))
        return frame

    def _encoded(self, piece: Piece) -> Iterator[bytes]:
        key, crosses = (piece.exchange, piece.tensor), piece.order == CROSSING_ORDER
        data = self._crossing[key] if crosses else self._weights.flat[piece.tensor]
        end = piece.offset + piece.size_bytes
        for start in range(piece.offset, end, MAX_SLICE_BYTES):
            view = data[start : min(end, start + MAX_SLICE_BYTES)].data
            yield encode(make_slice(piece.exchange, piece.tensor, start, view))
        if crosses and end == len(data):
            del self._crossing[key]


def _spec(sending: TransferSettings) -> SendingSpec:
    return SendingSpec(sending.schedule, sending.slice_bytes, sending.credit_bytes)
