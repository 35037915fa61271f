"""A model whose layers take the seconds that they are said to take: for runs that test communication on the wall clock.

The layers compute their real numbers, which must take less; what is left of their time they sleep. So several drives on
few cores do not slow each other down, and compute is the same in every run, while what they send is sent in earnest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

# A layer that starts so soon after the one before is held to start when that one's time was over: what interpreter,
# timers and a busy machine cost does not add up. Later than that it is another pass.
_LATE_SECONDS = 0.02
# A layer that did not get its parameters sooner has waited for them, which is no delay of the machine's.
_WAIT_SECONDS = 0.0005


class PacedLayerSeconds(NamedTuple):
    """How long a layer takes, forward and backward."""

    forward: float
    backward: float


class Pacer:
    """The time of one model's passes: layer follows layer."""

    def __init__(self, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        """Begin with nothing due; `sleep` waits seconds of the clock `now`."""
        self._now, self._sleep, self._due = now, sleep, now()

    def now(self) -> float:
        """Return the clock."""
        return self._now()

    def start(self, called: float | None = None) -> float:
        """Return when the layer that now begins is held to have begun; `called` is when it asked for its parameters."""
        now = self._now()
        waited = called is not None and now - called > _WAIT_SECONDS
        return now if waited or now - self._due > _LATE_SECONDS else self._due

    def wait_until(self, moment: float) -> None:
        """Sleep until then; at once if it is over."""
        self._due = moment
        if (left := moment - self._now()) > 0:
            self._sleep(left)


def pace(model: nn.Module, seconds: Mapping[str, PacedLayerSeconds], pacer: Pacer | None = None) -> nn.Module:
    """Have layers of a model take their seconds, in training mode alone; return the model.

    A layer's forward time begins when it has got its parameters (see `firmware_agent.common.first_use`). Its backward
    time begins when the gradient of its output is there; the gradients of its parameters, all at once, and that of its
    input are there when it is over.

    Args:
        model: is changed; its layers must each give one tensor.
        seconds: name of a layer -> its seconds.
        pacer: for tests; by default a new one on the monotonic clock.
    """
    pacer = pacer or Pacer()
    layers = dict(model.named_modules())
    for name, each in seconds.items():
        _Paced(layers[name], each, pacer)
    return model


class _Paced:
    """One layer that takes its seconds."""

    def __init__(self, layer: nn.Module, seconds: PacedLayerSeconds, pacer: Pacer) -> None:
        self._layer, self._seconds, self._pacer = layer, seconds, pacer
        self._compute = layer.forward
        self._due = 0.0
        layer.forward = self._forward
        self._own = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        for parameter in self._own:
            # Runs before the gradient is accumulated, and whoever waits for that is told.
            parameter.register_hook(self._end_backward)  # type: ignore[no-untyped-call]

    def _forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        if not self._layer.training:
            plain: torch.Tensor = self._compute(*inputs)
            return plain
        called = self._pacer.now()
        for parameter in self._own:
            parameter.detach()  # whoever holds it back until it has come makes us wait here
        start = self._pacer.start(called)
        marked: torch.Tensor = _Mark.apply(  # type: ignore[no-untyped-call]
            self._compute(*inputs), self._begin_backward
        )
        self._pacer.wait_until(start + self._seconds.forward)
        return marked

    def _begin_backward(self) -> None:
        self._due = self._pacer.start() + self._seconds.backward
        if not self._own:
            self._pacer.wait_until(self._due)

    def _end_backward(self, _: torch.Tensor) -> None:
        self._pacer.wait_until(self._due)


class _Mark(torch.autograd.Function):
    """Passes its input on, and says when the gradient comes back."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, tell: Callable[[], None]) -> torch.Tensor:
        context.tell = tell
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        context.tell()
        return gradients[0], None
