"""Where a step stands in the drive, and how its weights get into the model when they all come before it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from firmware_agent.common.clients.client_program import EXTRA, STATE
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Array
from firmware_agent.common.weights import load_arrays, state_arrays
from firmware_agent.training.gradient_step import GradientWorker
from firmware_agent.training.step_timing import StepTiming
from firmware_agent.training.weight_intake import WeightIntake


@dataclass
class StepState:
    """Where a step stands.

    Attributes:
        number: of the step, from 1.
        sending: the settings that it came with.
        timing: takes its times.
        crossing: names of what has crossed the cut so far.
        order: of the tensors, once gradients leave.
        offered: names of the tensors that may leave.
    """

    number: int
    sending: TransferSettings
    timing: StepTiming
    crossing: dict[str, None] = field(default_factory=dict)
    order: Mapping[str, int] | None = None
    offered: set[str] = field(default_factory=set)


class WholePasses:
    """Passes in which nothing happens: all weights are there before the step, all gradients are offered after it.

    Attributes:
        extras: what came with the last weights, for a client program.
    """

    def __init__(self, worker: GradientWorker, intake: WeightIntake) -> None:
        """Prepare.

        Args:
            worker: computes the passes.
            intake: takes the weights.
        """
        self._worker, self._intake = worker, intake
        self._step: StepState | None = None
        self.extras: Mapping[str, Array] = {}

    def load(self, number: int) -> None:
        """Copy the weights into the model where they do not lie there already.

        Raises:
            ProtocolError: they are not there.
        """
        arrays = self._intake.take_over(number)
        self.extras = {name: array for name, array in arrays.items() if name.startswith((EXTRA, STATE))}
        load_arrays(self._worker.model, arrays)

    def begin(self, step: StepState) -> None:
        """Begin a step, of which the weights are loaded."""
        self._step = step

    def settle(self) -> None:
        """Do nothing."""

    def forward(self) -> AbstractContextManager[object]:
        """Return a context in which nothing happens."""
        return nullcontext()

    def backward(self, last: bool) -> None:
        """Do nothing."""

    def end(self) -> list[str]:
        """Return all parameters that have gradients, in the model's order."""
        return self._worker.trained

    def order(self) -> Mapping[str, int]:
        """Return the places in the order of first use in the forward pass, if the step's schedule asks for it."""
        if self._step is None or self._step.sending.schedule == "fifo":
            return {}
        return {name: place for place, name in enumerate(self._worker.forward_order())}

    def arrays(self) -> Mapping[str, Array]:
        """Return parameters and buffers."""
        return state_arrays(self._worker.model)
