from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from firmware_agent.common.errors import ConfigurationError, ProtocolError
from firmware_agent.common.frames.frame_fields import MAX_EXCHANGE_BYTES
from firmware_agent.common.send_queue import Piece, SendQueue, TransferSettings

sizes = st.none() | st.integers(1, 300)
sendings = st.just(TransferSettings()) | st.builds(TransferSettings, st.just("priority"), sizes, sizes)
tensors = st.dictionaries(st.integers(0, 6), st.integers(0, 500), min_size=1)


def drain(queue: SendQueue) -> list[Piece]:
    """Everything that waits, read by the peer at once."""
    pieces = []
    while (piece := queue.next()) is not None:
        pieces.append(piece)
        queue.acknowledge(piece.size_bytes)
    return pieces


@dataclass
class Model:
    """What may be asked of the queue, byte by byte: (exchange, order, offset) of every byte that waits."""

    waiting: set[tuple[int, int, int]] = field(default_factory=set)
    arrivals: list[tuple[int, int, int, int]] = field(default_factory=list)
    in_flight: int = 0


class Queues(RuleBasedStateMachine):
    """A queue beside a model of it, under any calls; blocks of 50 bytes become ready in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.sending = TransferSettings("priority", 100, 200)
        self.queue, self.model = SendQueue(self.sending), Model()
        self.offered: set[tuple[int, int, int]] = set()

    @rule(exchange=st.integers(0, 2), order=st.integers(0, 4), block=st.integers(0, 5), length=st.integers(0, 50))
    def offer(self, exchange: int, order: int, block: int, length: int) -> None:
        if (exchange, order, block) in self.offered:
            return
        self.offered.add((exchange, order, block))
        start = block * 50
        self.queue.offer(exchange, order, f"t{order}", start, start + length)
        self.model.waiting |= {(exchange, order, byte) for byte in range(start, start + length)}
        if length:
            self.model.arrivals.append((exchange, order, start, start + length))

    @rule()
    def next(self) -> None:
        piece, model, credit = self.queue.next(), self.model, self.sending.credit_bytes
        if piece is None:
            assert not model.waiting or (credit is not None and model.in_flight >= credit)
            return
        assert credit is None or model.in_flight < credit
        end = piece.offset + piece.size_bytes
        held = {(piece.exchange, piece.order, byte) for byte in range(piece.offset, end)}
        assert held
        assert held <= model.waiting  # so no byte leaves twice, nor one that was not offered
        assert piece.tensor == f"t{piece.order}"
        if self.sending.schedule == "priority":
            assert (piece.exchange, piece.order, piece.offset) == min(model.waiting)
            size = self.sending.slice_bytes
            if size is not None:
                assert piece.offset // size == (end - 1) // size
            if size is None or end % size:  # nothing else makes a piece shorter than its place on the grid
                assert (piece.exchange, piece.order, end) not in model.waiting
        else:
            waits = [range_ for range_ in model.arrivals if (*range_[:2], range_[3] - 1) in model.waiting]
            assert (piece.exchange, piece.order) == waits[0][:2]
            assert end == waits[0][3]
        model.waiting -= held
        model.in_flight += piece.size_bytes

    @rule(share=st.floats(0, 1))
    def acknowledge(self, share: float) -> None:
        size = round(share * self.model.in_flight)
        if size:
            self.queue.acknowledge(size)
            self.model.in_flight -= size

    @rule(sending=sendings)
    def change(self, sending: TransferSettings) -> None:
        self.queue.change(sending)
        self.sending = sending

    @invariant()
    def counts(self) -> None:
        assert self.queue.in_flight_bytes == self.model.in_flight
        assert self.queue.queued_bytes == len(self.model.waiting)
        assert self.queue.sending == self.sending


TestQueues = Queues.TestCase


@given(tensors, sendings)
def test_every_byte_leaves_once_and_the_queue_is_empty_then(waiting: dict[int, int], sending: TransferSettings) -> None:
    queue = SendQueue(sending)
    for order, size in waiting.items():
        queue.offer(1, order, f"t{order}", 0, size)
    pieces = drain(queue)
    for order, size in waiting.items():
        ranges = [(p.offset, p.offset + p.size_bytes) for p in pieces if p.order == order]
        assert [start for start, _ in ranges] == [0, *(end for _, end in ranges)][: len(ranges)]
        assert (ranges[-1][1] if ranges else 0) == size
    assert (queue.queued_bytes, queue.in_flight_bytes) == (0, 0)


@given(tensors, st.integers(1, 300), st.integers(1, 600))
def test_bytes_under_way_exceed_the_credit_by_less_than_a_slice(
    tensors: dict[int, int], size: int, credit: int
) -> None:
    queue = SendQueue(TransferSettings("priority", size, credit))
    for order, length in tensors.items():
        queue.offer(1, order, f"t{order}", 0, length)
    while queue.queued_bytes:
        while queue.next() is not None:
            assert queue.in_flight_bytes < credit + size
        assert queue.in_flight_bytes >= credit or not queue.queued_bytes
        queue.acknowledge(queue.in_flight_bytes)


@given(st.permutations([(order, block) for order in range(3) for block in range(4)]), st.integers(1, 500))
def test_slices_do_not_depend_on_the_ranges_that_were_offered(blocks: list[tuple[int, int]], size: int) -> None:
    whole, parts = SendQueue(TransferSettings("priority", size)), SendQueue(TransferSettings("priority", size))
    for order in range(3):
        whole.offer(1, order, f"t{order}", 0, 400)
    for order, block in blocks:
        parts.offer(1, order, f"t{order}", 100 * block, 100 * block + 100)
    assert drain(parts) == drain(whole)


def test_the_first_layer_overtakes_what_waits_but_not_what_has_left() -> None:
    queue = SendQueue(TransferSettings("priority", 100, 100))
    queue.offer(7, 1, "late", 0, 250)
    assert queue.next() == Piece(7, 1, 0, 100, "late")
    queue.offer(7, 0, "early", 0, 50)
    assert queue.next() is None
    queue.acknowledge(100)
    assert queue.next() == Piece(7, 0, 0, 50, "early")
    # Credit for 50 is left: a whole slice leaves on it.
    assert queue.next() == Piece(7, 1, 100, 100, "late")
    assert (queue.in_flight_bytes, queue.queued_bytes) == (150, 50)
    assert queue.next() is None


def test_an_older_exchange_leaves_before_a_newer_one_whatever_its_layers() -> None:
    queue = SendQueue(TransferSettings("priority"))
    queue.offer(2, 0, "a", 0, 10)
    queue.offer(1, 9, "b", 0, 10)
    assert [piece.exchange for piece in drain(queue)] == [1, 2]


def test_ties_are_broken_totally() -> None:
    """Two tensors in one place, neither order of arrival: a heap of unlike things would compare what cannot be."""
    one, other = SendQueue(TransferSettings("priority")), SendQueue(TransferSettings("priority"))
    for queue, names in ((one, "ab"), (other, "ba")):
        for name in names:
            queue.offer(1, 0, name, 0, 10)
    assert drain(one) == drain(other)


def test_fifo_sends_what_it_is_offered_whole_and_in_order() -> None:
    queue = SendQueue(TransferSettings())
    queue.offer(1, 5, "last", 0, MAX_EXCHANGE_BYTES)
    queue.offer(1, 0, "first", 10, 20)
    queue.offer(1, 0, "first", 20, 30)
    assert [(p.order, p.offset, p.size_bytes) for p in iter(queue.next, None)] == [
        (5, 0, MAX_EXCHANGE_BYTES), (0, 10, 10), (0, 20, 10)
    ]  # fmt: skip


def test_a_change_cuts_and_ranks_anew_what_waits() -> None:
    queue = SendQueue(TransferSettings())
    queue.offer(1, 5, "last", 0, 100)
    queue.offer(1, 0, "first", 0, 100)
    queue.change(TransferSettings("priority", 40, 1000))
    assert queue.next() == Piece(1, 0, 0, 40, "first")
    queue.change(TransferSettings("priority", 70, 1000))
    assert queue.next() == Piece(1, 0, 40, 30, "first")
    queue.change(TransferSettings())
    assert [piece[1:4] for piece in iter(queue.next, None)] == [(5, 0, 100), (0, 70, 30)]
    assert queue.in_flight_bytes == 200


@pytest.mark.parametrize("size", [0, -1, MAX_EXCHANGE_BYTES + 1, True, 1.5])
def test_no_slice_and_no_credit_is_of_such_a_size(size: int) -> None:
    with pytest.raises(ConfigurationError, match="a slice of"):
        TransferSettings("priority", slice_bytes=size)
    with pytest.raises(ConfigurationError, match="a credit of"):
        TransferSettings("priority", credit_bytes=size)


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown"):
        TransferSettings("lifo")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="drop the credit"):
        TransferSettings("fifo", credit_bytes=10)


def test_the_peer_cannot_have_read_more_than_is_under_way() -> None:
    queue = SendQueue(TransferSettings())
    queue.offer(1, 0, "a", 0, 10)
    queue.next()
    for size in (11, 0, -1):
        with pytest.raises(ProtocolError, match=f"{size} bytes are said to be read while 10"):
            queue.acknowledge(size)
    queue.acknowledge(10)
    assert queue.in_flight_bytes == 0


def test_a_range_that_is_none_is_refused_and_an_empty_one_is_nothing() -> None:
    queue = SendQueue(TransferSettings())
    for start, end in ((-1, 5), (5, 4)):
        with pytest.raises(ProtocolError, match="no range"):
            queue.offer(1, 0, "a", start, end)
    queue.offer(1, 0, "a", 5, 5)
    assert queue.next() is None
    assert queue.queued_bytes == 0
