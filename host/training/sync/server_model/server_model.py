"""The host's part of a model that is cut: computed for all drives' records at once, what is each drive's own apart.

Batch normalisation takes the statistics of each drive's records alone, as the whole model in the drive would, and each
drive's running statistics go their own way within a step; what draws does so from a generator of each drive's. All else
computes record by record: all drives' records go through it together. Whether that is so is tried once, on random
values. A part of which it is not, since it mixes records in a way of its own, computes for one drive after the other.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.first_use import evaluating
from firmware_agent.common.slices import Array
from firmware_agent.common.split.activations import has_gradient, step_seed
from firmware_agent.common.split.cutting import Cut
from host.core.tensor_sums import first_not_finite, weighted_mean
from host.training.sync.server_model.activation_types import (
    ActivationBatch,
    ActivationGrads,
    HandOver,
    ServerModelNotFinite,
    split_state,
)
from host.training.sync.server_model.per_drive_nodes import (
    Alone,
    Grouped,
    PerDriveState,
    batch_norms,
    find_alone,
    make_samples,
)

# Records of two drives, used to test whether the host's part can compute both drives' records at once.
_TRIED = {"one": 2, "other": 3}
# Relative difference allowed in that test: small batches and normalisation amplify rounding errors.
_TOLERANCE = float(np.finfo(np.float32).eps) ** 0.25


class ServerModel:
    """The host's part of one job's model; one instance per run.

    Attributes:
        point: where the model is cut.
        split: whose its tensors are.
        hand_over: what the drives hand over, and get back.
        smallest: so few records of a drive it can compute with.
        turn: held by whoever computes.
    """

    def __init__(
        self,
        cut: Cut,
        weights: Mapping[str, Array],
        trained: Sequence[str],
        tied: Mapping[str, str],
        batch_norm: str,
        seed: int,
    ) -> None:
        """Take over a model that is cut; its tail then computes with `weights`, in their memory.

        Args:
            cut: of a model in training mode, in the precision of the weights.
            weights: the whole model's parameters and buffers by name.
            trained: which of them have a gradient.
            tied: further name of a parameter -> its first one.
            batch_norm: see `host.config.sync_section.SyncSection`.
            seed: the job's.

        Raises:
            ConfigurationError: the tail mixes records in a way that cannot be kept apart while others must be mixed,
                or a tied parameter has another name in its part.
        """
        self.point, self._weights, self.split = cut.point, weights, split_state(cut, weights, trained, tied, batch_norm)
        self._batch_norm, self._module = batch_norm, _graph(cut.tail)
        if batch_norm == "frozen":
            _eval_norms(self._module)
        self._parameters = {
            tied.get(name, name): each for name, each in self._module.named_parameters(remove_duplicate=False)
        }
        for name, tensor in self._module.state_dict(keep_vars=True).items():
            tensor.data = torch.from_numpy(weights[tied.get(name, name)])
        self._seed = seed
        self.hand_over = HandOver(cut.point.crossing, bool(self.split.front_trained), self._count_classes())
        # One pass at a time: the gradients are the module's own.
        self.turn = threading.Lock()
        self._check_tied(trained, tied)
        self._alone = self._find_alone()
        self.smallest = self._find_smallest()
        if batch_norm == "synchronised" and not self.together:
            raise ConfigurationError(
                f"placement: the host's part from {self.point.layer!r} on mixes the records of a batch, or draws "
                "random numbers, in a way that cannot be kept apart by drives, while batch_norm: synchronised needs "
                "the records of all; cut behind it, or choose batch_norm: device or frozen"
            )

    @property
    def together(self) -> bool:
        """Whether it computes for all drives at once."""
        return self._alone is not None

    def _check_tied(self, trained: Sequence[str], tied: Mapping[str, str]) -> None:
        if odd := sorted(set(self.split.front_trained) - set(trained)):
            raise ConfigurationError(
                f"placement: {odd[0]} is tied to {tied.get(odd[0])}, which the part before the cut does not use; "
                "cut elsewhere"
            )

    def _count_classes(self) -> int:
        with evaluating(self._module), torch.no_grad(), self._put_aside():
            outputs = self._module(*(torch.zeros(2, *shape, dtype=dtype) for shape, dtype in self._record_shapes()))
        return int(outputs.shape[1])

    def begin(self, step: int) -> ServerModelPass:
        """Begin a step."""
        synchronised = self._batch_norm == "synchronised"
        return ServerModelPass(
            self, lambda device: self._fresh(step, device), self._fresh(step, "") if synchronised else None
        )

    def compute(
        self, batches: Sequence[ActivationBatch], own: Mapping[str, PerDriveState], joint: PerDriveState | None
    ) -> list[ActivationGrads]:
        """Return what goes back; the gradient of the sum of all records' losses is then in the parameters.

        Args:
            batches: one per device.
            own: what is each device's own.
            joint: has the running statistics of all together; None if those are each device's own too.
        """
        return self._compute(self._alone, batches, own, joint)

    def _compute(
        self,
        alone: Alone | None,
        batches: Sequence[ActivationBatch],
        own: Mapping[str, PerDriveState],
        joint: PerDriveState | None,
    ) -> list[ActivationGrads]:
        """Compute for all drives at once, but for what is `alone`; for None one drive after the other."""
        if alone is None:
            return [self._compute_alone(batch, own[batch.device]) for batch in batches]
        sizes = [len(batch.labels) for batch in batches]
        leaves = [self._leaves(batch) for batch in batches]
        inputs = [torch.cat(column) for column in zip(*leaves, strict=True)]
        grouped = Grouped(self._module, alone, sizes, [own[batch.device] for batch in batches])
        with nullcontext() if joint is None else joint.placed(batch_norms(self._module)):
            outputs: torch.Tensor = grouped.run(*inputs)
        losses = [_loss(part, batch) for part, batch in zip(torch.split(outputs, sizes), batches, strict=True)]
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        return [
            ActivationGrads(loss.item() / size, self._gradients(values, size), own[batch.device].random.numpy())
            for loss, size, values, batch in zip(losses, sizes, leaves, batches, strict=True)
        ]

    def _compute_alone(self, batch: ActivationBatch, own: PerDriveState) -> ActivationGrads:
        leaves = self._leaves(batch)
        with own.placed(dict(self._module.named_modules())):
            loss = _loss(self._module(*(leaf.clone() for leaf in leaves)), batch)
            loss.backward()  # type: ignore[no-untyped-call]
        size = len(batch.labels)
        return ActivationGrads(loss.item() / size, self._gradients(leaves, size), own.random.numpy())

    def _find_alone(self) -> Alone | None:
        """Return what must be computed for each drive alone, or None if all must.

        It is tried whether two drives' records together give the gradients, losses and buffers that they give one after
        the other. Layers that are to normalise over all records leave them alone meanwhile.
        """
        modes = [(each, each.training) for each in self._module.modules()]
        if self._batch_norm == "synchronised":
            _eval_norms(self._module)
        try:
            samples = make_samples(self._record_shapes())
            alone = find_alone(self._module, *samples)
            values = [torch.split(sample, list(_TRIED.values())) for sample in samples[0]]
            batches = [
                ActivationBatch(
                    name, [each[place].numpy() for each in values], np.arange(size) % self.hand_over.classes
                )
                for place, (name, size) in enumerate(_TRIED.items())
            ]
            return alone if _same(self._try(batches, alone), self._try(batches, None)) else None
        except Exception:  # the user's model may raise anything; in earnest it says what is wrong
            return None
        finally:
            self.take_gradients()
            for each, training in modes:
                each.training = training

    def _try(self, batches: Sequence[ActivationBatch], alone: Alone | None) -> dict[str, Array]:
        """Return all that comes of a pass, by name; the module's own buffers are as before."""
        own = {batch.device: self._fresh(0, batch.device) for batch in batches}
        before = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        try:
            backs = self._compute(alone, batches, own, None)
            found = {f"own {name}": buffer.numpy().copy() for name, buffer in self._module.named_buffers()}
        finally:
            for name, buffer in self._module.named_buffers():
                buffer.copy_(before[name])
        for batch, back in zip(batches, backs, strict=True):
            mine = own[batch.device]
            found |= {f"loss {batch.device}": np.array(back.loss), f"random {batch.device}": mine.random.numpy()}
            found |= {f"back {batch.device} {place}": gradient for place, gradient in back.gradients.items()}
            found |= {f"{batch.device} {name}": mine.buffers.get(name, each).numpy() for name, each in before.items()}
        return found | self.take_gradients()

    def _find_smallest(self) -> int:
        """Return how few records of a drive can be normalised: one, or two."""
        if self._batch_norm == "synchronised":
            return 1
        lone = [sample[:1] for sample in make_samples(self._record_shapes())[0]]
        try:
            with torch.no_grad(), self._put_aside():
                self._module(*lone)
        except ValueError:  # as torch says of a single value per channel
            return 2
        except Exception:  # as above
            return 1
        return 1

    def _put_aside(self) -> AbstractContextManager[None]:
        """Return a context in which the module computes with copies of its buffers."""
        return self._fresh(0, "").placed(dict(self._module.named_modules()))

    def _record_shapes(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        return [(each.shape, getattr(torch, each.dtype)) for each in self.point.crossing]

    def take_gradients(self) -> dict[str, Array]:
        """Return the parameters' gradients, as sums over records, and drop them; zeros where no record came through."""
        gradients: dict[str, Array] = {}
        for name in self.split.trained:
            parameter = self._parameters.get(name)
            gradient = None if parameter is None else parameter.grad
            gradients[name] = np.zeros_like(self._weights[name]) if gradient is None else gradient.to_dense().numpy()
        for parameter in self._parameters.values():
            parameter.grad = None
        return gradients

    def _leaves(self, batch: ActivationBatch) -> list[torch.Tensor]:
        values = zip(self.point.crossing, batch.values, strict=True)
        return [torch.from_numpy(array).requires_grad_(has_gradient(each)) for each, array in values]

    def _fresh(self, step: int, device: str) -> PerDriveState:
        return PerDriveState(torch.Generator().manual_seed(step_seed(self._seed, device, step)).get_state())

    def _gradients(self, values: Sequence[torch.Tensor], records: int) -> dict[str, Array]:
        if not self.hand_over.answered:
            return {}
        return {
            str(place): ((torch.zeros_like(value) if value.grad is None else value.grad) / records).numpy()
            for place, value in enumerate(values)
            if value.requires_grad
        }


class ServerModelPass:
    """One step of the host's part: batches go through it as they come together, and their gradients add up.

    Attributes:
        seconds: that it has computed for, of this machine's clock.
    """

    def __init__(self, tail: ServerModel, fresh: Callable[[str], PerDriveState], joint: PerDriveState | None) -> None:
        """Begin with nothing.

        Args:
            tail: computes.
            fresh: returns what is a device's own when the step begins.
            joint: see `ServerModel.compute`.
        """
        self._tail, self._fresh, self._joint = tail, fresh, joint
        self._own: dict[str, PerDriveState] = {}
        # Records of each device that went through, in the order in which devices first came.
        self._records: dict[str, int] = {}
        self._gradients: dict[str, Array] = {}
        self.seconds = 0.0

    @property
    def devices(self) -> list[str]:
        """Whose records went through."""
        return list(self._records)

    def compute(self, batches: Sequence[ActivationBatch], allow_not_finite: bool = False) -> list[ActivationGrads]:
        """Return what goes back to each; a device that comes again goes on where it was.

        Raises:
            ServerModelNotFinite: something of that is no finite number, unless `allow_not_finite`.
            BaseException: of the user's model. Either way nothing is changed.
        """
        own = {
            batch.device: self._own[batch.device].copy() if batch.device in self._own else self._fresh(batch.device)
            for batch in batches
        }
        joint = None if self._joint is None else self._joint.copy()
        for batch in batches:
            if batch.random is not None:
                own[batch.device].random = torch.from_numpy(batch.random)
        with self._tail.turn:
            begin = time.perf_counter()
            try:
                back = self._tail.compute(batches, own, joint)
            finally:
                gradients = self._tail.take_gradients()  # of a pass that failed they are dropped
        if not allow_not_finite and (odd := _first_odd(gradients, back)):
            raise ServerModelNotFinite(odd)
        self._own |= own
        self._joint = joint
        for name, gradient in gradients.items():
            self._gradients[name] = np.add(self._gradients[name], gradient) if name in self._gradients else gradient
        for batch in batches:
            self._records[batch.device] = self._records.get(batch.device, 0) + len(batch.labels)
        self.seconds += time.perf_counter() - begin
        return back

    def gradients(self) -> dict[str, Array]:
        """Return the gradients of the mean loss over all records that went through."""
        total = sum(self._records.values())
        return {name: gradient / np.asarray(total, gradient.dtype) for name, gradient in self._gradients.items()}

    def buffers(self) -> dict[str, Array]:
        """Return the running statistics: the mean of what each device leaves behind, or what all leave together."""
        if self._joint is not None:
            return {name: buffer.numpy() for name, buffer in self._joint.buffers.items()}
        names = {name for own in self._own.values() for name in own.buffers if name in self._tail.split.kept}
        if not names or not self._records:
            return {}
        parts = [
            (records, {name: self._own[device].buffers[name].numpy() for name in sorted(names)})
            for device, records in self._records.items()
        ]
        return weighted_mean(parts)


def _first_odd(gradients: Mapping[str, Array], backs: Sequence[ActivationGrads]) -> str:
    """Return what of a pass is no finite number; empty if all is."""
    if name := first_not_finite(gradients):
        return f"the gradient of {name}"
    if not all(math.isfinite(back.loss) for back in backs):
        return "the loss"
    return "a gradient that goes back" if any(first_not_finite(back.gradients) for back in backs) else ""


def _graph(module: nn.Module) -> fx.GraphModule:
    if not isinstance(module, fx.GraphModule):
        raise TypeError("a tail is a graph, as firmware_agent.common.split.cutting makes it")
    return module


def _loss(outputs: torch.Tensor, batch: ActivationBatch) -> torch.Tensor:
    return functional.cross_entropy(outputs, torch.from_numpy(batch.labels), reduction="sum")


def _eval_norms(module: nn.Module) -> None:
    for each in module.modules():
        if isinstance(each, _BatchNorm):
            each.eval()


def _same(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    """Return whether gradients, losses and buffers are the same but for how sums round.

    What mixes records, or draws other numbers, changes them by a good part of their size.
    """
    return one.keys() == other.keys() and all(_near(one[name], other[name]) for name in one)


def _near(one: Array, other: Array) -> bool:
    if one.shape != other.shape or not np.issubdtype(one.dtype, np.floating):
        return np.array_equal(one, other)
    with np.errstate(all="ignore"):
        difference, size = (float(np.linalg.norm(each.ravel())) for each in (np.subtract(one, other), other))
    # What has no value, such as the logarithm of what happens to be negative, tells nothing.
    return math.isfinite(size) and difference <= _TOLERANCE * size
