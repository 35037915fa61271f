"""Behaviours of a hostile drive: the frames of a task, changed, repeated or held back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

import msgspec
import numpy as np

from firmware_agent.common.frames.frame_fields import PhaseSeconds, TensorSpec
from firmware_agent.common.frames.session_frames import Job, Slice, Tensors, Train, Trained
from firmware_agent.common.frames.step_frames import Activations, Reduce, Step, Stepped
from firmware_agent.common.slices import cut_slices, make_slice
from firmware_agent.common.wire import AnyFrame

_SCALE, _HUGE, _SAMPLES, _SECONDS = 100.0, 1e30, 2**53, 1e-9


class Behaviour(StrEnum):
    """What is wrong with what a drive returns; ``honest`` is nothing."""

    HONEST = "honest"
    NAN = "nan"
    INF = "inf"
    HUGE = "huge"
    SIGN_FLIP = "sign_flip"
    SCALED = "scaled"
    FALSE_SAMPLES = "false_samples"
    FALSE_SECONDS = "false_seconds"
    WRONG_SHAPES = "wrong_shapes"
    REPLAY = "replay"
    SLOW_DRIP = "slow_drip"
    SILENCE = "silence"
    FLOOD = "flood"
    REDUCE_IN_VAIN = "reduce_in_vain"
    SUMS_NAN = "sums_nan"
    STEPPED_EARLY = "stepped_early"
    ACTIVATIONS_HUGE = "activations_huge"


# Of what drives do within a step for each other: in which synchronous jobs.
WITHIN_STEP: Mapping[Behaviour, tuple[str, ...]] = {
    Behaviour.REDUCE_IN_VAIN: ("sync",),
    Behaviour.SUMS_NAN: ("normalised",),
    Behaviour.STEPPED_EARLY: ("normalised", "cut"),
    Behaviour.ACTIVATIONS_HUGE: ("cut",),
}
HOSTILE = tuple(each for each in Behaviour if each is not Behaviour.HONEST and each not in WITHIN_STEP)
# These return an update in the wrong direction or length, made of their own right one.
_BY_UPDATE = {Behaviour.SIGN_FLIP: -1.0, Behaviour.SCALED: _SCALE}
_VALUES = {Behaviour.NAN: np.nan, Behaviour.INF: np.inf, Behaviour.HUGE: _HUGE}


class HostileFrames:
    """Turns the frames of an honest agent into those of a hostile one, task by task.

    Of a federated round an update is what comes back less what was sent; of a synchronous step it is the gradient.

    Attributes:
        behaviour: from the next task on.
    """

    def __init__(self, behaviour: Behaviour = Behaviour.HONEST) -> None:
        """Begin outside of a task."""
        self.behaviour = behaviour
        self._task: Train | Step | None = None
        self._types: dict[str, str] = {}
        self._sent: dict[tuple[str, int], bytes] = {}
        # The frames of the first task, and whether it is over: a replay sends them again.
        self._first: list[AnyFrame] = []
        self._replaying = False
        # What its first step's gradients are called, and whether the step is over for it.
        self._gradients: list[TensorSpec] = []
        self._over = False
        # Whether slices are of what crosses the cut of a model.
        self._among = False

    def take(self, frame: AnyFrame) -> None:
        """Note a frame of the host's."""
        if isinstance(frame, Job):
            self._task, self._first, self._replaying, self._gradients = None, [], False, []
        elif isinstance(frame, Tensors):
            self._sent = {}
        elif isinstance(frame, Slice):
            self._sent[frame.tensor, frame.offset] = bytes(frame.data)
        elif isinstance(frame, Train | Step):
            self._task, self._over = frame, False

    def give(self, frame: AnyFrame) -> Iterator[AnyFrame]:
        """Yield what is sent in place of a frame of the agent's; it may never end."""
        if isinstance(frame, Tensors | Activations):
            self._types = {spec.name: spec.dtype for spec in frame.specs}
        self._among = isinstance(frame, Activations) or (self._among and not isinstance(frame, Tensors))
        if self._task is None or self.behaviour is Behaviour.HONEST:
            yield frame
        elif self.behaviour is Behaviour.REPLAY:
            yield from self._replayed(frame)
        elif self.behaviour in WITHIN_STEP and isinstance(self._task, Step):
            yield from self._within_step(frame, self._task)
        elif self.behaviour in (Behaviour.SLOW_DRIP, Behaviour.FLOOD) and isinstance(frame, Slice):
            while True:
                yield frame
        elif self.behaviour is not Behaviour.SILENCE:
            yield self._changed(frame)

    def _within_step(self, frame: AnyFrame, task: Step) -> Iterator[AnyFrame]:
        if self.behaviour is Behaviour.STEPPED_EARLY:
            yield from self._stepped_early(frame, task)
        elif self.behaviour is Behaviour.REDUCE_IN_VAIN and isinstance(frame, Tensors):
            yield Reduce(task.step, 0, bytes(8))
            yield frame
        elif self.behaviour is Behaviour.SUMS_NAN and isinstance(frame, Reduce):
            yield msgspec.structs.replace(frame, values=np.full(len(frame.values) // 8, np.nan).tobytes())
        elif self.behaviour is Behaviour.ACTIVATIONS_HUGE and isinstance(frame, Slice) and self._among:
            yield self._changed_slice(frame, None, _HUGE)
        else:
            yield frame

    def _stepped_early(self, frame: AnyFrame, task: Step) -> Iterator[AnyFrame]:
        """End each step but the first where the others would add up, or hand over, with gradients of nothing."""
        first = not self._gradients
        if isinstance(frame, Tensors) and first:
            self._gradients = frame.specs
        elif isinstance(frame, Reduce | Activations) and not first and not self._over:
            self._over = True
            zeros = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in self._gradients}
            yield Tensors(task.step, self._gradients)
            yield from cut_slices(task.step, zeros)
            samples = len(task.records) // 4 if isinstance(task.records, bytes) else 1
            yield Stepped(task.step, samples, 0.5, PhaseSeconds(1.0), 0)
        if not self._over:
            yield frame

    def _replayed(self, frame: AnyFrame) -> Iterable[AnyFrame]:
        over = isinstance(frame, Trained | Stepped)
        if self._replaying:
            return self._first if over else ()
        self._first.append(frame)
        self._replaying = over
        return (frame,)

    def _changed(self, frame: AnyFrame) -> AnyFrame:
        if isinstance(frame, Slice):
            return self._changed_slice(frame, _BY_UPDATE.get(self.behaviour), _VALUES.get(self.behaviour))
        if isinstance(frame, Tensors) and self.behaviour is Behaviour.WRONG_SHAPES:
            specs = [msgspec.structs.replace(spec, shape=(*spec.shape, 2)) for spec in frame.specs]
            return msgspec.structs.replace(frame, specs=specs)
        if isinstance(frame, Trained | Stepped) and self.behaviour is Behaviour.FALSE_SAMPLES:
            return msgspec.structs.replace(frame, samples=_SAMPLES)
        if isinstance(frame, Trained | Stepped) and self.behaviour is Behaviour.FALSE_SECONDS:
            return msgspec.structs.replace(frame, seconds=PhaseSeconds(forward=_SECONDS))
        return frame

    def _changed_slice(self, piece: Slice, factor: float | None, value: float | None) -> Slice:
        """Return it with its update times the factor, or filled with the value; integers stay as they are."""
        dtype = np.dtype(self._types[piece.tensor])
        if not np.issubdtype(dtype, np.floating) or (factor is None and value is None):
            return piece
        data = np.frombuffer(piece.data, dtype)
        if factor is not None:
            start = self._start(piece, dtype)
            changed = start + factor * (data - start)
        else:
            changed = np.full_like(data, value)
        return make_slice(piece.exchange, piece.tensor, piece.offset, changed.astype(dtype).tobytes())

    def _start(self, piece: Slice, dtype: np.dtype[np.generic]) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        """Return what an update is counted from: the weights that the host sent, of a gradient zero."""
        if isinstance(self._task, Step):
            return np.zeros(len(piece.data) // dtype.itemsize, dtype)
        return np.frombuffer(self._sent[piece.tensor, piece.offset], dtype)
