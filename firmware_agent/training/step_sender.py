"""What a drive sends of its steps: as each tensor becomes ready, or all of it once the step is computed.

A gradient goes from the model to the stream through this module and `firmware_agent.host_session` alone.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from firmware_agent.clock import Stopwatch
from firmware_agent.common.errors import CsdError, DeviceFailed, ProtocolError
from firmware_agent.common.frames.frame_fields import MAX_SLICE_BYTES, Frame
from firmware_agent.common.frames.session_frames import Slice
from firmware_agent.common.frames.step_frames import SendingSpec
from firmware_agent.common.send_queue import Piece, SendQueue, TransferSettings
from firmware_agent.common.slices import Array, make_slice
from firmware_agent.common.split.activations import named_piece
from firmware_agent.common.wire import encode, pack
from firmware_agent.host_session import HostSession
from firmware_agent.training.gradient_step import GradientWorker
from firmware_agent.training.step_state import StepState
from firmware_agent.training.step_timing import StepTiming

Damage = Callable[[], Callable[[Slice], Slice] | None]
"""Returns what is done to the slice that leaves next, for an experiment; None if it leaves as it is."""


class OfferedTensors:
    """The memory of tensors that wait to be sent; it is given up when the last piece is encoded."""

    def __init__(self, damage: Damage) -> None:
        """Begin with none."""
        self._damage = damage
        self._bytes: dict[tuple[int, str], npt.NDArray[np.uint8]] = {}

    def add(self, piece: Piece, array: Array) -> None:
        """Keep a tensor, of which `piece` is the whole."""
        little = np.ascontiguousarray(array, dtype=np.dtype(array.dtype).newbyteorder("<"))
        if little.nbytes:
            self._bytes[piece.exchange, named_piece(piece).tensor] = little.reshape(-1).view(np.uint8)

    def encode(self, piece: Piece) -> Iterator[bytes]:
        """Yield a piece as frames."""
        key = piece.exchange, named_piece(piece).tensor
        data, end = self._bytes[key], piece.offset + piece.size_bytes
        for start in range(piece.offset, end, MAX_SLICE_BYTES):
            view = data[start : min(end, start + MAX_SLICE_BYTES)].data
            frame, damage = make_slice(piece.exchange, piece.tensor, start, view), self._damage()
            yield encode(frame if damage is None else damage(frame))
        if end == len(data):
            del self._bytes[key]


class HeldSender:
    """Holds what a step sends until it is computed, so that the wire is quiet meanwhile and encoding has its phase."""

    def __init__(self, session: HostSession, stopwatch: Stopwatch, damage: Damage) -> None:
        """Begin with nothing.

        Args:
            session: to the host.
            stopwatch: charges the encoding.
            damage: what is done to slices.
        """
        self._session, self._stopwatch = session, stopwatch
        self._tensors = OfferedTensors(damage)
        self._queue = SendQueue(TransferSettings())
        self._messages: list[bytes] = []

    def begin(self, timing: StepTiming) -> None:
        """Begin a step; of one before it nothing is left."""
        self._queue, self._messages = SendQueue(TransferSettings()), []

    def announce(self, frame: Frame) -> None:
        """Send a frame ahead of the tensors that are offered next."""
        self._messages.append(encode(frame))

    def cross(self, step: int, sending: TransferSettings) -> None:
        """Have what crosses a cut leave next, in one piece whatever the settings."""

    def leave(self, step: int, sending: TransferSettings) -> None:
        """Have the step's gradients leave by these settings; credit has no meaning."""
        slice_bytes = None if sending.slice_bytes is None else min(MAX_SLICE_BYTES, sending.slice_bytes)
        self._queue.change(replace(sending, slice_bytes=slice_bytes, credit_bytes=None))
        self._stopwatch.mark()

    def offer(self, piece: Piece, array: Array) -> None:
        """Add a tensor, of which `piece` is the whole."""
        self._tensors.add(piece, array)
        self._queue.offer(piece.exchange, piece.order, piece.tensor, 0, piece.size_bytes)

    def encode(self) -> None:
        """Encode all that was offered, charged to the phase of that name."""
        while (piece := self._queue.next()) is not None:
            self._messages += self._tensors.encode(piece)
        self._stopwatch.lap("encode")

    def flush(self) -> None:
        """Send all that is encoded."""
        messages, self._messages = self._messages, []
        for message in pack(messages):
            self._session.send_encoded(message)

    def finish(self, report: Frame, names: Sequence[str], crossing: Sequence[str]) -> None:
        """Send a step, and its report behind it."""
        self.announce(report)
        self.flush()

    def fail(self, report: Frame) -> None:
        """Send that the step failed, and nothing of it."""
        self._session.send(report)


class QueuedSender:
    """Has each tensor leave when the stream has room for it, in the order of the queue, while the model computes."""

    def __init__(self, session: HostSession, deadline_seconds: float, damage: Damage) -> None:
        """Be ready for slices.

        Args:
            session: to the host, with the outbox that the stream's feeder empties.
            deadline_seconds: for so long the host may acknowledge nothing.
            damage: what is done to slices.
        """
        self._outbox = session.outbox
        self._tensors = OfferedTensors(damage)
        self._lock = threading.Lock()
        # Of steps whose slices have not all left.
        self._timings: dict[int, StepTiming] = {}
        # Settings that came for a step after it was announced; and the step whose gradients leave.
        self._resent: dict[int, TransferSettings] = {}
        self._leaving = 0
        self.acknowledge, self.add_read = self._outbox.acknowledge, self._outbox.add_read
        self._outbox.send_slices(self._encode, deadline_seconds, session.cancel)

    def begin(self, timing: StepTiming) -> None:
        """Begin a step; slices and the report of the one before it may still wait."""
        self._timings[timing.number] = timing

    def announce(self, frame: Frame) -> None:
        """Send a frame behind all slices that wait."""
        message = encode(frame)
        self._outbox.put_last(lambda: message)

    def cross(self, step: int, sending: TransferSettings) -> None:
        """Have what crosses a cut leave by these settings, or those that came since."""
        with self._lock:
            self._outbox.change(self._resent.get(step, sending))

    def leave(self, step: int, sending: TransferSettings) -> None:
        """Have the step's gradients leave by these settings, or those that came since."""
        with self._lock:
            self._leaving = step
            self._timings[step].resent = step in self._resent
            self._outbox.change(self._resent.pop(step, sending))

    def resend(self, step: int, sending: TransferSettings) -> None:
        """Take other settings for a step: at once if its gradients leave already."""
        with self._lock:
            if step == self._leaving:
                self._outbox.change(sending)
            elif step > self._leaving:
                self._resent[step] = sending

    def offer(self, piece: Piece, array: Array) -> None:
        """Add a tensor, of which `piece` is the whole."""
        self._tensors.add(piece, array)
        self._timings[piece.exchange].offer(named_piece(piece).tensor)
        self._outbox.offer(piece.exchange, piece.order, piece.tensor, piece.size_bytes)

    def encode(self) -> None:
        """Do nothing: what is offered is encoded when it leaves."""

    def flush(self) -> None:
        """Do nothing: what is offered leaves by itself."""

    def finish(self, report: Frame, names: Sequence[str], crossing: Sequence[str]) -> None:
        """Send a step's report, behind all of its slices and what is to be told of them."""
        number = self._leaving
        self._outbox.put_last(lambda: encode(self._timings.pop(number).told(names, crossing)))
        self.announce(report)

    def fail(self, report: Frame) -> None:
        """Send that the step failed, behind what was offered of it."""
        self.announce(report)

    def _encode(self, piece: Piece) -> Iterator[bytes]:
        self._timings[piece.exchange].leave(named_piece(piece))
        return self._tensors.encode(piece)


class GradientHooks:
    """Has gradients leave as soon as autograd has completed them; which of them may, it learns in the first step.

    Attributes:
        learnt: whether the first step is over.
        open: whether the backward pass at hand is the step's last: from then on gradients leave.
    """

    def __init__(self, worker: GradientWorker, offer: Callable[[str], None]) -> None:
        """Watch the gradients of the worker's model from now on; `offer` is told whose may leave."""
        self._trained, self._offer = worker.trained, offer
        self.learnt, self.open = False, False
        # How often each gradient was accumulated in a pass of the first step.
        self._fired: Counter[str] = Counter()
        self._ready: list[str] = []
        self._step = StepState(0, TransferSettings(), StepTiming(0))
        for name in worker.trained:
            hook = functools.partial(self._accumulated, name)
            worker.parameter(name).register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def begin(self, step: StepState) -> None:
        """Begin a step."""
        self._step, self._ready = step, []

    def end(self) -> list[str]:
        """Return the parameters whose gradients were not complete, or not known to be, before the passes were over."""
        self._step.timing.end()
        self.open, self.learnt = False, True
        return [name for name in dict.fromkeys((*self._ready, *self._trained)) if name not in self._step.offered]

    def _accumulated(self, name: str, _: torch.Tensor) -> None:
        """Take note of a gradient that autograd has just completed."""
        if not self.open:
            return
        step = self._step
        step.timing.complete(name)
        if not self.learnt:
            self._fired[name] += 1
            self._ready.append(name)
        elif name in step.offered:
            raise DeviceFailed(
                f"step {step.number}: the gradient of {name} changed after it was sent: the model computes other than "
                "in its first step; set overlap: false in the job's communication"
            )
        elif self._fired[name] == 1:
            self._offer(name)


def take_gradient(parameter: torch.nn.Parameter) -> Array:
    """Return a parameter's gradient and drop it from the model; zeros if no record came through it."""
    gradient, parameter.grad = parameter.grad, None
    if gradient is None:
        gradient = torch.zeros_like(parameter)
    array: Array = gradient.to_dense().detach().numpy()
    return array


def settings_of(spec: SendingSpec | None) -> TransferSettings:
    """Return a step's settings.

    Raises:
        ProtocolError: no queue can do what the host asks for.
    """
    try:
        return (
            TransferSettings() if spec is None else TransferSettings(spec.schedule, spec.slice_bytes, spec.credit_bytes)
        )
    except CsdError as error:
        raise ProtocolError(f"the host asks for settings that cannot be: {error}") from error
