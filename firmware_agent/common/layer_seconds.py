"""Seconds of a model's layers, by the clock of whoever computes them.

A watched pass shows where one layer ends and the next begins. Watching takes time too, of a small layer a large share:
so a pass is also timed unwatched, as a whole, and what the watched one took longer is taken off its layers, by how
often each was looked at. What is left adds up to the unwatched pass.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from firmware_agent.common.first_use import UseWatch, sent_tensors
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.measure_frames import LayerTime, LayerTimes
from firmware_agent.common.layer_costs import LayerWork


@dataclass(frozen=True)
class LayerSeconds:
    """What one watched pass through a layer took.

    Attributes:
        forward_seconds, backward_seconds: watching included.
        forward_looks, backward_looks: how often it was looked at.
    """

    forward_seconds: float
    backward_seconds: float
    forward_looks: int = 0
    backward_looks: int = 0


def measure_layers(
    model: nn.Module, loss: Callable[[], torch.Tensor], now: Callable[[], float], layers: Sequence[LayerWork]
) -> tuple[LayerSeconds, ...]:
    """Return the seconds of each layer in one forward and backward pass, in the order of `layers`.

    What comes before the first layer belongs to it, what comes behind the last, as the loss does, to that. Gradients
    are added to those in the model, as in any backward pass. Backward seconds of layers without a trained tensor are in
    those of the next one that the backward pass comes to and that has one.

    Args:
        model: whose layers were traced.
        loss: computes it, by a forward pass of the model.
        now: monotonic seconds.
        layers: of `trace_layers`.
    """
    passage = _Passage(now, layers)
    handles = [
        tensor.register_post_accumulate_grad_hook(passage.complete(name))  # type: ignore[no-untyped-call]
        for name, tensor in sent_tensors(model).items()
        if tensor.requires_grad
    ]
    try:
        with _PassageWatch(model, passage):
            # A watch's first look takes longer than the others: it has one at either kind of thing that torch has.
            functional.relu(torch.zeros(2, 2) @ torch.zeros(2, 2))
            passage.begin()
            value = loss()
        passage.turn()
        value.backward()  # type: ignore[no-untyped-call]
        passage.end()
    finally:
        for handle in handles:
            handle.remove()
    return passage.seconds()


def unwatched(seen: Sequence[float], looks: Sequence[int], whole_seconds: float) -> tuple[float, ...]:
    """Return what the layers take when nobody watches; they add up to `whole_seconds`.

    What a watched pass took longer goes by looks. A layer that would have less than nothing left has nothing. If the
    watched pass was no longer, its layers are scaled.

    Args:
        seen: (layers,) seconds of a watched pass.
        looks: (layers,) how often each was looked at.
        whole_seconds: of the same pass unwatched.
    """
    each = max(0.0, sum(seen) - whole_seconds) / max(1, sum(looks))
    left = [max(0.0, seconds - each * count) for seconds, count in zip(seen, looks, strict=True)]
    weights = next((parts for parts in (left, seen) if sum(parts) > 0), [1.0] * len(seen))
    return tuple(whole_seconds * weight / sum(weights) for weight in weights)


def median_pass(passes: Sequence[Sequence[LayerSeconds]]) -> tuple[LayerSeconds, ...]:
    """Return the median of each layer over watched passes, at least one; all have as many looks."""
    return tuple(
        LayerSeconds(
            statistics.median(each.forward_seconds for each in layer),
            statistics.median(each.backward_seconds for each in layer),
            layer[0].forward_looks,
            layer[0].backward_looks,
        )
        for layer in zip(*passes, strict=True)
    )


def layer_times(
    layers: Sequence[LayerWork], passes: Sequence[Sequence[LayerSeconds]], steps: Sequence[PhaseSeconds]
) -> LayerTimes:
    """Return what each layer takes of the median step.

    Args:
        layers: of the model.
        passes: watched, at least one, with a place for each layer.
        steps: of the same batch, nobody watching, at least one.
    """
    seen = median_pass(passes)
    forward = [each.forward_seconds for each in seen]
    backward = [each.backward_seconds for each in seen]
    looks = [each.forward_looks for each in seen], [each.backward_looks for each in seen]
    own = zip(
        unwatched(forward, looks[0], statistics.median(step.forward for step in steps)),
        unwatched(backward, looks[1], statistics.median(step.backward for step in steps)),
        strict=True,
    )
    times = [LayerTime(layer.name, *seconds) for layer, seconds in zip(layers, own, strict=True)]
    return LayerTimes(times, PhaseSeconds(forward=sum(forward), backward=sum(backward)), len(passes))


class _Passage:
    """Where a pass is, and since when.

    Attributes:
        looks: how often the forward pass was looked at.
    """

    def __init__(self, now: Callable[[], float], layers: Sequence[LayerWork]) -> None:
        self._now, count = now, len(layers)
        self._layer_of = {name: index for index, layer in enumerate(layers) for name in layer.tensors}
        self._forward, self._ready = [0.0] * count, [0.0] * count
        self._forward_looks, self._backward_looks = [0] * count, [0] * count
        self._current, self._mark, self._looked = 0, 0.0, 0
        self._turn = self._end = 0.0
        self.looks = 0

    def begin(self) -> None:
        """Note that the forward pass begins."""
        self.looks = self._looked = 0
        self._mark = self._now()

    def use(self, name: str) -> None:
        """Note the first use of a tensor."""
        if (index := self._layer_of[name]) > self._current:
            self._close(self._now())
            self._current = index

    def complete(self, name: str) -> Callable[[torch.Tensor], None]:
        """Return what notes that a tensor's gradient is complete."""
        index = self._layer_of[name]

        def note(_: torch.Tensor) -> None:
            self._ready[index] = self._now()
            self._backward_looks[index] += 1

        return note

    def turn(self) -> None:
        """Note that the backward pass begins."""
        self._turn = self._now()
        self._close(self._turn)

    def end(self) -> None:
        """Note that it is over."""
        self._end = self._now()

    def _close(self, moment: float) -> None:
        self._forward[self._current] += moment - self._mark
        self._forward_looks[self._current] += self.looks - self._looked
        self._mark, self._looked = moment, self.looks

    def seconds(self) -> tuple[LayerSeconds, ...]:
        """Return what each layer took."""
        backward = _between(self._ready, self._turn, self._end)
        return tuple(map(LayerSeconds, self._forward, backward, self._forward_looks, self._backward_looks))


class _PassageWatch(UseWatch):
    """Tells a passage of first uses, and of every look: one for each call of torch."""

    def __init__(self, model: nn.Module, passage: _Passage) -> None:
        super().__init__(model, passage.use)
        self._passage = passage

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        value = super().__torch_function__(function, types, arguments, keywords)
        self._passage.looks += 1  # of the layer that begins with this call, if one does
        return value


def _between(ready: Sequence[float], begin: float, end: float) -> list[float]:
    """Return how long after the layer behind it each layer's gradients were ready; the first layer has all the rest."""
    seconds, before = [0.0] * len(ready), begin
    for index in reversed(range(len(ready))):
        moment = end if index == 0 else max(before, ready[index])
        seconds[index], before = moment - before, moment
    return seconds
