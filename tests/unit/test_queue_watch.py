"""A watched queue sends what a plain one sends, and tells of every byte once."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.queue_watch import Watched, WatchedQueue
from firmware_agent.send_queue import Piece, Sending, SendQueue


class Offer(NamedTuple):
    order: int
    size_bytes: int


SENDINGS = st.one_of(
    st.just(Sending()),
    st.builds(lambda size, credit: Sending("priority", size, credit), st.integers(1, 50), st.integers(1, 100)),
)
# Offers, attempts to send (0), and acknowledgements of at most so many bytes (below 0).
ACTIONS = st.lists(
    st.one_of(st.builds(Offer, st.integers(0, 5), st.integers(1, 120)), st.integers(-80, 0)), max_size=60
)


@given(SENDINGS, ACTIONS)
def test_it_only_watches(sending: Sending, actions: list[Offer | int]) -> None:
    clock, told = [0.0], list[Watched]()
    plain, watched = SendQueue(sending), WatchedQueue(sending, lambda: clock[0], told.append)
    sent: list[Piece] = []
    for exchange, action in enumerate([*actions, *[0, -(10**9)] * 5000 * bool(actions)]):
        clock[0] += 1
        if isinstance(action, Offer):
            for queue in (plain, watched):
                queue.offer(exchange, action.order, f"t{action.order}", 0, action.size_bytes)
        elif action == 0:
            piece = plain.next()
            assert watched.next() == piece
            sent += [] if piece is None else [piece]
        elif plain.in_flight_bytes:
            for queue in (plain, watched):
                queue.acknowledge(min(-action, queue.in_flight_bytes))
        if exchange > len(actions) and not plain.queued_bytes and not plain.in_flight_bytes:
            break
    assert [each.piece for each in told] == sent
    assert all(each.ready_seconds < each.left_seconds < each.read_seconds for each in told)
    assert sum(each.piece.size_bytes for each in told) == sum(a.size_bytes for a in actions if isinstance(a, Offer))
    assert not watched._ready


def test_ready_is_when_the_last_byte_of_a_piece_was() -> None:
    clock, told = [0.0], list[Watched]()
    queue = WatchedQueue(Sending("priority", 100, 1000), lambda: clock[0], told.append)
    for moment, (start, end) in enumerate([(0, 50), (50, 150), (150, 200)], 1):
        clock[0] = float(moment)
        queue.offer(1, 0, "t", start, end)
    clock[0] = 10.0
    assert [queue.next(), queue.next()] == [Piece(1, 0, 0, 100, "t"), Piece(1, 0, 100, 100, "t")]
    clock[0] = 11.0
    queue.acknowledge(200)
    assert [each.ready_seconds for each in told] == [2.0, 3.0]
