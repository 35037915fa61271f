"""Models that are cut: a small one with what is hard about it, and drives that have its front, in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from firmware_agent.common.frames.session_frames import Failed, Job, Slice
from firmware_agent.common.frames.step_frames import ActivationGradients, Activations, Step
from firmware_agent.common.slices import Array, Assembler, cut_slices, tensor_specs
from firmware_agent.common.split.activations import LABELS, activation_specs
from firmware_agent.common.split.cutting import Cut, cut_model
from firmware_agent.common.weights import buffer_names, load_arrays, state_arrays, tied_names, trained_names
from firmware_agent.common.wire import AnyFrame
from host.core.evaluation import NormSum, Structure
from host.core.learning.judgement import Judgement
from host.training.sync.exchange.step_extension import part_sizes
from host.training.sync.server_model.server_model import ServerModel
from tests.support.fakes import Answer
from tests.support.sync import StepDrive

FEATURES, CLASSES = 4, 3
# Where `small_net` can be cut.
LAYERS = ("1", "3", "4")


def small_net() -> nn.Sequential:
    """Return a network, always the same, in float64, with normalisation on both sides of its middle."""
    torch.manual_seed(11)
    return nn.Sequential(
        *(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True)),
        *(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES)),
    ).double()


def cut_small_net(layer: str) -> Cut:
    """Return the network, cut before `layer`."""
    return cut_model(small_net(), torch.zeros(2, FEATURES, dtype=torch.float64), layer)


def images_of(records: Collection[int]) -> torch.Tensor:
    """Return what records with these numbers look like."""
    rows = [np.random.default_rng(record).normal(size=FEATURES) for record in records]
    return torch.from_numpy(np.array(rows).reshape(-1, FEATURES))


def labels_of(records: Sequence[int]) -> torch.Tensor:
    """Return their labels."""
    return torch.tensor([record % CLASSES for record in records])


class NetEvaluator:
    """The part of `host.core.evaluation.Evaluator` that training needs, of `small_net`."""

    def __init__(self) -> None:
        self.model = small_net()

    def initial_weights(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in state_arrays(self.model).items()}

    def structure(self) -> Structure:
        model = self.model
        return Structure(tuple(trained_names(model)), tuple(buffer_names(model)), tied_names(model))

    def norm_sums(self, frame: Job) -> Sequence[NormSum]:
        return ()  # these drives add nothing up

    def evaluate(self, weights: Mapping[str, Array]) -> Judgement:
        return Judgement(0.0, 0.0)


def make_server_model(layer: str, batch_norm: str = "device") -> Callable[[dict[str, Array]], ServerModel]:
    """Return what makes the host's part of `small_net` on weights."""
    evaluator = NetEvaluator()
    structure = evaluator.structure()
    return lambda weights: ServerModel(cut_small_net(layer), weights, structure.trained, {}, batch_norm, 0)


class CutDrive(StepDrive):
    """A drive that has the front of `small_net`; override `hand_over` or `finish` to have it misbehave."""

    def __init__(self, device: str = "csd-00", layer: str = "3", **more: Any) -> None:
        super().__init__(device, **more)
        self.layer = layer
        self.front = cut_small_net(layer).front
        self.crossing = cut_small_net(layer).point.crossing
        self.errors: list[str] = []
        self._task: Step | None = None
        self._parts: list[list[int]] = []
        self._part, self._values = 0, tuple[torch.Tensor, ...]()
        self._loss = 0.0
        self._back: Assembler | None = None

    def answer(self, frame: AnyFrame) -> Iterator[Answer]:
        if isinstance(frame, ActivationGradients):
            if frame.error:
                self.errors.append(frame.error)
                yield Failed("Step", frame.error)
                return
            self._loss += frame.loss * len(self._parts[self._part])
            self._back = Assembler(frame.step, frame.specs)
        elif isinstance(frame, Slice) and self._back is not None:
            self._back.add(frame)
            if self._back.complete:
                back, self._back = self._back.arrays(), None
                yield from self.go_back(back)
        else:
            yield from super().answer(frame)

    def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
        records = np.frombuffer(task.records, "<u4").tolist()
        self.by_step[task.step] = records
        load_arrays(self.front, weights)
        self.front.zero_grad()
        sizes = part_sizes(len(records), task.micro_batch)
        edges = np.cumsum([0, *sizes])
        self._parts = [records[start : start + size] for start, size in zip(edges, sizes, strict=False)]
        self._task, self._part, self._loss = task, 0, 0.0
        yield from self.hand_over(task, 0)

    def hand_over(self, task: Step, part: int) -> Iterator[Answer]:
        records = self._parts[part]
        self._values = self.front(images_of(records))
        arrays: dict[str, Array] = {str(place): each.detach().numpy() for place, each in enumerate(self._values)}
        arrays[LABELS] = labels_of(records).numpy()
        assert tensor_specs(arrays) == activation_specs(self.crossing, len(records), drawn=False)
        yield Activations(task.step, part, tensor_specs(arrays))
        yield from cut_slices(task.step, arrays)

    def go_back(self, back: Mapping[str, Array]) -> Iterator[Answer]:
        task = self._task
        assert task is not None
        share = len(self._parts[self._part]) / sum(map(len, self._parts))
        torch.autograd.backward(list(self._values), [torch.from_numpy(each) * share for each in back.values()])
        self._part += 1
        if self._part < len(self._parts):
            yield from self.hand_over(task, self._part)
        else:
            yield from self.finish(task)

    def finish(self, task: Step) -> Iterator[Answer]:
        gradients = {name: each.grad.numpy() for name, each in self.front.named_parameters() if each.grad is not None}
        buffers = {name: array.copy() for name, array in state_arrays(self.front).items() if name not in gradients}
        yield from self.tensors(task.step, gradients | buffers)
        yield self.stepped(task)


def whole_step(weights: Mapping[str, Array], groups: Sequence[Sequence[int]], rate: float) -> dict[str, Array]:
    """Return the weights after a step of plain SGD on the whole network: each group has its own statistics."""
    model = small_net()
    load_arrays(model, weights)
    total = sum(map(len, groups))
    start = {name: each.clone() for name, each in model.named_buffers()}
    after = {name: torch.zeros_like(each, dtype=torch.float64) for name, each in start.items()}
    for records in groups:
        for name, each in model.named_buffers():
            each.copy_(start[name])
        functional.cross_entropy(model(images_of(records)), labels_of(records), reduction="sum").backward()
        for name, each in model.named_buffers():
            after[name] += each * (len(records) / total)
    stepped = {
        name: (each - rate * each.grad / total).detach().numpy()
        for name, each in model.named_parameters()
        if each.grad is not None
    }
    rounded = {n: (v if start[n].is_floating_point() else v.round().to(start[n].dtype)) for n, v in after.items()}
    return stepped | {name: each.numpy() for name, each in rounded.items()}
