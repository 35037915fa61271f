"""The host's part of a cut model: what crosses to it in a step, and what the step makes of its weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from csd_emu.perfmodel.host_node import reduce_seconds
from csd_emu.perfmodel.timeline import Crossed
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.device_time import MODELLED, WALL
from host.core.records import PlacementRecord
from host.core.tensor_sums import first_not_finite
from host.training.accounting import Accountant
from host.training.contributions import Refusal
from host.training.host_optimiser import TrainedModel
from host.training.screening import Screen
from host.training.sync.exchange.activation_exchange import ActivationExchange
from host.training.sync.exchange.gradient_buffer import WeightUpdate
from host.training.sync.exchange.step_extension import DeviceOutcome, StepWork
from host.training.sync.server_model.server_model import ServerModel, ServerModelPass
from host.training.sync.step_result import returned_reports
from host.training.tensor_ranges import TensorRange

ServerModelClock = Callable[[int, Sequence[PhaseSeconds]], float]
"""Returns the seconds of the host's part of a step: of so many records, given what the devices' own parts took."""


class HostPart:
    """The host's part of one run's model.

    Attributes:
        tail: computes so many `layers`, on the weights of `model`.
        model: the whole model.
        clock: says what that takes where devices' seconds are not the wall's; None if nothing does.
        stepped_bytes: of its parameters, and of the buffers that steps change.
    """

    def __init__(
        self, tail: ServerModel, model: TrainedModel, clock: ServerModelClock | None = None, layers: int = 1
    ) -> None:
        """Take over what computes; see above."""
        self.tail, self.model, self.clock, self.layers = tail, model, clock, layers
        self._ready: asyncio.Event | None = None
        self.stepped_bytes = sum(model.weights[name].nbytes for name in (*tail.split.trained, *tail.split.kept))

    def begin(
        self,
        number: int,
        works: Sequence[StepWork],
        update: WeightUpdate,
        keep: bool,
        screen: Screen,
        refused: dict[str, Refusal],
    ) -> HostPartStep:
        """Begin a step; arguments are those of `ActivationExchange`, and the `update` that the step makes."""
        parts = {work.device: work.parts for work in works}
        exchange = ActivationExchange(self.tail, number, parts, self._ready, keep, screen, refused)
        step = HostPartStep(number, self, exchange, update)
        self._ready = step.ready
        if not keep:
            update.on_release = step.begin_update
        return step


class HostPartStep:
    """The host's part in one step.

    Attributes:
        number: of the step.
        exchange: takes what crosses the cut.
        ready: set when the host's part of the model has what this step makes of it.
        not_finite: a tensor whose gradient was not finite, so that no tensor was stepped.
    """

    def __init__(self, number: int, part: HostPart, exchange: ActivationExchange, update: WeightUpdate) -> None:
        """Begin with nothing stepped; `update` has the learning rate, and takes gradients that are kept."""
        self.number, self.exchange = number, exchange
        self._part, self._update = part, update
        self.ready = asyncio.Event()
        self.not_finite = ""
        self._task: asyncio.Task[None] | None = None

    def begin_update(self, late: Collection[str] = ()) -> asyncio.Task[None]:
        """Have the host's part stepped, once, with all that went through it in time.

        That is due as soon as a block of the drives' part is: then no drive that is there hands over anything more, and
        the step counts, whoever is lost from now on.
        """
        if self._task is None:
            self._task = asyncio.ensure_future(self._step(late))
        return self._task

    def crossed(
        self, outcomes: Sequence[DeviceOutcome], late: Collection[str], accountant: Accountant
    ) -> Crossed | None:
        """Return what crossed the cut, of those who returned; the host's seconds are the wall's if all others' are.

        Its modelled seconds are those of the records that were there in time.
        """
        there = [outcome for outcome in outcomes if outcome.stepped is not None]
        if not there:
            return None
        seconds, clock = self.exchange.passing.seconds, WALL
        clocks = {accountant.time.clock(each.device, each.work.session.hello.clock) for each in there}
        if clocks != {WALL} and self._part.clock is not None:
            in_time = [each for each in there if each.device not in late]
            fronts, clock = [accountant.device_seconds(part) for part in returned_reports(in_time)], MODELLED
            seconds = self._part.clock(sum(len(each.work.records) for each in in_time), fronts)
        remote = [each for each in there if each.device != HOST]
        up, down = ({each.device: getattr(each, way) for each in remote} for way in ("up_bytes", "down_bytes"))
        return Crossed(up, down, seconds, clock, reduce_seconds(self._part.stepped_bytes, 0))

    def told(self, crossed: Crossed | None) -> PlacementRecord | None:
        """Return what is written down of what crossed."""
        if crossed is None:
            return None
        return PlacementRecord(
            layer=self._part.tail.point.layer,
            layers=self._part.layers,
            state_bytes=self._part.tail.split.state_bytes,
            up_bytes=sum(crossed.up_bytes.values()),
            down_bytes=sum(crossed.down_bytes.values()),
            tail_seconds=crossed.tail_seconds,
            clock=crossed.clock,
        )

    async def _step(self, late: Collection[str]) -> None:
        await self.exchange.settle()
        passing = self.exchange.passing
        if late:
            passing = await asyncio.to_thread(self.exchange.compute_without, late)
        await asyncio.to_thread(self._apply, passing)
        if self._part.model.optimiser.needs_all is None:
            self.ready.set()

    def _apply(self, passing: ServerModelPass) -> None:
        """Step, or keep the gradient with that of the drives."""
        gradients = passing.gradients()
        self.not_finite = first_not_finite(gradients)
        if self.not_finite:
            return
        for name, gradient in gradients.items():
            if self._part.model.optimiser.needs_all is not None:
                self._update.whole[name] = gradient
            else:
                self._part.model.optimiser.step_block(
                    TensorRange(name, 0, gradient.nbytes), gradient, self._update.rate
                )
        for name, buffer in passing.buffers().items():
            self._part.model.weights[name][...] = buffer
