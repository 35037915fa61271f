"""Two ways of reading the host's frames: by whoever waits for one, or by a thread while the model computes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from firmware_agent.common.errors import CsdError, DeviceLost, ProtocolError
from firmware_agent.common.frames.session_frames import Received, Slice, Tensors
from firmware_agent.common.frames.step_frames import ActivationGradients, Reduced, Resend
from firmware_agent.common.wire import AnyFrame
from firmware_agent.host_session import HostSession
from firmware_agent.training.cut_pass import Coming
from firmware_agent.training.step_sender import QueuedSender, settings_of
from firmware_agent.training.weight_intake import WeightIntake


class TurnReader:
    """Reads when a frame is wanted: the host sends all of a step's weights before the step."""

    def __init__(self, session: HostSession) -> None:
        """Prepare; nothing is read yet."""
        self.receive = self.receive_sum = session.receive
        self._reply: Coming | None = None

    def begin(self, step: int) -> None:
        """Note that no answer is due."""
        self._reply = None

    def expect(self, reply: Coming) -> None:
        """Take the next frames as the answer to what crosses a cut."""
        self._reply = reply

    def wait(self, there: Callable[[], bool], what: str) -> float:
        """Read the answer that is expected.

        Raises:
            ProtocolError: the host sent something else, or what is due should have come before.
        """
        while not there():
            if self._reply is None:
                raise ProtocolError(f"the host began a step before {what} had come")
            self._reply.take(self.receive())
        return 0.0

    def join(self) -> None:
        """Do nothing: nobody reads."""


class ReaderThread:
    """Reads from now on, and nobody else does; weights go where they belong as they come."""

    def __init__(
        self, session: HostSession, intake: WeightIntake, sender: QueuedSender, deadline_seconds: float
    ) -> None:
        """Begin to read.

        Args:
            session: to the host.
            intake: takes the weights.
            sender: is told what the host has read, and by which settings it wants gradients.
            deadline_seconds: for so long the host may send nothing that is due.
        """
        self._session, self._intake, self._sender = session, intake, sender
        self._deadline_seconds = deadline_seconds
        self._changed = threading.Condition()
        self._error: CsdError | None = None
        self._progress = time.monotonic()
        self._step = 0
        self._tasks: queue.SimpleQueue[AnyFrame | CsdError] = queue.SimpleQueue()
        self._sums: queue.SimpleQueue[AnyFrame | CsdError] = queue.SimpleQueue()
        self._reply: Coming | None = None
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, which ends with the session."""
        self._thread.join()

    def receive(self) -> AnyFrame:
        """Return the next frame that is no part of an exchange.

        Raises:
            CsdError: as `HostSession.receive`; or a slice could not be taken.
        """
        return _checked(self._tasks.get())

    def receive_sum(self) -> AnyFrame:
        """Return the next sum of a batch normalisation.

        Raises:
            DeviceLost: none came in time, or the session has ended.
        """
        try:
            return _checked(self._sums.get(timeout=self._deadline_seconds))
        except queue.Empty:
            raise self._silent("the sum of a batch normalisation") from None

    def begin(self, step: int) -> None:
        """Note which step is at hand, and that no answer is due."""
        self._step, self._reply = step, None

    def expect(self, reply: Coming) -> None:
        """Have what belongs to the answer taken as it comes."""
        self._reply = reply

    def wait(self, there: Callable[[], bool], what: str) -> float:
        """Wait for what is due.

        Raises:
            DeviceLost: the host sent nothing for too long, or the session has ended.
        """
        with self._changed:
            since = time.monotonic()
            while not there():
                if self._error is not None:
                    raise self._error
                left_seconds = max(since, self._progress) + self._deadline_seconds - time.monotonic()
                if left_seconds <= 0:
                    raise self._silent(what)
                self._changed.wait(left_seconds)
            return time.monotonic() - since

    def _silent(self, what: str) -> DeviceLost:
        return DeviceLost(
            f"step {self._step}: the host has sent nothing for {self._deadline_seconds:.0f} s, {what} is due"
        )

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
            self._intake.take(frame)
        elif isinstance(frame, Received):
            self._sender.acknowledge(frame.size_bytes)
        elif isinstance(frame, Resend):
            self._intake.exchange(frame.step)
            self._sender.resend(frame.step, settings_of(frame.sending))
        elif isinstance(frame, Reduced):
            self._sums.put(frame)
        else:
            self._tasks.put(frame)

    def _take_values(self, frame: Slice | ActivationGradients) -> None:
        if self._reply is not None and self._reply.wants(frame):
            self._reply.take(frame)
        elif isinstance(frame, Slice):
            self._intake.take(frame)
        else:
            raise ProtocolError(f"the host sent gradients of a cut's crossing for step {frame.step}, none are due")
        with self._changed:
            self._progress = time.monotonic()
            self._changed.notify_all()
        if isinstance(frame, Slice):
            self._sender.add_read(frame.exchange, len(frame.data))


def _checked(frame: AnyFrame | CsdError) -> AnyFrame:
    if isinstance(frame, CsdError):
        raise frame
    return frame
