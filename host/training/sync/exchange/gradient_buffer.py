"""One step's gradients as they come in: screened, and applied block by block as soon as everyone has sent a block."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from firmware_agent.common.frames.frame_fields import TensorSpec
from firmware_agent.common.slices import Array, Assembler, Spans
from host.core.tensor_sums import UNLIMITED, Norms, Scan, TensorContribution, combine, squares
from host.training.contributions import Reason, Refusal, not_finite
from host.training.host_optimiser import TrainedModel
from host.training.sync.exchange.weight_sender import StepTensors
from host.training.tensor_ranges import TensorRange, cut_blocks, joined, overlapped


class GradientScreen:
    """What is seen of a step's gradients while they come in, and whose may be stepped before all have been judged.

    Attributes:
        refused: device -> why; nothing more of it goes into the step.
        limits: up to which a device's part may be stepped before it is judged, or if it never is, for it is lost.
    """

    def __init__(self, buffers: Mapping[str, Array] | None = None, limits: Norms = UNLIMITED) -> None:
        """Begin with nothing; `buffers` are those that the devices were sent, in the memory where they are replaced."""
        self.refused: dict[str, Refusal] = {}
        self.limits = limits
        self._buffers = dict(buffers or {})
        self._squares: defaultdict[str, float] = defaultdict(float)
        self._buffer_squares: defaultdict[str, float] = defaultdict(float)
        self._count_squares: defaultdict[str, float] = defaultdict(float)

    def look(self, device: str, block: TensorRange, array: Array, spans: Spans | None = None) -> bool:
        """Look at a device's block, a flat array, once; return whether its values are finite.

        Of bytes that have not come (see `host.core.tensor_sums.TensorContribution`) nothing is asked.
        """
        if device in self.refused:
            return False
        buffer, size = self._buffers.get(block.tensor), array.itemsize
        start = None if buffer is None else buffer.reshape(-1)[block.start // size : block.end // size]
        parts = [slice(None)] if spans is None else [slice(-(-s // size), max(0, e // size)) for s, e in spans]
        for part in parts:
            finite, total = squares(array[part], None if start is None else start[part])
            if not finite:
                self.refused[device] = not_finite(block.tensor)
                return False
            if start is not None:
                floating = np.issubdtype(array.dtype, np.floating)
                (self._buffer_squares if floating else self._count_squares)[device] += total
            elif np.issubdtype(array.dtype, np.floating):
                self._squares[device] += total
        return True

    def within(self, device: str) -> bool:
        """Return whether all that was seen of a device is within the limits."""
        return all(norm <= limit for norm, limit in zip(self.scan(device).norms, self.limits, strict=True))

    def refuse_unjudged(self, device: str) -> None:
        """Refuse a device that goes beyond the limits, and is lost, so that nobody else judges it."""
        norms, most = self.scan(device).norms, self.limits
        self.refused[device] = Refusal(
            Reason.NORM,
            f"it was lost, and what has come of its gradient has the norm {norms.norm:.3g}, of its buffers' change "
            f"{norms.buffer_norm:.3g}, where {most.norm:.3g} and {most.buffer_norm:.3g} are the most that is "
            "taken of such a one",
        )

    def scan(self, device: str) -> Scan:
        """Return what was seen of a device's gradients so far."""
        why = self.refused.get(device)
        sums = self._squares, self._buffer_squares, self._count_squares
        return Scan(Norms(*(math.sqrt(each[device]) for each in sums)), why.tensor if why is not None else "")


Apply = Callable[[TensorRange, Sequence[TensorContribution]], None]
"""Takes a block, or neighbours that are ready together as one, and its contributions, in participant order, as flat
arrays; it may compute for long."""


class BlockArrivals:
    """What each device has sent of each block of a step's gradients.

    Attributes:
        assemblers: device -> where its slices come together.
        lost: devices of which nothing more comes.
        taken: blocks that are taken out, to be applied.
    """

    def __init__(self, specs: Sequence[TensorSpec], devices: Collection[str], block_bytes: int | None) -> None:
        """Begin with nothing; None for `block_bytes` leaves tensors whole."""
        self.assemblers: dict[str, Assembler] = {}
        self.lost: set[str] = set()
        self.taken: set[TensorRange] = set()
        self._devices, self._blocks = len(devices), cut_blocks(specs, block_bytes)
        # Who has still to send how many bytes of a block.
        self._waiting = {
            block: dict.fromkeys(devices, block.end - block.start)
            for blocks in self._blocks.values()
            for block in blocks
        }

    @property
    def all_lost(self) -> bool:
        """Whether nobody is left."""
        return len(self.lost) == self._devices

    def open(self, device: str, assembler: Assembler) -> list[TensorRange]:
        """Note where the slices of a device come together; return blocks that it has sent with that: empty ones."""
        self.assemblers[device] = assembler
        empty = [blocks[0] for blocks in self._blocks.values() if not blocks[0].end]  # has no slice
        return [block for block in empty if self._has_come(device, block, 0)]

    def arrived(self, device: str, tensor: str, start: int, end: int) -> list[TensorRange]:
        """Note bytes of a tensor; return blocks of which the device has sent all with them."""
        return [
            block
            for block in overlapped(self._blocks[tensor], start, end)
            if self._has_come(device, block, min(end, block.end) - max(start, block.start))
        ]

    def lose(self, device: str) -> list[TensorRange]:
        """Note that nothing more comes from a device; return the blocks that it has not sent."""
        self.lost.add(device)
        return [block for block, waiting in self._waiting.items() if device in waiting]

    def take_complete(self, blocks: Iterable[TensorRange]) -> list[TensorRange]:
        """Take out those of the blocks that everyone has sent who is not lost, if anyone is left."""
        due = () if self.all_lost else blocks
        complete = [b for b in due if b not in self.taken and self._waiting[b].keys() <= self.lost]
        self.taken.update(complete)
        return complete

    def rest(self) -> list[TensorRange]:
        """Return the blocks that are not taken out."""
        return [block for blocks in self._blocks.values() for block in blocks if block not in self.taken]

    def part(self, device: str, block: TensorRange) -> tuple[Array, Spans | None]:
        """Return a block as far as a device has sent it, as a flat array, and which of its bytes have come."""
        array, spans = self.assemblers[device].partial(block.tensor)
        items = slice(block.start // array.itemsize, block.end // array.itemsize)
        if spans is None or device not in self._waiting.get(block, ()):
            return array.reshape(-1)[items], None
        inside = [(max(start, block.start), min(end, block.end)) for start, end in spans]
        return array.reshape(-1)[items], [(s - block.start, e - block.start) for s, e in inside if s < e]

    def _has_come(self, device: str, block: TensorRange, size_bytes: int) -> bool:
        """Return whether a device has sent all of a block with so many bytes more."""
        waiting = self._waiting[block]
        waiting[device] -= size_bytes
        if waiting[device]:
            return False
        del waiting[device]
        return True


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

    def step_all(self) -> None:
        """Step by the whole gradient, where it was kept."""
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
        self._arrivals = BlockArrivals(specs, weights, block_bytes)
        self._ready: list[TensorRange] = []
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
        return not self._used.isdisjoint(self._arrivals.lost)

    def open(self, device: str, assembler: Assembler) -> None:
        """Note where the slices of `device` come together."""
        self._settle(self._arrivals.open(device, assembler))

    def arrived(self, device: str, tensor: str, start: int, end: int) -> None:
        """Note that `device` has sent bytes [start, end) of `tensor`, none of which it had sent before."""
        self._settle(self._arrivals.arrived(device, tensor, start, end))

    def lose(self, device: str) -> None:
        """Note that nothing more comes from `device`."""
        self._settle(self._arrivals.lose(device))

    async def refuse(self, judged: Callable[[], Collection[str]]) -> None:
        """Keep out of the step, from now on, whom the screen refuses and whom `judged` does, called when all is seen.

        With a barrier that is before anything is applied. `judged` is called in the event loop.
        """
        while self._drain is not None:
            await self._drain
        await asyncio.to_thread(self._look)
        for device in judged():
            self._refused.add(device)
            self._arrivals.lost.add(device)

    def _look(self) -> None:
        rest = joined(self._arrivals.rest())
        for device, assembler in self._arrivals.assemblers.items():
            if rest and device not in self._arrivals.lost and assembler.complete:
                self._seen.add(device)
                for block in rest:
                    if not self.screen.look(device, block, *self._arrivals.part(device, block)):
                        break

    def gradients(self, device: str) -> Mapping[str, Array]:
        """Return what a device has sent in full; nothing of one that has not."""
        assembler = self._arrivals.assemblers.get(device)
        return assembler.arrays() if assembler is not None and assembler.complete else {}

    async def finish(self, late: Collection[str] = ()) -> None:
        """Apply all that was not yet; nothing of the `late` devices goes in, which needs a barrier.

        Returns when everything is applied. If everyone was lost nothing more is.
        """
        while self._drain is not None:
            await self._drain
        if not self._arrivals.all_lost:
            rest = self._arrivals.rest()
            self._arrivals.taken.update(rest)
            await asyncio.to_thread(self._apply_all, rest, late)

    def _settle(self, blocks: Iterable[TensorRange]) -> None:
        """Have those of the blocks applied that everyone has sent who is not lost."""
        if self._barrier:
            return
        self._ready += self._arrivals.take_complete(blocks)
        if self._ready and self._drain is None:
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
        if device in self._arrivals.lost and device not in self.screen.refused and not self.screen.within(device):
            self.screen.refuse_unjudged(device)
        return device not in self.screen.refused

    def _together(self, blocks: Sequence[TensorRange]) -> list[TensorRange]:
        """Return neighbours as one block: each call has its price. Not where a lost device's part may have holes."""
        return list(blocks) if self._arrivals.lost else joined(blocks)

    def _contributions(self, block: TensorRange, late: Collection[str]) -> dict[str, TensorContribution]:
        found = {}
        for device, weight in self._weights.items():
            if device not in self._arrivals.assemblers or device in late or device in self._refused:
                continue
            array, spans = self._arrivals.part(device, block)
            if spans is not None and not spans:
                continue
            if device not in self._seen:
                self.screen.look(device, block, array, spans)
            if self._may_stay(device):
                found[device] = TensorContribution(weight, array, spans)
        return found
