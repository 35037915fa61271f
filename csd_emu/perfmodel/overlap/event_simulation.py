"""Synchronous steps over a simulated link, event by event: which layer waits for which slice.

The real send queue (`firmware_agent.common.send_queue`) stands at the host's and at the drives' ends. Who waits for
whom:

* A drive computes one thing at a time: the forward pass from the first layer to the last, then the backward pass from
  the last to the first. A layer's gradients are offered to the drive's queue when its backward pass ends.
* A drive's queue puts pieces on its pipe to the host while it has credit (`csd_emu.perfmodel.overlap.pipes`). A piece
  is read when it arrives; one latency later the sender knows, and the credit is back. On a link that serves in turns
  the acknowledgement goes through the pipe the other way, behind what is under way there.
* The host steps *blocks*, fixed ranges of a tensor, as soon as every drive's bytes of one are in; under `fifo` it steps
  whole tensors. What it has stepped it offers to the queue of every drive, which works in the same way.
* A layer's next forward pass waits for that layer's parameters alone. There is no other barrier, but for a model that
  is cut (`csd_emu.perfmodel.overlap.split_exchange`): the drives have its first layers, push the activations behind
  these when their forward passes have ended, and begin their backward passes when they have pulled the gradient of
  these activations. The host computes in between, once all have arrived.

A step's settings hold for its gradients and for the parameters made of them. They change when a drive begins the step's
backward pass and when the host has stepped the first of it; the queues concerned are empty then.

The drives begin with all parameters, so the first steps differ from those that follow. Left out: losses and TCP's own
window, the records and the announcement of a step, and that the host's streams share its processors: what a slice costs
there must be part of the link's `slice_seconds`.

Paper: Peng et al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler), SOSP
2019. A slice takes theta + size / B (algorithms 6.2 of the design notes).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from csd_emu.perfmodel.overlap.carried import Carried
from csd_emu.perfmodel.overlap.layer_work import Costs
from csd_emu.perfmodel.overlap.pipes import make_pipes
from csd_emu.perfmodel.overlap.simulated_array import SimulatedArray, group_members
from csd_emu.perfmodel.overlap.simulated_drive import BACKWARD, Computed, DriveCompute
from csd_emu.perfmodel.overlap.simulated_link import LinkTrace, SharedLink, constant
from csd_emu.perfmodel.overlap.split_exchange import SplitExchangeState
from csd_emu.perfmodel.overlap.stepped_ranges import BY_BLOCKS, BlockStepping, HostBlocks, SteppedRange
from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.send_queue import Piece, SendQueue, TransferSettings

PUSH, PULL = 0, 1


class Transfer(NamedTuple):
    """A slice that has arrived; `direction` is `PUSH` to the host or `PULL` from it."""

    direction: int
    carried: Carried


class Passed(NamedTuple):
    """A layer's pass on the drives of one group."""

    group: int
    computed: Computed


class Simulation:
    """Steps one after the other, each with settings of its own; one instance per run.

    Attributes:
        groups: (drives,) which group each drive is of; the drives of one do the same.
        record: whether slices and passes are kept from now on.
        transfers: the slices that have arrived.
        passes: of all layers.
        stepped: blocks that the host has stepped.
        turned: (begin, end) of what the host has computed behind a cut, recorded or not.
        now_seconds: how far it has come.
    """

    def __init__(
        self,
        array: SimulatedArray,
        link: SharedLink | LinkTrace,
        sending: TransferSettings,
        stepping: BlockStepping = BY_BLOCKS,
        *,
        merge: bool = True,
        record: bool = False,
        late: Callable[[], float] | None = None,
    ) -> None:
        """Begin at 0.

        Args:
            array: who takes part.
            link: as it is, or as it changes in time.
            sending: of the first step.
            stepping: how the host steps.
            merge: compute drives with equal costs and links once. The result is the same; a test holds that. Never done
                on a link that serves in turns.
            record: keep every slice and every layer's pass.
            late: by how many seconds a drive's pass ends too late, asked anew for each pass; it does not add up
                (`DriveCompute`). Drives are not merged then. None for never.
        """
        trace = link if isinstance(link, LinkTrace) else constant(link)
        self._changes = deque(zip(trace.starts[1:], trace.links[1:], strict=True))
        self._link = trace.links[0]
        merge = merge and late is None and not self._link.turn_bytes
        unlike, weights, self.groups = group_members(array.members, merge)
        turn = array.turn
        self._drives = [DriveCompute(part, turn is not None, late) for part, _, _ in unlike]
        # The host's own part comes last, and has no queue.
        self._local = len(unlike)
        if array.host is not None:
            self._drives.append(DriveCompute(array.host, turn is not None))
        self._own = [side for _, side, _ in unlike]
        self._pipes = tuple(make_pipes(weights, self._own, self._link) for _ in (PUSH, PULL))
        self._queues = tuple([SendQueue(sending) for _ in unlike] for _ in (PUSH, PULL))
        # Read by the peer, and known to be so at this time: (seconds, group, bytes).
        self._read: tuple[list[tuple[float, int, int]], ...] = ([], [])
        self._names, self._sizes, self._orders = _number_tensors(unlike[0][0])
        self._layer_of = [layer for layer, orders in enumerate(self._orders) for _ in orders]
        self._host = HostBlocks(self._sizes, len(self._drives), stepping)
        self._turn = None if turn is None else SplitExchangeState([each for _, _, each in unlike], turn.host_seconds)
        self._sendings, self._wakes = [sending], list[tuple[int, int]]()
        self.record, self.transfers, self.passes = record, list[Transfer](), list[Passed]()
        self.stepped, self.turned = list[SteppedRange](), list[tuple[float, float]]()
        self.now_seconds = self._begun_seconds = 0.0

    def step(self, following: TransferSettings | None = None) -> float:
        """Run until all drives have begun the next step's forward pass; return the seconds since they had begun this.

        Args:
            following: settings of the next step, announced during this one; None leaves them as they are.
        """
        self._sendings.append(following or self._sendings[-1])
        number = len(self._sendings) - 1
        for drive in self._drives:
            while len(drive.begun_seconds) <= number:
                self._advance()
        begun = max(drive.begun_seconds[number] for drive in self._drives)
        seconds, self._begun_seconds = begun - self._begun_seconds, begun
        return seconds

    def skip_forward(self) -> None:
        """Begin with the end of the first forward passes, before anything else has happened."""
        for drive in self._drives:
            drive.skip_forward()

    def turn(self) -> float:
        """Run until the host has computed behind the cut once more; return when. To be asked instead of `step`."""
        self._sendings.append(self._sendings[-1])
        before = len(self.turned)
        while len(self.turned) == before:
            self._advance()
        return self.turned[-1][1]

    @property
    def steps(self) -> int:
        """How many steps are over; the next one, which has this number, has begun on all drives."""
        return len(self._sendings) - 1

    def begun_seconds(self, step: int) -> list[float]:
        """Return when each group began a step that all have begun; the host's own part comes last."""
        return [drive.begun_seconds[step] for drive in self._drives]

    def change_link(self, link: SharedLink) -> None:
        """Go on with another link from now on; a trace's next change still comes."""
        self._link = link
        for pipes in self._pipes:
            pipes.change(link, self.now_seconds)

    def _advance(self) -> None:
        """Go on to the next moment in which anything happens, do all of it, then let the queues send."""
        now = self._next_seconds()
        if self._changes and self._changes[0][0] <= now:
            self.now_seconds, link = self._changes.popleft()
            self.change_link(link)
            return
        (push, pull), (pushed, pulled) = self._pipes, self._read
        self.now_seconds = now
        if push.next_seconds <= now:
            self._push(push.advance(now), now)
        if self._host.next_seconds <= now:
            self._offer_stepped(now)
        if pull.next_seconds <= now:
            self._pull(pull.advance(now), now)
        self._compute(now)
        if self._turn is not None:
            self._go_round(self._turn, now)
        if pushed and pushed[0][0] <= now:
            self._acknowledge(PUSH, now)
        if pulled and pulled[0][0] <= now:
            self._acknowledge(PULL, now)
        if self._wakes:
            self._send(now)

    def _next_seconds(self) -> float:
        """Return when anything happens next, but for changes of the link."""
        (push, pull), (pushed, pulled) = self._pipes, self._read
        now = min([drive.until_seconds for drive in self._drives])
        now = min(now, push.next_seconds, pull.next_seconds, self._host.next_seconds)
        if self._turn is not None and self._turn.ready_seconds < now:
            now = self._turn.ready_seconds
        if pushed and pushed[0][0] < now:
            now = pushed[0][0]
        if pulled and pulled[0][0] < now:
            now = pulled[0][0]
        if now == math.inf:  # no settings lead here; better an end than a loop without one
            raise ProtocolError("a drive waits for parameters, and nothing is under way or left to be sent")
        return now

    def _push(self, arrived: Sequence[Carried], now: float) -> None:
        """Let the host take gradients."""
        for carried in arrived:
            piece = carried.piece
            if self._took_acknowledgement(PULL, carried, now):
                continue
            if self._turn is not None and piece.order == len(self._sizes):
                self._turn.pushed(carried.group, piece.size_bytes)
            else:
                whole = self._sendings[piece.exchange].schedule == "fifo"
                self._host.take(carried.group, piece.exchange, piece.order, piece.size_bytes, whole, now)
            self._answer(PUSH, carried, now)

    def _pull(self, arrived: Sequence[Carried], now: float) -> None:
        """Let drives take parameters."""
        for carried in arrived:
            piece = carried.piece
            if self._took_acknowledgement(PUSH, carried, now):
                continue
            if self._turn is not None and piece.order == len(self._sizes):
                if self._turn.pulled(carried.group, piece.size_bytes):
                    self._drives[carried.group].turn(now)
            else:
                self._drives[carried.group].arrive(self._layer_of[piece.order], piece.size_bytes, now)
            self._answer(PULL, carried, now)

    def _answer(self, direction: int, carried: Carried, now: float) -> None:
        """Have the peer told that a slice was read: behind what is under way to it, or a latency later."""
        if self.record:
            self.transfers.append(Transfer(direction, carried))
        group, size_bytes = carried.group, carried.piece.size_bytes
        if self._link.turn_bytes:
            self._pipes[1 - direction].put(group, Piece(-1, -1, size_bytes, 0, ""), now)
            return
        known = now + self._link.latency_seconds + self._own[group].latency_seconds
        heapq.heappush(self._read[direction], (known, group, size_bytes))

    def _took_acknowledgement(self, direction: int, carried: Carried, now: float) -> bool:
        """Take an acknowledgement of what went in `direction`, if it is one; its `offset` says of how many bytes."""
        if carried.piece.exchange >= 0:
            return False
        heapq.heappush(self._read[direction], (now, carried.group, carried.piece.offset))
        return True

    def _acknowledge(self, direction: int, now: float) -> None:
        read, queues = self._read[direction], self._queues[direction]
        while read and read[0][0] <= now:
            _, group, size_bytes = heapq.heappop(read)
            queues[group].acknowledge(size_bytes)
            self._wakes.append((direction, group))

    def _compute(self, now: float) -> None:
        """End the passes that end now; those that take no time with them, for all of it is offered at once."""
        for group, drive in enumerate(self._drives):
            if drive.until_seconds > now:
                continue
            left = 2 * len(self._orders)
            while drive.until_seconds <= now and left:
                left -= 1
                done = drive.end(now)
                if done.phase == BACKWARD:
                    self._offer_gradients(group, done)
                if self.record:
                    self.passes.append(Passed(group, done))

    def _go_round(self, turn: SplitExchangeState, now: float) -> None:
        """Send activations of forward passes that have ended; once the host has computed, their gradients."""
        for group, drive in enumerate(self._drives):
            if drive.turning:
                drive.turning = False
                turn.reach(group)
                if group != self._local:
                    self._offer_crossing(PUSH, group, turn.push_bytes[group])
        if turn.begin(now, len(self._drives)):
            self.turned.append((now - turn.host_seconds, now))
            for group in range(self._local):
                self._offer_crossing(PULL, group, turn.pull_bytes[group])
            for drive in self._drives[self._local :]:
                drive.turn(now)

    def _offer_crossing(self, direction: int, group: int, size_bytes: int) -> None:
        """Offer what crosses a cut, behind all tensors: nothing else of this drive's is left to be sent that way."""
        step = len(self._drives[group].begun_seconds) - 1
        self._queues[direction][group].offer(step, len(self._sizes), "activations", 0, size_bytes)
        self._wakes.append((direction, group))

    def _offer_gradients(self, group: int, done: Computed) -> None:
        step = done.step
        if group == self._local:
            whole = self._sendings[step].schedule == "fifo"
            for order in reversed(self._orders[done.layer]):
                self._host.take(group, step, order, self._sizes[order], whole, done.end_seconds)
            return
        queue = self._queues[PUSH][group]
        if done.layer == len(self._orders) - 1 and queue.sending != self._sendings[step]:
            queue.change(self._sendings[step])
        for order in reversed(self._orders[done.layer]):
            queue.offer(step, order, self._names[order], 0, self._sizes[order])
        self._wakes.append((PUSH, group))

    def _offer_stepped(self, now: float) -> None:
        queues = self._queues[PULL]
        for ready in self._host.advance(now):
            if self.record:
                self.stepped.append(ready)
            sending = self._sendings[ready.exchange]
            for group, queue in enumerate(queues):
                if queue.sending != sending:  # empty: all drives had all parameters of the step before
                    queue.change(sending)
                queue.offer(ready.exchange, ready.order, self._names[ready.order], ready.start, ready.end)
                self._wakes.append((PULL, group))
            for drive in self._drives[self._local :]:
                drive.arrive(self._layer_of[ready.order], ready.end - ready.start, now)

    def _send(self, now: float) -> None:
        """Put on the pipes what the queues let go."""
        for direction, group in self._wakes:
            queue, pipes = self._queues[direction][group], self._pipes[direction]
            while (piece := queue.next()) is not None:
                pipes.put(group, piece, now)
        self._wakes.clear()


def _number_tensors(model: Costs) -> tuple[list[str], list[int], list[list[int]]]:
    """Return the names and bytes of the tensors in the order of first use, and their numbers, by layer."""
    tensors = [tensor for layer in model for tensor in layer.tensors]
    order = count()
    orders = [[next(order) for _ in layer.tensors] for layer in model]
    return [tensor.name for tensor in tensors], [tensor.size_bytes for tensor in tensors], orders
