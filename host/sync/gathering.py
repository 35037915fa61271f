"""One step's gradients as they come in: a tensor is applied as soon as everyone who takes part has sent it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from firmware_agent.exchange import Assembler
from firmware_agent.wire import TensorSpec
from host.sync.reduction import Contribution

Apply = Callable[[str, Sequence[Contribution]], None]
"""Takes one tensor's name and its contributions, in participant order; it may compute for long."""


class Gathering:
    """The gradients of one step.

    Without a barrier each tensor is applied as soon as all who take part have sent it, while others still come in. What
    a lost device has sent of a tensor that is not yet applied stays in it, slice by slice.
    """

    def __init__(self, specs: Sequence[TensorSpec], weights: Mapping[str, int], apply: Apply, barrier: bool) -> None:
        """Begin with nothing.

        Args:
            specs: the tensors that everyone sends.
            weights: device -> records in its gradient, in participant order.
            apply: called once for each tensor, in a thread.
            barrier: apply nothing before `finish`.
        """
        self.specs, self._weights, self._apply, self._barrier = list(specs), dict(weights), apply, barrier
        self._assemblers: dict[str, Assembler] = {}
        self._waiting = {spec.name: set(weights) for spec in specs}
        self._ready: list[str] = []
        self._applied: set[str] = set()
        self._lost: set[str] = set()
        self._used: set[str] = set()
        self._turn = asyncio.Lock()

    @property
    def mixed(self) -> bool:
        """Whether slices of a device that was lost are in part of the gradients."""
        return not self._used.isdisjoint(self._lost)

    def open(self, device: str, assembler: Assembler) -> None:
        """Note where the slices of `device` come together."""
        self._assemblers[device] = assembler

    async def sent(self, device: str, tensor: str) -> None:
        """Note that `device` has sent all of `tensor`."""
        waiting = self._waiting[tensor]
        waiting.discard(device)
        if not waiting and not self._barrier:
            self._ready.append(tensor)
            await self._drain()

    async def lose(self, device: str) -> None:
        """Note that nothing more comes from `device`."""
        self._lost.add(device)
        for tensor, waiting in self._waiting.items():
            if device in waiting:
                waiting.discard(device)
                if not waiting and not self._barrier and len(self._lost) < len(self._weights):
                    self._ready.append(tensor)
        await self._drain()

    async def finish(self, late: Collection[str] = ()) -> None:
        """Apply all that was not yet; nothing of the `late` devices goes in, which needs a barrier.

        Returns when everything is applied. If everyone was lost nothing more is.
        """
        if len(self._lost) < len(self._weights):
            self._ready += [spec.name for spec in self.specs if spec.name not in {*self._applied, *self._ready}]
            await self._drain(late)

    async def _drain(self, late: Collection[str] = ()) -> None:
        async with self._turn:
            while self._ready:
                names, self._ready = self._ready, []
                self._applied.update(names)
                await asyncio.to_thread(self._apply_all, names, late)

    def _apply_all(self, names: Sequence[str], late: Collection[str]) -> None:
        for name in names:
            self._apply(name, self._contributions(name, late))

    def _contributions(self, tensor: str, late: Collection[str]) -> list[Contribution]:
        found = []
        for device, weight in self._weights.items():
            assembler = self._assemblers.get(device)
            if assembler is None or device in late:
                continue
            array, spans = assembler.partial(tensor)
            if spans is not None and not spans:
                continue
            self._used.add(device)
            found.append(Contribution(weight, array, spans))
        return found
