"""One step's gradients as they come in: a block is applied as soon as everyone who takes part has sent it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from firmware_agent.common.frames.frame_fields import TensorSpec
from firmware_agent.common.slices import Array, Assembler, Spans
from host.training.sync.exchange.gradient_screen import GradientScreen
from host.training.sync.gradient_mean import TensorContribution
from host.training.tensor_ranges import TensorRange, cut_blocks, joined, overlapped

Apply = Callable[[TensorRange, Sequence[TensorContribution]], None]
"""Takes a block, or neighbours that are ready together as one, and its contributions, in participant order, as flat
arrays; it may compute for long."""


class GradientBuffer:
    """The gradients of one step.

    Without a barrier each block is applied as soon as all who take part have sent it, while others still come in. If
    one of them is beyond what the screen lets pass by then, it is held back until all have been judged. What a lost
    device has sent of a block that is not yet applied stays in it, slice by slice.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        weights: Mapping[str, int],
        apply: Apply,
        barrier: bool,
        block_bytes: int | None = None,
        screen: GradientScreen | None = None,
    ) -> None:
        """Begin with nothing.

        Args:
            specs: the tensors that everyone sends.
            weights: device -> records in its gradient, in participant order.
            apply: called once for each block, in a thread; for neighbours that are ready together at once.
            barrier: apply nothing before `finish`.
            block_bytes: size of a block; None for whole tensors.
            screen: looks at everything before it is applied; None for one without a history.
        """
        self.screen = screen or GradientScreen()
        self.specs, self._weights, self._apply, self._barrier = list(specs), dict(weights), apply, barrier
        self._blocks = cut_blocks(specs, block_bytes)
        self._assemblers: dict[str, Assembler] = {}
        # Who has still to send how many bytes of a block.
        self._waiting = {
            block: dict.fromkeys(weights, block.end - block.start)
            for blocks in self._blocks.values()
            for block in blocks
        }
        self._ready: list[TensorRange] = []
        self._taken: set[TensorRange] = set()
        self._lost: set[str] = set()
        self._used: set[str] = set()
        # Blocks that have been looked at and not applied, and each device's part in them.
        self._held: list[tuple[TensorRange, dict[str, TensorContribution]]] = []
        # Those who have been looked at in all blocks that are neither taken nor held.
        self._seen: set[str] = set()
        # Those of the lost of whom nothing more goes in, though it has come.
        self._refused: set[str] = set()
        self._drain: asyncio.Task[None] | None = None

    @property
    def mixed(self) -> bool:
        """Whether slices of a device that was lost are in part of the gradients."""
        return not self._used.isdisjoint(self._lost)

    def open(self, device: str, assembler: Assembler) -> None:
        """Note where the slices of `device` come together."""
        self._assemblers[device] = assembler
        for blocks in self._blocks.values():
            if not blocks[0].end:  # a tensor without a byte has no slice
                self._has_come(device, blocks[0], 0)

    def arrived(self, device: str, tensor: str, start: int, end: int) -> None:
        """Note that `device` has sent bytes [start, end) of `tensor`, none of which it had sent before."""
        for block in overlapped(self._blocks[tensor], start, end):
            self._has_come(device, block, min(end, block.end) - max(start, block.start))

    def lose(self, device: str) -> None:
        """Note that nothing more comes from `device`."""
        self._lost.add(device)
        for block, waiting in self._waiting.items():
            if device in waiting:
                self._settle(block)

    async def refuse(self, judged: Callable[[], Collection[str]]) -> None:
        """Keep out of the step, from now on, whom the screen refuses and whom `judged` does, called when all is seen.

        With a barrier that is before anything is applied. `judged` is called in the event loop.
        """
        while self._drain is not None:
            await self._drain
        await asyncio.to_thread(self._look)
        for device in judged():
            self._refused.add(device)
            self._lost.add(device)

    def _look(self) -> None:
        rest = joined(self._rest())
        for device, assembler in self._assemblers.items():
            if rest and device not in self._lost and assembler.complete:
                self._seen.add(device)
                for block in rest:
                    if not self.screen.look(device, block, *self._part(device, assembler, block)):
                        break

    def _rest(self) -> list[TensorRange]:
        return [block for blocks in self._blocks.values() for block in blocks if block not in self._taken]

    def gradients(self, device: str) -> Mapping[str, Array]:
        """Return what a device has sent in full; nothing of one that has not."""
        assembler = self._assemblers.get(device)
        return assembler.arrays() if assembler is not None and assembler.complete else {}

    async def finish(self, late: Collection[str] = ()) -> None:
        """Apply all that was not yet; nothing of the `late` devices goes in, which needs a barrier.

        Returns when everything is applied. If everyone was lost nothing more is.
        """
        while self._drain is not None:
            await self._drain
        if len(self._lost) < len(self._weights):
            rest = self._rest()
            self._taken.update(rest)
            await asyncio.to_thread(self._apply_all, rest, late)

    def _has_come(self, device: str, block: TensorRange, size_bytes: int) -> None:
        waiting = self._waiting[block]
        waiting[device] -= size_bytes
        if not waiting[device]:
            del waiting[device]
            self._settle(block)

    def _settle(self, block: TensorRange) -> None:
        """Have a block applied that everyone has sent who is not lost."""
        if self._barrier or block in self._taken or len(self._lost) == len(self._weights):
            return
        if self._waiting[block].keys() <= self._lost:
            self._taken.add(block)
            self._ready.append(block)
            if self._drain is None:
                self._drain = asyncio.ensure_future(self._apply_ready())

    async def _apply_ready(self) -> None:
        while self._ready:
            blocks, self._ready = self._ready, []
            await asyncio.to_thread(self._stream, blocks)
        self._drain = None  # one that failed stays, for `finish` to raise it

    def _stream(self, blocks: Sequence[TensorRange]) -> None:
        for block in self._together(blocks):
            parts = self._contributions(block, ())
            if all(map(self.screen.within, parts)):
                self._put_in(block, parts)
            else:
                self._held.append((block, parts))

    def _apply_all(self, rest: Sequence[TensorRange], late: Collection[str]) -> None:
        out = {*late, *self._refused}
        for block, parts in self._held:
            there = {device: part for device, part in parts.items() if device not in out and self._may_stay(device)}
            self._put_in(block, there)
        for block in self._together(rest):
            self._put_in(block, self._contributions(block, late))

    def _put_in(self, block: TensorRange, parts: Mapping[str, TensorContribution]) -> None:
        if parts or not (self.screen.refused or self._refused):
            self._used.update(parts)
            self._apply(block, list(parts.values()))

    def _may_stay(self, device: str) -> bool:
        """Return whether what has come of a device goes in: nobody judges one that is lost."""
        if device in self._lost and device not in self.screen.refused and not self.screen.within(device):
            self.screen.refuse_unjudged(device)
        return device not in self.screen.refused

    def _together(self, blocks: Sequence[TensorRange]) -> list[TensorRange]:
        """Return neighbours as one block: each call has its price. Not where a lost device's part may have holes."""
        return list(blocks) if self._lost else joined(blocks)

    def _contributions(self, block: TensorRange, late: Collection[str]) -> dict[str, TensorContribution]:
        found = {}
        for device, weight in self._weights.items():
            assembler = self._assemblers.get(device)
            if assembler is None or device in late or device in self._refused:
                continue
            array, spans = self._part(device, assembler, block)
            if spans is not None and not spans:
                continue
            if device not in self._seen:
                self.screen.look(device, block, array, spans)
            if self._may_stay(device):
                found[device] = TensorContribution(weight, array, spans)
        return found

    def _part(self, device: str, assembler: Assembler, block: TensorRange) -> tuple[Array, Spans | None]:
        """Return a block as far as a device has sent it, as a flat array, and which of its bytes have come."""
        array, spans = assembler.partial(block.tensor)
        items = slice(block.start // array.itemsize, block.end // array.itemsize)
        if spans is None or device not in self._waiting.get(block, ()):
            return array.reshape(-1)[items], None
        inside = [(max(start, block.start), min(end, block.end)) for start, end in spans]
        return array.reshape(-1)[items], [(s - block.start, e - block.start) for s, e in inside if s < e]
