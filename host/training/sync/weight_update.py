"""What one step makes of the weights: gradients are averaged and stepped as they come, or kept until all are there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from firmware_agent.common.slices import Array, spec_bytes, tensor_specs
from host.core.weighted_mean import TensorContribution, combine
from host.training.host_optimiser import TrainedModel
from host.training.sync.exchange.weight_release import Release
from host.training.sync.exchange.weight_sender import SentWeights
from host.training.sync.server_model.server_model import ServerModel
from host.training.tensor_ranges import TensorRange, cut_blocks, overlapped


class StepTensors:
    """The tensors of a model that cross in each step.

    Attributes:
        sent: what devices are sent.
        trained: parameters of which they return the gradient.
        buffers: that they return, to be averaged.
        specs: of all that they return.
        gradient_bytes: size of that.
        block_bytes: most of a tensor that is stepped at once; None where the whole gradient is needed first.
        blocks: tensor -> its pieces.
    """

    def __init__(self, model: TrainedModel, batch_norm: str, tail: ServerModel | None, whole: bool = False) -> None:
        """Take a model, of which the devices have all, or what comes before the `tail`.

        Unless `batch_norm` is ``frozen`` devices return buffers. `whole` gradients are needed if the optimiser needs
        them, or so.
        """
        weights, structure = model.weights, model.structure
        self.trained, buffers = structure.trained, structure.buffers
        if tail is not None:
            self.trained, buffers = tail.split.front_trained, tail.split.front_buffers
        self.buffers = buffers if batch_norm != "frozen" else ()
        self.specs = tensor_specs({name: weights[name] for name in (*self.trained, *self.buffers)})
        self.gradient_bytes = sum(map(spec_bytes, self.specs))
        sent = {name: weights[name] for name in (weights if tail is None else tail.split.front)}
        order = structure.order or tuple(name for name in weights if name not in structure.tied)
        self.sent = SentWeights(sent, tuple(name for name in order if name in sent))
        optimiser = model.optimiser
        self.block_bytes = None if whole or optimiser.needs_all is not None else optimiser.block_bytes
        self.blocks = cut_blocks(self.specs, self.block_bytes)

    def release(self) -> Release:
        """Return the release of a step of which nothing is updated yet."""
        return Release(itertools.chain.from_iterable(self.blocks.values()))


class WeightUpdate:
    """The update of the weights by one step, in place.

    Attributes:
        rate: the learning rate.
        whole: the gradient, where the optimiser needs all of it; with `keeps_all` the means of buffers too.
        release: which of the weights the step has updated.
        on_release: is told when that has become more.
    """

    def __init__(self, model: TrainedModel, tensors: StepTensors, rate: float, keeps_all: bool = False) -> None:
        """Begin with nothing; with `keeps_all` nothing is applied but all means are kept."""
        self._model, self._tensors, self.rate, self._keeps_all = model, tensors, rate, keeps_all
        self._barrier = keeps_all or model.optimiser.needs_all is not None
        self.release = tensors.release()
        self.whole: dict[str, Array] = {}
        self.on_release: Callable[[], object] = lambda: None
        self._loop = asyncio.get_running_loop()

    def apply(self, block: TensorRange, contributions: Sequence[TensorContribution]) -> None:
        """Take the gradients of a block; it may compute for long."""
        total = combine(block.tensor, contributions)
        if block.tensor in self._tensors.buffers and not self._keeps_all:
            array = self._model.weights[block.tensor]
            array.reshape(-1)[block.start // array.itemsize : block.end // array.itemsize] = total
        elif self._barrier:
            self.whole[block.tensor] = total.reshape(self._model.weights[block.tensor].shape)
            return
        else:
            self._model.optimiser.step_block(block, total, self.rate)
        self._loop.call_soon_threadsafe(self._let_go, block)

    def step_whole(self) -> None:
        """Step by the gradient that was kept."""
        self._model.optimiser.step_all(self.whole, self.rate)

    def end(self) -> None:
        """Let all go that is held back, stepped or not: the step is over."""
        self._model.copy_tied()
        self.release.add_all()

    def _let_go(self, block: TensorRange) -> None:
        for each in overlapped(self._tensors.blocks[block.tensor], block.start, block.end):
            self.release.add(each)
        if not self._barrier:
            self.on_release()
