"""Synchronous steps in the drive: weights in, gradients computed, gradients and a report out.

In turn, all weights are there before a step, nothing leaves while it is computed, and then all of it does, the report
last: whole tensors with a barrier. The main thread reads, computes and sends.

With `Job.overlap` slices cross the wire while the model computes, and three threads work on a session. A reader puts
weights straight into the model's memory as they come. The main thread computes: it waits for a tensor where torch first
uses it, and offers each gradient as soon as it is complete. The one that feeds the stream takes from the outbox what is
wanted first.

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

from collections.abc import Mapping

from firmware_agent.clock import Stopwatch
from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.first_use import sent_tensors
from firmware_agent.common.frames.frame_fields import Frame
from firmware_agent.common.frames.session_frames import Failed, Job, Slice, Tensors, Train
from firmware_agent.common.frames.step_frames import Reduce, Reduced, Step
from firmware_agent.common.send_queue import Piece
from firmware_agent.common.slices import Array, tensor_specs
from firmware_agent.common.split.activations import CROSSING_ORDER, crossing_name
from firmware_agent.common.weights import state_arrays
from firmware_agent.common.wire import AnyFrame
from firmware_agent.host_session import HostSession
from firmware_agent.training.cut_pass import Coming, CrossedPart, CutReply, ExpectedReply
from firmware_agent.training.gradient_step import GradientWorker, LocalStep
from firmware_agent.training.host_reader import ReaderThread, TurnReader
from firmware_agent.training.overlapped_passes import OverlappedPasses, StreamedWeights
from firmware_agent.training.step_sender import Damage, HeldSender, QueuedSender, settings_of, take_gradient
from firmware_agent.training.step_state import StepState, WholePasses
from firmware_agent.training.step_timing import StepTiming
from firmware_agent.training.weight_intake import WeightIntake


class DeviceSteps:
    """One job's steps over one session, which nobody else reads while they overlap."""

    def __init__(
        self,
        session: HostSession,
        job: Job,
        worker: GradientWorker,
        stopwatch: Stopwatch,
        damage: Damage = lambda: None,
    ) -> None:
        """Be ready for the job's weights.

        Args:
            session: to the host.
            job: whose steps come.
            worker: computes them.
            stopwatch: the worker's; it stands still while a tensor is waited for.
            damage: what is done to slices.
        """
        self._session, self._worker = session, worker
        self._names = [*worker.trained, *worker.buffers]
        self._step = StepState(0, settings_of(None), StepTiming(0))
        self._reader: TurnReader | ReaderThread
        self._sender: HeldSender | QueuedSender
        self._passes: WholePasses | OverlappedPasses
        if job.overlap:
            tensors = sent_tensors(worker.model)
            arrays = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
            self._intake = WeightIntake(lambda: arrays)
            self._sender = QueuedSender(session, job.deadline_seconds, damage)
            self._reader = ReaderThread(session, self._intake, self._sender, job.deadline_seconds)
            weights = StreamedWeights(tensors, arrays, self._intake, self._reader, stopwatch)
            self._passes = OverlappedPasses(worker, weights, stopwatch, self._offer_gradient)
        else:
            self._intake = WeightIntake(lambda: state_arrays(worker.model), extras=job.client is not None)
            self._sender, self._reader = HeldSender(session, stopwatch, damage), TurnReader(session)
            self._passes = WholePasses(worker, self._intake)

    def join(self) -> None:
        """Wait until nothing is read any more, once the session has ended."""
        self._reader.join()

    def receive(self) -> AnyFrame:
        """Return the next frame that is no part of an exchange that overlaps.

        Raises:
            CsdError: as `HostSession.receive`; or a slice could not be taken.
        """
        return self._reader.receive()

    def take(self, frame: Tensors | Slice) -> None:
        """Take weights, or what announces them.

        Raises:
            ProtocolError: they do not belong there.
        """
        self._intake.take(frame)

    def load(self, task: Train | Step) -> None:
        """Have a task's weights in the model, unless they come while it is computed, or it is only timed.

        Raises:
            ProtocolError: they have not come, or the task is not one of this session.
        """
        only_timed = isinstance(task, Step) and task.timed is not None
        if isinstance(self._passes, OverlappedPasses) and (only_timed or isinstance(task, Train)):
            raise ProtocolError("the host sent a round, or a step to be timed, in a session whose slices overlap")
        number = task.step if isinstance(task, Step) else task.round
        if not only_timed or self._intake.announced(number):
            self._passes.load(number)

    @property
    def extras(self) -> Mapping[str, Array]:
        """What came with the last weights, for a client program."""
        return self._passes.extras if isinstance(self._passes, WholePasses) else {}

    def compute(self, task: Step) -> LocalStep:
        """Take a step: its weights may still be on their way, its gradients leave as they become ready, or are held.

        All are offered when this returns, and what is held is encoded; what it reports goes to `finish`.

        Raises:
            DeviceLost: the host sent nothing for too long, or the session has ended.
            ProtocolError: the step's tensors were not announced.
            DeviceFailed: see `GradientWorker.compute`; or the model accumulated a gradient twice where it used not to.
        """
        step = self._step = StepState(task.step, settings_of(task.sending), StepTiming(task.step))
        self._reader.begin(step.number)
        self._sender.begin(step.timing)
        self._passes.begin(step)
        done = self._worker.compute(task, self._add_up, self._passes, self._cross)
        if task.timed == "forward":
            return done
        rest = self._passes.end()
        if step.order is None:
            self._begin_leaving()
        for name in rest:
            self._offer_gradient(name)
        arrays = self._passes.arrays()
        for name in self._worker.buffers:
            self._sender.offer(self._piece(name, arrays[name].nbytes), arrays[name])
        self._sender.encode()
        if task.timed is not None:
            self._sender.begin(step.timing)  # what is held of it is dropped
        return done

    def finish(self, report: Frame) -> None:
        """Send a step's report, behind all of its slices and what is to be told of them."""
        self._sender.finish(report, self._names, list(map(crossing_name, self._step.crossing)))

    def fail(self, report: Failed) -> None:
        """Send that a step failed, behind what was offered of it, when its weights have come: no newer ones then do.

        Raises:
            DeviceLost: the session has ended.
        """
        self._passes.settle()
        self._sender.fail(report)

    def _add_up(self, mine: Reduce) -> bytes:
        """Return the sum of the values in `mine` and those of all other participants, little-endian float64."""
        self._session.send(mine)
        total = self._reader.receive_sum()
        if not isinstance(total, Reduced) or (total.step, total.index) != (mine.step, mine.index):
            raise ProtocolError(f"the host sent a {type(total).__name__} where sum {mine.index} of the step was due")
        if len(total.values) != len(mine.values):
            raise ProtocolError(f"the host returned {len(total.values)} bytes as the sum of {len(mine.values)}")
        return total.values

    def _cross(self, handed: CrossedPart, wanted: ExpectedReply) -> CutReply:
        """Offer what crosses the cut, and wait for what comes back."""
        self._passes.settle()
        step, reply = self._step, Coming(wanted)
        step.crossing |= dict.fromkeys(handed.arrays)
        self._reader.expect(reply)
        self._sender.cross(step.number, step.sending)
        self._sender.announce(handed.announced)
        for name, array in handed.arrays.items():
            self._sender.offer(Piece(step.number, CROSSING_ORDER, 0, array.nbytes, name), array)
        self._sender.encode()
        self._sender.flush()
        step.timing.skip(self._reader.wait(lambda: reply.done, "the gradient of what crossed the cut"))
        return reply.answer()

    def _offer_gradient(self, name: str) -> None:
        parameter = self._worker.parameter(name)
        self._sender.offer(self._piece(name, parameter.nbytes), take_gradient(parameter))

    def _piece(self, name: str, size_bytes: int) -> Piece:
        """Return a whole tensor of the step that leaves, behind what announces it."""
        step = self._step
        if step.order is None:
            self._begin_leaving()
        step.offered.add(name)
        return Piece(step.number, (step.order or {}).get(name, 0), 0, size_bytes, name)

    def _begin_leaving(self) -> None:
        """Announce the gradients; before it, while no phase is charged, their order is found."""
        step = self._step
        step.order = self._passes.order()
        self._sender.leave(step.number, step.sending)
        arrays = self._passes.arrays()
        self._sender.announce(Tensors(step.number, tensor_specs({name: arrays[name] for name in self._names})))
