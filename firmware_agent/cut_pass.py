"""The passes of a step in a drive that has the front of a model: what it computed goes out, gradients come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from firmware_agent.clock import Stopwatch
from firmware_agent.crossing import LABELS, RANDOM, activation_specs, gradient_specs
from firmware_agent.cutting import Crossing
from firmware_agent.errors import DeviceFailed, ProtocolError
from firmware_agent.exchange import Array, Assembler, cut_slices, tensor_specs
from firmware_agent.wire import ActivationGradients, Activations, AnyFrame, Slice, TensorSpec, encode

PassOn = Callable[[Iterable[Slice]], Iterable[Slice]]


class Answer(NamedTuple):
    """What the host made of a part: the mean loss over its records, and the gradients of what crossed, by place."""

    loss: float
    gradients: Mapping[str, Array]


class Ends(NamedTuple):
    """Where a backward pass begins: tensors and the gradients there; and the mean loss over the records."""

    tensors: list[torch.Tensor]
    gradients: list[torch.Tensor]
    loss: float


class Wanted(NamedTuple):
    """What must come back for a part of a step."""

    step: int
    part: int
    specs: list[TensorSpec]


Cross = Callable[[list[bytes], Wanted], Answer]
"""Sends frames, and waits for the answer."""


class CutPass:
    """One step's passes across the cut, one after the other."""

    def __init__(
        self, crossing: Sequence[Crossing], step: int, cross: Cross, pass_on: PassOn, stopwatch: Stopwatch
    ) -> None:
        """Begin the step; torch's generator is seeded for it.

        Args:
            crossing: what crosses.
            step: its number.
            cross: reaches the host, with the stopwatch stopped.
            pass_on: slices go through it before they are encoded.
            stopwatch: charges encoding.
        """
        self._crossing, self._step, self._cross = list(crossing), step, cross
        self._pass_on, self._stopwatch = pass_on, stopwatch
        self._part, self._random = 0, torch.get_rng_state()

    def ends(self, values: Sequence[torch.Tensor], labels: Array) -> Ends:
        """Hand over what the front computed of a part of the step, and return where its backward pass begins.

        Raises:
            DeviceFailed: the host's part failed.
            ProtocolError: the host answered something else.
        """
        frames, part = self._frames(values, labels), self._part
        self._stopwatch.lap("encode")
        self._part += 1
        answer = self._cross(frames, Wanted(self._step, part, gradient_specs(self._crossing, len(labels))))
        self._stopwatch.mark()
        wanted = {str(place): value for place, value in enumerate(values) if value.requires_grad}
        if missing := sorted(wanted.keys() - answer.gradients.keys()):
            raise ProtocolError(f"step {self._step}: the host sent no gradient of value {missing[0]} of what crossed")
        gradients = [torch.from_numpy(answer.gradients[place]) for place in wanted]
        return Ends(list(wanted.values()), gradients, answer.loss)

    def _frames(self, values: Sequence[torch.Tensor], labels: Array) -> list[bytes]:
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
        pieces = self._pass_on(cut_slices(self._step, arrays))
        return [encode(Activations(self._step, self._part, specs)), *map(encode, pieces)]


def receive_answer(receive: Callable[[], AnyFrame], wanted: Wanted) -> Answer:
    """Return the host's answer, frame by frame.

    Raises:
        DeviceFailed: the host's part failed.
        ProtocolError: the host sent something else.
    """
    frame = receive()
    if not isinstance(frame, ActivationGradients) or (frame.step, frame.part) != wanted[:2]:
        raise ProtocolError(
            f"the host sent a {type(frame).__name__} where the gradients of part {wanted.part} of step {wanted.step} "
            "were due"
        )
    if frame.error:
        raise DeviceFailed(f"step {wanted.step}: the host's part of the model failed: {frame.error}")
    assembler = Assembler(wanted.step, frame.specs, wanted.specs if frame.specs else [])
    while not assembler.complete:
        piece = receive()
        if not isinstance(piece, Slice):
            raise ProtocolError(f"the host sent a {type(piece).__name__} among the gradients of step {wanted.step}")
        assembler.add(piece)
    return Answer(frame.loss, assembler.arrays())
