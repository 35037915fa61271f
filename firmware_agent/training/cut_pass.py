"""The passes of a step in a drive that has the front of a model: what it computed goes out, gradients come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from firmware_agent.clock import Stopwatch
from firmware_agent.common.errors import DeviceFailed, ProtocolError
from firmware_agent.common.frames.frame_fields import TensorSpec
from firmware_agent.common.frames.session_frames import Slice
from firmware_agent.common.frames.step_frames import ActivationGradients, Activations
from firmware_agent.common.slices import Array, Assembler, tensor_specs
from firmware_agent.common.split.activations import LABELS, RANDOM, activation_specs, gradient_specs, is_random_state
from firmware_agent.common.split.cutting import Crossing
from firmware_agent.common.wire import AnyFrame


class CrossedPart(NamedTuple):
    """What the front computed of a part: the frame that announces it, and the tensors by the names that it gives."""

    announced: Activations
    arrays: Mapping[str, Array]


class CutReply(NamedTuple):
    """What the host made of a part: the mean loss over its records, and the gradients of what crossed, by place.

    With them is the state of the generator behind the host's part, if the next part draws.
    """

    loss: float
    gradients: Mapping[str, Array]


class Ends(NamedTuple):
    """Where a backward pass begins: tensors and the gradients there; and the mean loss over the records."""

    tensors: list[torch.Tensor]
    gradients: list[torch.Tensor]
    loss: float


class ExpectedReply(NamedTuple):
    """What must come back for a part of a step."""

    step: int
    part: int
    specs: list[TensorSpec]


Cross = Callable[[CrossedPart, ExpectedReply], CutReply]
"""Hands over, and waits for the answer; what of this is work is charged there."""


class CutPass:
    """One step's passes across the cut, one after the other."""

    def __init__(self, crossing: Sequence[Crossing], step: int, cross: Cross, stopwatch: Stopwatch) -> None:
        """Begin the step; torch's generator is seeded for it.

        Args:
            crossing: what crosses.
            step: its number.
            cross: reaches the host.
            stopwatch: goes on when the answer is there.
        """
        self._crossing, self._step, self._cross, self._stopwatch = list(crossing), step, cross, stopwatch
        self._part, self._random = 0, torch.get_rng_state()

    def ends(self, values: Sequence[torch.Tensor], labels: Array, last: bool = True) -> Ends:
        """Hand over what the front computed of a part of the step, and return where its backward pass begins.

        If it is not the step's last part, torch's generator goes on behind what the host's part has drawn, as it would
        in the whole model.

        Raises:
            DeviceFailed: the host's part failed.
            ProtocolError: the host answered something else.
        """
        handed, part = self._handed(values, labels), self._part
        self._part += 1
        goes_on = RANDOM in handed.arrays and not last
        answer = self._cross(
            handed, ExpectedReply(self._step, part, gradient_specs(self._crossing, len(labels), goes_on))
        )
        self._stopwatch.mark()
        if goes_on:
            self._go_on(answer.gradients.get(RANDOM))
        wanted = {str(place): value for place, value in enumerate(values) if value.requires_grad}
        if missing := sorted(wanted.keys() - answer.gradients.keys()):
            raise ProtocolError(f"step {self._step}: the host sent no gradient of value {missing[0]} of what crossed")
        gradients = [torch.from_numpy(answer.gradients[place]) for place in wanted]
        return Ends(list(wanted.values()), gradients, answer.loss)

    def _go_on(self, random: Array | None) -> None:
        if random is None or not is_random_state(random):
            raise ProtocolError(f"step {self._step}: the host sent no state of the random generator behind its part")
        torch.set_rng_state(torch.from_numpy(random.copy()))

    def _handed(self, values: Sequence[torch.Tensor], labels: Array) -> CrossedPart:
        random = torch.get_rng_state()
        drawn = not torch.equal(random, self._random)
        arrays: dict[str, Array] = {str(place): value.detach().numpy() for place, value in enumerate(values)}
        arrays[LABELS] = np.asarray(labels)
        if drawn:
            arrays[RANDOM] = random.numpy()
        specs = tensor_specs(arrays)
        if specs != activation_specs(self._crossing, len(labels), drawn):
            raise DeviceFailed(
                f"step {self._step}: the front of the model computes {specs}, which is not what crossed when it was cut"
            )
        return CrossedPart(Activations(self._step, self._part, specs), arrays)


class Coming:
    """Takes the host's answer to a part, frame by frame."""

    def __init__(self, wanted: ExpectedReply) -> None:
        """Begin with nothing."""
        self._wanted = wanted
        self._assembler: Assembler | None = None
        self._loss, self._error = 0.0, ""

    def wants(self, frame: AnyFrame) -> bool:
        """Return whether a frame belongs to the answer."""
        begun = self._assembler is not None and not self._assembler.complete
        return isinstance(frame, ActivationGradients) or (isinstance(frame, Slice) and begun)

    @property
    def done(self) -> bool:
        """Whether the answer is whole."""
        return bool(self._error) or (self._assembler is not None and self._assembler.complete)

    def take(self, frame: AnyFrame) -> None:
        """Take a frame.

        Raises:
            ProtocolError: it does not belong there.
        """
        wanted = self._wanted
        if self._assembler is not None:
            if not isinstance(frame, Slice):
                raise ProtocolError(f"the host sent a {type(frame).__name__} among the gradients of step {wanted.step}")
            self._assembler.add(frame)
        elif not isinstance(frame, ActivationGradients) or (frame.step, frame.part) != wanted[:2]:
            raise ProtocolError(
                f"the host sent a {type(frame).__name__} where the gradients of part {wanted.part} of step "
                f"{wanted.step} were due"
            )
        elif frame.error:
            self._error = frame.error
        else:
            self._loss = frame.loss
            trained = any(spec.name != RANDOM for spec in frame.specs)
            expected = [spec for spec in wanted.specs if trained or spec.name == RANDOM]
            self._assembler = Assembler(wanted.step, frame.specs, expected)

    def answer(self) -> CutReply:
        """Return the answer, which is whole.

        Raises:
            DeviceFailed: the host's part failed.
        """
        if self._assembler is None:
            raise DeviceFailed(f"step {self._wanted.step}: the host's part of the model failed: {self._error}")
        return CutReply(self._loss, self._assembler.arrays())
