"""The tensors of a model that cross in each step, and the pieces in which the host steps them."""

from __future__ import annotations

import itertools

from firmware_agent.common.slices import spec_bytes, tensor_specs
from host.training.host_optimiser import TrainedModel
from host.training.sync.exchange.weight_sender import SentWeights
from host.training.sync.server_model.server_model import ServerModel
from host.training.tensor_ranges import Release, cut_blocks


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
