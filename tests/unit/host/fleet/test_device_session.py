import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import CsdError, DeviceFailed, DeviceLost, DeviceSilent, ProtocolError
from firmware_agent.common.frames.measure_frames import Measured
from firmware_agent.common.frames.session_frames import Failed, Job, Ready, Slice, Tensors, Train, Trained
from firmware_agent.common.slices import Array, Assembler, cut_slices, make_slice, tensor_specs
from firmware_agent.common.wire import AnyFrame, encode, pack
from tests.support.fakes import JOB, SECONDS, Answer, Cut, FakeDrive

WEIGHTS: dict[str, Array] = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, np.float32)}
SPECS = tensor_specs(WEIGHTS)


def soon() -> Deadline:
    """One that a test never reaches unless the code hangs."""
    return Deadline(30.0)


async def trained(drive: FakeDrive) -> tuple[dict[str, Array], Trained]:
    """Send WEIGHTS and a task as the host does, and collect what comes back."""
    drive.pump()
    for answer in drive.tensors(1, WEIGHTS):
        assert not isinstance(answer, bytes)
        await drive.session.send(answer)
    await drive.session.send(Train(1, 1))
    return await drive.session.receive_tensors(1, SPECS, Trained, soon())


async def test_a_job_and_a_round_there_and_back() -> None:
    drive = FakeDrive()
    drive.pump()
    await drive.session.send(JOB)
    assert await drive.session.expect(Ready, soon()) == Ready(5)
    weights, frame = await trained(drive)
    np.testing.assert_array_equal(weights["w"], WEIGHTS["w"] + 1)
    assert frame == Trained(1, 10, 1, 0.5, SECONDS, 640)
    assert drive.session.sent_bytes == sum(map(len, drive.written))
    assert drive.session.received_bytes == sum(map(len, drive.sent))
    assert not drive.session.closed


class AnswersDuringWrite(FakeDrive):
    """Has answered before the host's write returns, as a drive may on a busy host."""

    async def write(self, message: bytes) -> None:
        await super().write(message)
        await asyncio.Event().wait()


async def test_bytes_count_as_sent_once_the_device_can_answer_them() -> None:
    drive = AnswersDuringWrite()
    drive.pump()
    sending = asyncio.ensure_future(drive.session.send(JOB))
    assert await drive.session.expect(Ready, soon()) == Ready(5)
    assert drive.session.sent_bytes == len(encode(JOB))
    sending.cancel()


class Misbehaves(FakeDrive):
    """Answers a task with the given frames."""

    def __init__(self, *answers: Answer, cut: bool = False) -> None:
        super().__init__()
        self._answers, self._cut = answers, cut

    def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        yield from self._answers
        if self._cut:
            raise Cut


TENSORS = Tensors(1, SPECS)
DONE = Trained(1, 10, 2, 0.5, SECONDS, 640)


@pytest.mark.parametrize(
    ("drive", "match"),
    [
        (Misbehaves(DONE), "sent Trained where Tensors was due"),
        (Misbehaves(TENSORS, DONE), "36 bytes missing"),
        (Misbehaves(Tensors(1, SPECS[:1])), "1 tensors in place of 2"),
        (Misbehaves(Tensors(1, SPECS[::-1])), "not the model's"),
        (Misbehaves(TENSORS, make_slice(2, "w", 0, b"1234")), "exchange 2"),
        (Misbehaves(TENSORS, make_slice(1, "secret", 0, b"1234")), "'secret', which this exchange does not have"),
        (Misbehaves(TENSORS, make_slice(1, "w", 21, b"1234")), "reach past"),
        (Misbehaves(TENSORS, make_slice(1, "w", 0, b"1234"), make_slice(1, "w", 0, b"1235")), "other bytes"),
        (Misbehaves(TENSORS, make_slice(1, "w", 0, b"1234"), make_slice(1, "w", 2, b"1234")), "overlap"),
        (Misbehaves(TENSORS, Ready(1)), "sent Ready where Trained was due"),
    ],
)
async def test_whatever_breaks_the_rules_of_an_exchange_ends_the_session(drive: Misbehaves, match: str) -> None:
    with pytest.raises(ProtocolError, match=f"csd-00: .*{match}"):
        await trained(drive)
    assert drive.session.closed


async def test_a_malformed_frame_ends_the_session_with_its_cause() -> None:
    drive = Misbehaves(TENSORS, b"\xc1\xc1")
    with pytest.raises(DeviceLost, match="csd-00: a malformed frame"):
        await trained(drive)
    assert drive.session.closed


async def test_slices_twice_and_in_reverse_are_as_good() -> None:
    class Reversed(FakeDrive):
        def tensors(self, exchange: int, arrays: Mapping[str, Array]) -> Iterator[Answer]:
            first, *pieces = super().tensors(exchange, arrays)
            yield from [first, *reversed(pieces), *pieces]

    weights, _ = await trained(Reversed())
    np.testing.assert_array_equal(weights["w"], WEIGHTS["w"] + 1)


def flipped(piece: Slice) -> Slice:
    """The slice with one bit of its data flipped, as by a bad cell of memory."""
    content = bytearray(piece.data)
    content[len(content) // 2] ^= 16
    return msgspec.structs.replace(piece, data=memoryview(content))


async def test_a_flipped_bit_ends_the_session_and_names_the_slice() -> None:
    pieces = list(cut_slices(1, WEIGHTS, 8))
    with pytest.raises(ProtocolError, match=r"csd-00: w\+16: 8 bytes do not match their checksum"):
        await trained(Misbehaves(TENSORS, *pieces[:2], flipped(pieces[2]), *pieces[3:], DONE))


async def test_frames_that_came_packed_are_read_one_by_one() -> None:
    pieces = [encode(piece) for piece in cut_slices(1, WEIGHTS, 4)]
    packed = list(pack([encode(TENSORS), *pieces, encode(DONE)]))
    assert len(packed) == 1
    weights, frame = await trained(Misbehaves(*packed))
    np.testing.assert_array_equal(weights["w"], WEIGHTS["w"])
    assert frame == DONE


async def test_slices_are_collected_and_told_of_until_they_are_frames_again() -> None:
    drive, assembler = FakeDrive(), Assembler(1, SPECS)
    first, *rest = cut_slices(1, WEIGHTS, 12)
    for frame in (first, first, DONE, *rest):
        await drive._outbox.put(encode(frame))
    drive.pump()
    arrivals: list[tuple[str, int, int, bool]] = []
    drive.session.collect(assembler, lambda *arrival: arrivals.append(arrival))
    assert await drive.session.receive(soon()) == DONE
    assert arrivals == [("w", 0, 12, True), ("w", 0, 12, False)]
    drive.session.collect(None)
    assert [await drive.session.receive(soon()) for _ in rest] == rest
    assert assembler.missing_bytes == sum(len(piece.data) for piece in rest)


async def test_arrays_given_back_are_used_again_and_others_never() -> None:
    drive = FakeDrive()
    first, _ = await trained(drive)
    second, _ = await trained(drive)
    assert not any(np.shares_memory(first[name], second[name]) for name in first)
    drive.session.recycle(second)
    third, _ = await trained(drive)
    assert all(third[name] is second[name] for name in third)
    np.testing.assert_array_equal(third["w"], WEIGHTS["w"] + 1)
    fourth, _ = await trained(drive)
    assert not np.shares_memory(fourth["w"], third["w"])


async def test_closing_a_session_whose_deadline_is_just_passing_does_no_harm() -> None:
    drive = FakeDrive()
    waiting = asyncio.ensure_future(drive.session.receive(Deadline(0.0)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    drive.session.close("closed meanwhile")
    with pytest.raises(DeviceLost, match="closed meanwhile"):
        await waiting


async def test_whoever_cancels_a_wait_gets_a_cancellation_and_the_session_goes_on() -> None:
    drive = FakeDrive()
    drive.pump()
    waiting = asyncio.ensure_future(drive.session.receive(soon()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not drive.session.closed
    await drive.session.send(JOB)
    assert await drive.session.expect(Ready, soon()) == Ready(5)


async def test_a_failed_task_is_told_and_the_session_goes_on() -> None:
    class FailsOnce(FakeDrive):
        def answer(self, frame: AnyFrame) -> Iterator[Answer]:
            if isinstance(frame, Job) and len(self.frames) == 1:
                yield Failed("Job", "no memory")
            else:
                yield from super().answer(frame)

    drive = FailsOnce()
    drive.pump()
    await drive.session.send(JOB)
    with pytest.raises(DeviceFailed, match="csd-00: Job failed in the device: no memory"):
        await drive.session.expect(Ready, soon())
    assert not drive.session.closed
    await drive.session.send(JOB)
    assert await drive.session.expect(Ready, soon()) == Ready(5)


@pytest.mark.parametrize("sent", [(), (TENSORS,), (TENSORS, make_slice(1, "w", 0, b"1234"))])
async def test_a_stream_that_ends_anywhere_is_a_lost_device(sent: tuple[Answer, ...]) -> None:
    with pytest.raises(DeviceLost, match="csd-00: the device closed the stream"):
        await trained(Misbehaves(*sent, cut=True))


async def test_frames_that_came_before_the_end_are_still_read() -> None:
    drive = FakeDrive()
    await drive._outbox.put(encode(Ready(7)))
    await drive._outbox.put(None)
    await drive.session.pump()
    assert drive.session.closed
    assert await drive.session.receive(soon()) == Ready(7)
    with pytest.raises(DeviceLost):
        await drive.session.receive(soon())


async def test_silence_until_the_deadline_counts_as_death() -> None:
    drive = FakeDrive()
    drive.pump()
    with pytest.raises(DeviceSilent, match="csd-00: silent for 0 s"):
        await drive.session.receive(Deadline(0.02))
    assert drive.session.closed
    with pytest.raises(DeviceSilent, match="silent"):
        await drive.session.receive(soon())


async def test_a_session_that_was_closed_before_its_deadline_was_not_silent() -> None:
    drive = FakeDrive()
    waiting = asyncio.ensure_future(drive.session.receive(soon()))
    await asyncio.sleep(0)
    drive.session.close("silent for a reason of its own")
    with pytest.raises(DeviceLost, match="a reason of its own") as lost:
        await waiting
    assert not isinstance(lost.value, DeviceSilent)


async def test_whoever_waits_hears_why_the_session_was_closed() -> None:
    drive = FakeDrive()
    waiting = asyncio.ensure_future(drive.session.receive(soon()))
    await asyncio.sleep(0)
    drive.session.close("the device has dialled again")
    drive.session.close("a later reason")
    with pytest.raises(DeviceLost, match="the device has dialled again"):
        await waiting


async def test_a_write_that_the_transport_never_takes_ends_with_the_session() -> None:
    class Stuck(FakeDrive):
        async def write(self, message: bytes) -> None:
            await asyncio.Event().wait()

    drive = Stuck()
    sending = asyncio.ensure_future(drive.session.send(JOB))
    await asyncio.sleep(0)
    drive.session.close("gone")
    with pytest.raises(DeviceLost, match="gone"):
        await sending


@pytest.mark.parametrize(
    "error", [OSError("reset"), asyncio.InvalidStateError("done"), asyncio.CancelledError(), TimeoutError()]
)
async def test_a_broken_transport_is_a_lost_device(error: BaseException) -> None:
    class Broken(FakeDrive):
        async def write(self, message: bytes) -> None:
            raise error

    with pytest.raises(DeviceLost, match="csd-00: the stream broke"):
        await Broken().session.send(JOB)


async def test_a_frame_out_of_turn_is_refused() -> None:
    drive = FakeDrive()
    drive.pump()
    await drive.session.send(JOB)
    with pytest.raises(ProtocolError, match="csd-00: sent Ready where Measured was due"):
        await drive.session.expect(Measured, soon())
    assert drive.session.closed


async def test_a_flood_of_frames_is_held_back_at_the_stream() -> None:
    drive = FakeDrive()
    for n in range(100):
        await drive._outbox.put(encode(Ready(n)))
    drive.pump()
    for _ in range(1000):
        await asyncio.sleep(0)
    assert len(drive.sent) < 20
    numbers: list[Any] = [(await drive.session.expect(Ready, soon())).parameters for _ in range(100)]
    assert numbers == list(range(100))


def test_every_way_to_fail_is_a_csd_error() -> None:
    assert all(issubclass(kind, CsdError) for kind in (DeviceFailed, DeviceLost, ProtocolError))


async def test_a_device_that_never_ceases_to_send_leaves_others_their_turns() -> None:
    """Slices that are repeated for ever are valid; nobody else's may wait for more than a few messages of them."""

    class Floods(FakeDrive):
        async def read(self) -> bytes | None:
            return flood

    [flood] = pack([encode(make_slice(1, "w", 0, b"1234"))] * 100)
    drive, turns, handled = Floods(), 0, 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    drive.pump()
    beside = asyncio.ensure_future(other())
    while handled < 10_000:
        assert isinstance(await drive.session.receive(soon()), Slice)
        handled += 1
    assert turns >= 90
    beside.cancel()
    drive.session.close("over")
    assert drive._pump is not None
    drive._pump.cancel()
