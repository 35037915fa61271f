"""Synchronous steps whose slices cross the wire while the model computes.

Three threads work on a session. A reader puts weights straight into the model's memory as they come. The main thread
computes: it waits for a tensor where torch first uses it, and offers each gradient as soon as it is complete. The one
that feeds the stream takes from the outbox what is wanted first.

The reader writes into tensors that the step before may still be computing with, so this must hold: *no value arrives
that the model still needs the old one of.* The host sends a parameter's new value after it has stepped it, for which it
needs this drive's gradient. Autograd accumulates a leaf's gradient once, when every operation that used the leaf has
run its backward; after that nothing reads the old value (unless the model went round autograd by `detach`). What
accumulates more than once in a pass, as under re-entrant checkpoints, or never, is offered after the backward pass, and
so are buffers. And no gradient of a step is offered before its own tensor of that step has come. What is never stepped
the host sends when it has this drive's report of the step before.

In a job with a cut the model is the front. What crosses is offered when a forward pass has ended and all of the step's
tensors have come; the backward pass begins when its gradient has. Nothing else of this drive waits to be sent then,
either way: the host has its gradients of the step before, or what is made of them would not be here, and it gets the
first of this step later. So what crosses has nothing to overtake.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from firmware_agent.clock import Stopwatch
from firmware_agent.common.errors import CsdError, DeviceFailed, DeviceLost, ProtocolError
from firmware_agent.common.first_use import UseWatch, sent_tensors
from firmware_agent.common.frames.frame_fields import MAX_SLICE_BYTES, Frame
from firmware_agent.common.frames.session_frames import Failed, Job, Received, Slice, Tensors
from firmware_agent.common.frames.step_frames import ActivationGradients, Reduce, Reduced, Resend, Step
from firmware_agent.common.send_queue import Piece, TransferSettings
from firmware_agent.common.slices import Array, Assembler, make_slice, tensor_specs
from firmware_agent.common.split.activations import CROSSING_ORDER, crossing_name, named_piece
from firmware_agent.common.wire import AnyFrame, encode
from firmware_agent.host_session import HostSession
from firmware_agent.training.cut_pass import Coming, CrossedPart, CutReply, ExpectedReply
from firmware_agent.training.gradient_step import GradientWorker, LocalStep
from firmware_agent.training.overlap_state import OverlapHooks, StepState, sending_of
from firmware_agent.training.step_timing import StepTiming

PassOn = Callable[[Iterable[Slice]], Iterable[Slice]]
Meet = Callable[[Callable[[Frame], None], Callable[[], AnyFrame], Reduce], bytes]
# A step and the one that is announced before it is over.
_STEPS = 2


class Overlap:
    """One job's steps over one session; it reads the session from `start` on, and nobody else does."""

    def __init__(
        self, session: HostSession, job: Job, worker: GradientWorker, stopwatch: Stopwatch, pass_on: PassOn = iter
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            session: to the host.
            job: whose steps come.
            worker: computes them.
            stopwatch: the worker's; it stands still while a tensor is waited for.
            pass_on: slices go through it before they are encoded.
        """
        self._session, self._outbox, self._worker = session, session.outbox, worker
        self._deadline_seconds, self._stopwatch, self._pass_on = job.deadline_seconds, stopwatch, pass_on
        self._tensors = sent_tensors(worker.model)
        self._step_names = [*worker.trained, *worker.buffers]
        self._arrays: dict[str, Array] = {name: each.detach().numpy() for name, each in self._tensors.items()}
        self._specs = tensor_specs(self._arrays)
        self._inbound: dict[int, Assembler] = {}
        self._changed = threading.Condition()
        self._error: CsdError | None = None
        self._progress = time.monotonic()
        self._tasks: queue.SimpleQueue[AnyFrame | CsdError] = queue.SimpleQueue()
        self._sums: queue.SimpleQueue[AnyFrame | CsdError] = queue.SimpleQueue()
        self._step = StepState()
        # Of the first step: the order of first use, and how often each gradient was accumulated in a pass.
        self._order: dict[str, int] = {}
        self._learnt = False
        self._fired: Counter[str] = Counter()
        self._sent: dict[tuple[int, str], npt.NDArray[np.uint8]] = {}
        # Of steps whose slices have not all left.
        self._timings: dict[int, StepTiming] = {}
        # Settings that came for a step after it was announced; and the step whose gradients leave.
        self._resent: dict[int, TransferSettings] = {}
        self._leaving = 0
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)

    def start(self) -> None:
        """Begin to read, and be ready to send slices."""
        self._outbox.send_slices(self._frames, self._deadline_seconds, self._session.cancel)
        for name in self._worker.trained:
            hook = functools.partial(self._accumulated, name)
            self._worker.parameter(name).register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._thread.start()

    def join(self) -> None:
        """Wait for the reader, which ends with the session."""
        self._thread.join()

    def receive(self) -> AnyFrame:
        """Return the next frame that is no part of an exchange.

        Raises:
            CsdError: as `HostSession.receive`; or a slice could not be taken.
        """
        return _checked(self._tasks.get())

    def compute(self, task: Step, meet: Meet) -> LocalStep:
        """Take a step: its weights may still be on their way, its gradients leave as they become ready.

        All are offered when this returns; what it reports goes to `finish`.

        Raises:
            DeviceLost: the host sent nothing for too long, or the session has ended.
            ProtocolError: the step's tensors were not announced.
            DeviceFailed: see `GradientWorker.compute`; or the model accumulated a gradient twice where it used not to.
        """
        self._step = StepState(task.step, self._assembler(task.step), sending_of(task.sending))
        # Behind the slices and the report of the step before, which may still wait.
        self._timings = {task.step: self._step.timing} | self._timings
        announced = encode(Tensors(task.step, tensor_specs({name: self._arrays[name] for name in self._step_names})))
        self._outbox.put_last(lambda: announced)
        flow = OverlapHooks(UseWatch(self._worker.model, self._use), self._set_last)
        done = self._worker.compute(
            task, lambda mine: meet(self._session.send, self._receive_sum, mine), flow, self._cross
        )
        self._offer_rest()
        self._learnt = True
        return done

    def finish(self, report: Frame) -> None:
        """Send a step's report, behind all of its slices and what is to be told of them."""
        step, message = self._step, encode(report)
        crossing = list(map(crossing_name, step.crossing))
        self._outbox.put_last(lambda: encode(self._timings.pop(step.number).told(self._step_names, crossing)))
        self._outbox.put_last(lambda: message)

    def fail(self, report: Failed) -> None:
        """Send that a step failed, behind what was offered of it, when its weights have come: no newer ones then do.

        Raises:
            DeviceLost: the session has ended.
        """
        self._step.last = False
        if self._step.inbound is not None:
            self._wait_for_all()
        message = encode(report)
        self._outbox.put_last(lambda: message)

    # The reader's thread.

    def _read(self) -> None:
        try:
            while True:
                self._take(self._session.receive())
        except CsdError as error:
            if isinstance(error, ProtocolError):
                self._session.cancel(str(error))
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._tasks.put(error)
            self._sums.put(error)

    def _take(self, frame: AnyFrame) -> None:
        if isinstance(frame, Slice | ActivationGradients):
            self._take_values(frame)
        elif isinstance(frame, Tensors):
            self._announce(frame)
        elif isinstance(frame, Received):
            self._outbox.acknowledge(frame.size_bytes)
        elif isinstance(frame, Resend):
            self._resend(frame)
        elif isinstance(frame, Reduced):
            self._sums.put(frame)
        else:
            self._tasks.put(frame)

    def _take_values(self, frame: Slice | ActivationGradients) -> None:
        coming = self._step.coming
        if coming is not None and coming.wants(frame):
            coming.take(frame)
        elif isinstance(frame, Slice):
            self._assembler(frame.exchange).add(frame)
        else:
            raise ProtocolError(f"the host sent gradients of a cut's crossing for step {frame.step}, none are due")
        with self._changed:
            self._progress = time.monotonic()
            self._changed.notify_all()
        if isinstance(frame, Slice):
            self._outbox.add_read(frame.exchange, len(frame.data))

    def _announce(self, frame: Tensors) -> None:
        if self._inbound and frame.exchange <= max(self._inbound):
            raise ProtocolError(f"the host announced exchange {frame.exchange} after {max(self._inbound)}")
        for old in sorted(self._inbound)[: 1 - _STEPS]:
            if not self._inbound[old].complete:
                raise ProtocolError(
                    f"the host announced exchange {frame.exchange} while {self._inbound[old].missing_bytes} bytes of "
                    f"{old} are missing; one step may be announced ahead"
                )
            del self._inbound[old]
        self._inbound[frame.exchange] = Assembler(frame.exchange, frame.specs, self._specs, self._arrays)

    def _resend(self, frame: Resend) -> None:
        """Take other settings for a step: at once if its gradients leave already."""
        self._assembler(frame.step)
        sending = sending_of(frame.sending)
        with self._changed:
            if frame.step == self._leaving:
                self._outbox.change(sending)
            elif frame.step > self._leaving:
                self._resent[frame.step] = sending

    def _assembler(self, exchange: int) -> Assembler:
        found = self._inbound.get(exchange)
        if found is None:
            raise ProtocolError(f"the host sent a slice or a step of exchange {exchange}, which it has not announced")
        return found

    # The main thread.

    def _receive_sum(self) -> AnyFrame:
        try:
            return _checked(self._sums.get(timeout=self._deadline_seconds))
        except queue.Empty:
            raise self._silent("the sum of a batch normalisation") from None

    def _use(self, name: str) -> None:
        """Wait for a tensor that is about to be used."""
        if not self._learnt:
            self._order[name] = len(self._order)
        if (inbound := self._step.inbound) is not None and not inbound.has(name):
            self._stopwatch.lap("forward")
            self._wait(lambda: inbound.has(name), name)
            self._stopwatch.mark()
        self._step.timing.use(name)
        self._move_in(name)

    def _cross(self, handed: CrossedPart, wanted: ExpectedReply) -> CutReply:
        """Offer what crosses the cut, and wait for what comes back."""
        self._wait_for_all()
        step, announced = self._step, encode(handed.announced)
        step.coming = coming = Coming(wanted)
        step.crossing |= dict.fromkeys(handed.arrays)
        with self._changed:
            self._outbox.change(self._resent.get(step.number, step.sending))
        self._outbox.put_last(lambda: announced)
        for name, array in handed.arrays.items():
            self._put(CROSSING_ORDER, name, array)
        self._wait(lambda: coming.done, "the gradient of what crossed the cut")
        return coming.answer()

    def _wait_for_all(self) -> None:
        if (inbound := self._step.inbound) is None:
            return
        self._wait(lambda: inbound.complete, "the rest of the weights")
        for name in self._tensors:
            self._move_in(name)

    def _move_in(self, name: str) -> None:
        """Copy a tensor into the model if its bytes could not go there straight."""
        if self._step.inbound is None or name in self._step.moved:
            return
        self._step.moved.add(name)
        array, _ = self._step.inbound.partial(name)
        if array is not self._arrays[name]:
            with torch.no_grad():
                self._tensors[name].copy_(torch.from_numpy(array))

    def _wait(self, there: Callable[[], bool], what: str) -> None:
        with self._changed:
            since = time.monotonic()
            while not there():
                if self._error is not None:
                    raise self._error
                left_seconds = max(since, self._progress) + self._deadline_seconds - time.monotonic()
                if left_seconds <= 0:
                    raise self._silent(what)
                self._changed.wait(left_seconds)
            self._step.timing.skip(time.monotonic() - since)

    def _silent(self, what: str) -> DeviceLost:
        return DeviceLost(
            f"step {self._step.number}: the host has sent nothing for {self._deadline_seconds:.0f} s, {what} is due"
        )

    def _set_last(self, last: bool) -> None:
        """Note whether the backward pass that begins is the step's last: from then on gradients are offered."""
        if last:
            self._stopwatch.lap("forward")
            self._wait_for_all()
            self._stopwatch.mark()
        self._step.last = last

    def _accumulated(self, name: str, _: torch.Tensor) -> None:
        """Take note of a gradient that autograd has just completed."""
        step = self._step
        if not step.last:
            return
        step.timing.complete(name)
        if not self._learnt:
            self._fired[name] += 1
            step.ready.append(name)
        elif name in step.offered:
            raise DeviceFailed(
                f"step {step.number}: the gradient of {name} changed after it was sent: the model computes other than "
                "in its first step; set overlap: false in the job's communication"
            )
        elif self._fired[name] == 1:
            self._offer(name, self._worker.take_gradient(name))

    def _offer_rest(self) -> None:
        """Offer what was not complete, or not known to be, before the backward pass was over."""
        step = self._step
        step.last = False
        step.timing.end()
        if not self._learnt:
            for name in self._tensors:
                self._order.setdefault(name, len(self._order))
        for name in (*dict.fromkeys(step.ready), *self._worker.trained):
            if name not in step.offered:
                self._offer(name, self._worker.take_gradient(name))
        for name in self._worker.buffers:
            self._offer(name, self._arrays[name])

    def _offer(self, name: str, array: Array) -> None:
        step = self._step
        if not step.offered:
            self._begin_leaving(step)
        step.offered.add(name)
        self._put(self._order[name], name, array)

    def _put(self, order: int, name: str, array: Array) -> None:
        step, piece = self._step, named_piece(Piece(self._step.number, order, 0, array.nbytes, name))
        data = np.ascontiguousarray(array, dtype=np.dtype(array.dtype).newbyteorder("<")).reshape(-1).view(np.uint8)
        if len(data):
            self._sent[step.number, piece.tensor] = data
            step.timing.offer(piece.tensor)
        self._outbox.offer(step.number, order, name, len(data))

    def _begin_leaving(self, step: StepState) -> None:
        with self._changed:
            self._leaving = step.number
            step.timing.resent = step.number in self._resent
            self._outbox.change(self._resent.pop(step.number, step.sending))

    # The thread that feeds the stream.

    def _frames(self, piece: Piece) -> Iterator[bytes]:
        """Yield a piece as frames; a gradient's memory is given up when its last piece is encoded."""
        named = named_piece(piece)
        key = piece.exchange, named.tensor
        self._timings[piece.exchange].leave(named)
        data, end = self._sent[key], piece.offset + piece.size_bytes
        for start in range(piece.offset, end, MAX_SLICE_BYTES):
            view = data[start : min(end, start + MAX_SLICE_BYTES)].data
            for frame in self._pass_on([make_slice(piece.exchange, piece.tensor, start, view)]):
                yield encode(frame)
        if end == len(data):
            del self._sent[key]


def _checked(frame: AnyFrame | CsdError) -> AnyFrame:
    if isinstance(frame, CsdError):
        raise frame
    return frame
