"""A drive's steps without a host: a session that keeps what is sent, and passes of a worker by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from firmware_agent.common.frames.frame_fields import Frame
from firmware_agent.common.frames.step_frames import Reduce, Reduced, Step
from firmware_agent.common.wire import AnyFrame, encode, unpack
from firmware_agent.host_session import HostSession
from firmware_agent.training.cut_pass import Cross, CrossedPart, CutReply, ExpectedReply
from firmware_agent.training.gradient_step import GradientWorker, LocalStep
from firmware_agent.training.step_state import WholePasses
from firmware_agent.training.weight_intake import WeightIntake


class KeepingSession:
    """A session that keeps the frames that are sent, and hands out those of a script; sums are of this drive alone.

    Attributes:
        sent: what was sent, but for what was to be added up.
        sums: that.
    """

    def __init__(self, script: Sequence[AnyFrame] = ()) -> None:
        self._script: Iterator[AnyFrame] = iter(script)
        self.sent: list[AnyFrame] = []
        self.sums: list[Reduce] = []

    def send(self, frame: Frame) -> None:
        self.send_encoded(encode(frame))

    def send_encoded(self, data: bytes) -> None:
        self.sent += unpack(data)

    def receive(self) -> AnyFrame:
        if self.sent and isinstance(mine := self.sent[-1], Reduce):
            self.sums.append(mine)
            del self.sent[-1]
            return Reduced(mine.step, mine.index, mine.values)
        return next(self._script)

    def session(self) -> HostSession:
        """Return this as what it stands for."""
        return cast(HostSession, self)


def nothing_crosses(handed: CrossedPart, wanted: ExpectedReply) -> CutReply:
    raise AssertionError("the model is whole")


def compute(
    worker: GradientWorker,
    task: Step,
    meet: Callable[[Reduce], bytes] = lambda mine: mine.values,
    cross: Cross = nothing_crosses,
) -> LocalStep:
    """Have a worker compute a step at the weights that it has; sums are those of the drive alone."""
    return worker.compute(task, meet, WholePasses(worker, WeightIntake(dict)), cross)
