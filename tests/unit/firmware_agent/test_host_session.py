"""What a drive has to send: which goes first, what is kept back, and a peer that never acknowledges."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.session_frames import Disturbed, Failed, Received, Welcome
from firmware_agent.common.send_queue import Piece, TransferSettings
from firmware_agent.common.wire import decode, encode, unpack
from firmware_agent.host_session import Outbox


def label(piece: Piece) -> Iterator[bytes]:
    """A frame that tells a piece: what a slice would be is not the outbox's business."""
    yield encode(Disturbed(piece.order * 1000 + piece.offset))


class Clock:
    """Seconds that pass when somebody looks."""

    def __init__(self, step: float = 0.0) -> None:
        self.seconds, self._step = 0.0, step

    def __call__(self) -> float:
        self.seconds += self._step
        return self.seconds


def outbox(sending: TransferSettings, clock: Clock | None = None) -> tuple[Outbox, list[str]]:
    stalls: list[str] = []
    made = Outbox(4, clock or Clock())
    made.send_slices(label, 5.0, stalls.append)
    made.change(sending)
    return made, stalls


def drained(box: Outbox, count: int) -> list[object]:
    frames: list[object] = []
    while len(frames) < count:
        frames += unpack(next(box))
    return frames


def test_messages_go_before_acknowledgements_before_slices_before_what_was_put_last() -> None:
    box, _ = outbox(TransferSettings("priority", 4))
    box.offer(1, 2, "late", 8)
    box.offer(1, 1, "early", 4)
    box.put_last(lambda: encode(Welcome()))
    box.add_read(7, 5)
    box.add_read(7, 6)
    assert box.put(encode(Disturbed(9)), 0.0)
    want = [Disturbed(9), Received(7, 11), Disturbed(1000), Disturbed(2000), Disturbed(2004), Welcome()]
    assert drained(box, 6) == want


def test_an_acknowledgement_does_not_wait_in_a_message_for_the_slice_behind_it() -> None:
    box = Outbox(4, Clock())
    box.send_slices(lambda piece: iter([encode(Failed("w", "x" * piece.size_bytes))]), 5.0, lambda _: None)
    box.change(TransferSettings("priority", 10_000))
    box.offer(1, 1, "w", 20_000)
    box.add_read(7, 5)
    assert decode(next(box)) == Received(7, 5)
    box.add_read(7, 6)
    assert isinstance(decode(next(box)), Failed)
    assert decode(next(box)) == Received(7, 6)


def test_nothing_that_was_put_last_is_passed_by_slices_that_were_offered_later() -> None:
    box, _ = outbox(TransferSettings("priority", 4))
    box.offer(1, 1, "w", 4)
    box.put_last(lambda: encode(Welcome()))
    assert drained(box, 2) == [Disturbed(1000), Welcome()]
    box.put_last(lambda: encode(Welcome()))
    box.offer(2, 1, "w", 4)
    assert drained(box, 2) == [Welcome(), Disturbed(1000)]


@given(credit=st.integers(1, 20), slice_bytes=st.integers(1, 8), sizes=st.lists(st.integers(1, 20), max_size=4))
def test_credit_holds_slices_back_until_the_peer_has_read(credit: int, slice_bytes: int, sizes: list[int]) -> None:
    box, _ = outbox(TransferSettings("priority", slice_bytes, credit))
    for order, size in enumerate(sizes, 1):
        box.offer(1, order, f"t{order}", size)
    want = [order * 1000 + at for order, size in enumerate(sizes, 1) for at in range(0, size, slice_bytes)]
    got: list[int] = []
    while len(got) < len(want):
        here = [frame.weight for frame in unpack(next(box)) if isinstance(frame, Disturbed)]
        got += here
        taken = sum(min(slice_bytes, sizes[each // 1000 - 1] - each % 1000) for each in here)
        assert taken < credit + slice_bytes
        box.acknowledge(taken)
    assert got == want
    with pytest.raises(ProtocolError, match="under way"):
        box.acknowledge(1)


def test_a_peer_that_never_acknowledges_is_told_of_once_and_ends_the_iteration() -> None:
    box, stalls = outbox(TransferSettings("priority", 4, 4), Clock(2.0))
    box.offer(1, 1, "w", 12)
    assert decode(next(box)) == Disturbed(1000)
    with pytest.raises(StopIteration):
        next(box)
    assert stalls == ["the host has acknowledged none of 4 bytes under way for 5 s, and 8 more wait"]


def test_whoever_waits_is_woken_by_what_comes_and_by_the_end() -> None:
    box, _ = outbox(TransferSettings())
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.extend(box))
    reader.start()
    box.add_read(1, 3)
    box.put(encode(Welcome()), 1.0)
    while len([frame for message in list(got) for frame in unpack(message)]) < 2:
        threading.Event().wait(0.001)
    box.close()
    reader.join(10.0)
    assert not reader.is_alive()
    assert {type(frame) for message in got for frame in unpack(message)} == {Welcome, Received}


def test_a_full_outbox_makes_its_sender_wait() -> None:
    box = Outbox(2)
    assert box.put(b"a", 0.0)
    assert box.put(b"b", 0.0)
    assert not box.put(b"c", 0.0)
