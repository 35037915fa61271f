"""Passes of a step beside its exchange: tensors are waited for where they are used, gradients leave when complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import torch

from firmware_agent.clock import Stopwatch
from firmware_agent.common.first_use import UseWatch
from firmware_agent.common.slices import Array, Assembler
from firmware_agent.training.gradient_step import GradientWorker
from firmware_agent.training.host_reader import ReaderThread
from firmware_agent.training.step_sender import GradientHooks
from firmware_agent.training.step_state import StepState
from firmware_agent.training.weight_intake import WeightIntake


class StreamedWeights:
    """The model's tensors while their values of a step come in.

    Attributes:
        tensors: by name, in the model's order.
        arrays: their memory.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        arrays: Mapping[str, Array],
        intake: WeightIntake,
        reader: ReaderThread,
        stopwatch: Stopwatch,
    ) -> None:
        """Prepare.

        Args:
            tensors: by name, in the model's order.
            arrays: their memory.
            intake: takes their values, put there by the reader.
            reader: waits for them.
            stopwatch: stands still meanwhile.
        """
        self.tensors, self.arrays = tensors, arrays
        self._intake, self._reader, self._stopwatch = intake, reader, stopwatch
        self._step: StepState | None = None
        self._inbound: Assembler | None = None
        self._moved: set[str] = set()

    def begin(self, step: StepState) -> None:
        """Begin a step.

        Raises:
            ProtocolError: its weights were not announced.
        """
        self._step, self._inbound, self._moved = step, self._intake.exchange(step.number), set()

    def use(self, name: str) -> None:
        """Wait for a tensor that is about to be used."""
        inbound, step = self._inbound, self._step
        if inbound is None or step is None:
            return
        if not inbound.has(name):
            self._stopwatch.lap("forward")
            step.timing.skip(self._reader.wait(lambda: inbound.has(name), name))
            self._stopwatch.mark()
        step.timing.use(name)
        self._move_in(inbound, name)

    def wait_for_all(self) -> None:
        """Wait for all tensors of the step, if one has begun."""
        inbound, step = self._inbound, self._step
        if inbound is None or step is None:
            return
        step.timing.skip(self._reader.wait(lambda: inbound.complete, "the rest of the weights"))
        for name in self.tensors:
            self._move_in(inbound, name)

    def _move_in(self, inbound: Assembler, name: str) -> None:
        """Copy a tensor into the model if its bytes could not go there straight."""
        if name in self._moved:
            return
        self._moved.add(name)
        array, _ = inbound.partial(name)
        if array is not self.arrays[name]:
            with torch.no_grad():
                self.tensors[name].copy_(torch.from_numpy(array))


class OverlappedPasses:
    """Waits for tensors and offers gradients; what it must know of the model it learns in the first step."""

    def __init__(
        self, worker: GradientWorker, weights: StreamedWeights, stopwatch: Stopwatch, offer: Callable[[str], None]
    ) -> None:
        """Watch the gradients of the worker's model from now on.

        Args:
            worker: computes the passes.
            weights: of its model.
            stopwatch: the worker's; it stands still while weights are waited for.
            offer: is told whose gradient may leave.
        """
        self._worker, self._weights, self._stopwatch = worker, weights, stopwatch
        self._hooks = GradientHooks(worker, offer)
        # Of the first step: the order of first use.
        self._order: dict[str, int] = {}

    def load(self, number: int) -> None:
        """Do nothing: weights come while the step is computed."""

    def begin(self, step: StepState) -> None:
        """Begin a step.

        Raises:
            ProtocolError: its weights were not announced.
        """
        self._weights.begin(step)
        self._hooks.begin(step)

    def settle(self) -> None:
        """Wait for the rest of the weights.

        Raises:
            DeviceLost: they do not come.
        """
        self._hooks.open = False
        self._weights.wait_for_all()

    def forward(self) -> AbstractContextManager[object]:
        """Return a context in which each tensor is waited for where it is first used."""
        return UseWatch(self._worker.model, self._use)

    def backward(self, last: bool) -> None:
        """Note whether the backward pass that begins is the step's last: it begins with all weights."""
        if last:
            self._stopwatch.lap("forward")
            self._weights.wait_for_all()
            self._stopwatch.mark()
        self._hooks.open = last

    def end(self) -> list[str]:
        """Return the parameters whose gradients were not complete, or not known to be, before the passes were over."""
        first, rest = not self._hooks.learnt, self._hooks.end()
        if first:
            for name in self._weights.tensors:
                self._order.setdefault(name, len(self._order))
        return rest

    def order(self) -> Mapping[str, int]:
        """Return the places in the order of first use in the first step; what is not used comes last."""
        return self._order

    def arrays(self) -> Mapping[str, Array]:
        """Return parameters and buffers."""
        return self._weights.arrays

    def _use(self, name: str) -> None:
        if not self._hooks.learnt:
            self._order[name] = len(self._order)
        self._weights.use(name)
