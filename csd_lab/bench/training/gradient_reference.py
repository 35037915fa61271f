"""One process that computes a step by plain torch: the same groups of records, the same dropout masks, one model.

Nothing of the agent's or the host's gradient code is used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from firmware_agent.common.slices import Array


class ReferenceParticipant(NamedTuple):
    """One participant's records.

    Attributes:
        device: its name.
        images: (records, channels, height, width) float64, as the model takes them.
        labels: (records,) int64.
        parts: how many records are computed at a time, one after the other.
    """

    device: str
    images: torch.Tensor
    labels: torch.Tensor
    parts: tuple[int, ...]


def reference_step(
    model: nn.Module, batch_norm: str, groups: Sequence[ReferenceParticipant], seed: int, step: int
) -> dict[str, Array]:
    """Return gradients of the mean loss over all records, and buffers, by name; the model is used up.

    With ``device`` and ``frozen`` statistics the groups' parts go through the model in turn, each counting by its share
    of all records, and buffers are the mean of what each group leaves behind. With ``synchronised`` statistics all
    records go through it at once, normalised by the definition: the sums in torch's own batch normalisation differ from
    it by up to 4e-14, which a deep network makes 1e-11 of.
    """
    model.train()
    if batch_norm == "frozen":
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
    seeds = [_seed(seed, group.device, step) for group in groups]
    compute = _all_at_once if batch_norm == "synchronised" else _in_turn
    buffers = compute(model, groups, seeds)
    gradients = {name: (p.grad if p.grad is not None else torch.zeros_like(p)) for name, p in model.named_parameters()}
    return {name: tensor.numpy() for name, tensor in (gradients | buffers).items()}


def _in_turn(model: nn.Module, groups: Sequence[ReferenceParticipant], seeds: Sequence[int]) -> dict[str, torch.Tensor]:
    total = sum(len(group.labels) for group in groups)
    start = {name: buffer.clone() for name, buffer in model.named_buffers()}
    mean = {name: torch.zeros_like(buffer, dtype=torch.float64) for name, buffer in start.items()}
    for group, seed in zip(groups, seeds, strict=True):
        for name, buffer in model.named_buffers():
            buffer.copy_(start[name])
        torch.manual_seed(seed)
        for images, labels in zip(_split(group.images, group.parts), _split(group.labels, group.parts), strict=True):
            loss = functional.cross_entropy(model(images), labels, reduction="sum") / total
            loss.backward()  # type: ignore[no-untyped-call]
        for name, buffer in model.named_buffers():
            mean[name] += buffer * (len(group.labels) / total)
    return {name: value if start[name].is_floating_point() else value.round() for name, value in mean.items()}


def _all_at_once(
    model: nn.Module, groups: Sequence[ReferenceParticipant], seeds: Sequence[int]
) -> dict[str, torch.Tensor]:
    sizes = [len(group.labels) for group in groups]
    masks = _Masks(sizes, seeds)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                setattr(module, name, _GroupedDropout(child.p, masks))
            elif isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                setattr(module, name, _ByDefinition(child))
    images, labels = torch.cat([group.images for group in groups]), torch.cat([group.labels for group in groups])
    functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


class _ByDefinition(nn.Module):
    """Batch normalisation as Ioffe and Szegedy 2015 write it down, differentiated by torch."""

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
        super().__init__()
        self.eps, self.momentum = norm.eps, norm.momentum
        self.weight, self.bias = norm.weight, norm.bias
        for name, buffer in norm.named_buffers():
            self.register_buffer(name, buffer)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        rows = values.transpose(0, 1).flatten(1)
        mean = rows.mean(1, keepdim=True)
        variance = (rows - mean).square().mean(1, keepdim=True)
        self._track(mean.detach(), variance.detach() * rows.shape[1] / (rows.shape[1] - 1))
        rows = (rows - mean) / (variance + self.eps).sqrt() * self.weight[:, None] + self.bias[:, None]
        shape = values.shape[1], values.shape[0], *values.shape[2:]
        return rows.reshape(shape).transpose(0, 1)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        buffers = dict(self.named_buffers())
        buffers["num_batches_tracked"] += 1
        factor = 1.0 / float(buffers["num_batches_tracked"]) if self.momentum is None else self.momentum
        for name, new in (("running_mean", mean), ("running_var", variance)):
            buffers[name].lerp_(new.flatten(), factor)


class _Masks:
    """A state of torch's generator for each group, as if each were a process of its own."""

    def __init__(self, sizes: Sequence[int], seeds: Sequence[int]) -> None:
        self.sizes, self.states = list(sizes), [torch.manual_seed(seed).get_state() for seed in seeds]


class _GroupedDropout(nn.Module):
    """Draws each group's mask from the group's own generator."""

    def __init__(self, probability: float, masks: _Masks) -> None:
        super().__init__()
        self._probability, self._masks = probability, masks

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        dropped = []
        for number, part in enumerate(_split(values, self._masks.sizes)):
            torch.set_rng_state(self._masks.states[number])
            dropped.append(functional.dropout(part, self._probability))
            self._masks.states[number] = torch.get_rng_state()
        return torch.cat(dropped)


def _split(values: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    parts: tuple[torch.Tensor, ...] = torch.split(values, list(sizes))
    return parts


def _seed(seed: int, device: str, step: int) -> int:
    """Return what seeds the generator of a participant's step: it depends on these three and nothing else."""
    words = np.random.SeedSequence([seed, int.from_bytes(device.encode(), "big"), step]).generate_state(1)
    return int(words[0])
