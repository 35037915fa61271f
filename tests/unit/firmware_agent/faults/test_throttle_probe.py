"""What a probe makes of what it saw, on simulated throttles; and its reading of a small device, round and round."""

import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import DeviceFailed
from firmware_agent.common.frames.measure_frames import ProbeRead
from firmware_agent.faults.throttle_probe import (
    ALIGNMENT_BYTES,
    READ_BYTES,
    Mark,
    after_burst,
    between_waits,
    probe_read,
    read_marks,
)
from tests.support.fakes import FAKE_DISK, FakeThrottled

SLICE_SECONDS = 0.1
CEILING = 1e9
TOTAL_BYTES = 8_000_000


def sliced(rate: float, block: int, size: int, begin: float) -> Iterator[Mark]:
    """Marks of reads under a throttle that lets ``rate x slice`` bytes through at the start of each slice."""
    seconds, done = begin, 0
    yield seconds, done
    while done < size:
        slices = math.ceil((done + block) / (rate * SLICE_SECONDS) - 1e-9) - 1
        seconds = max(seconds, slices * SLICE_SECONDS) + block / CEILING
        done += block
        yield seconds, done


def bucketed(rate: float, bucket: float, block: int, size: int) -> Iterator[Mark]:
    """Marks of sending through a token bucket that is full at the start."""
    yield 0.0, 1000
    for done in range(block, size + block, block):
        yield max((done - bucket) / rate, done / CEILING), 1000 + done


@given(
    rate=st.floats(10e6, 400e6),
    length=st.floats(0.5, 2.0),
    begin=st.floats(0, 0.1),
    block=st.integers(READ_BYTES // 8, READ_BYTES),
)
def test_under_a_throttle_that_works_in_slices_the_rate_is_right_to_a_block(
    rate: float, length: float, begin: float, block: int
) -> None:
    counted, seconds = between_waits(list(sliced(rate, block, int(rate * length), begin)))
    assert seconds > 0
    assert counted == pytest.approx(rate * seconds, abs=2 * block)


def test_from_start_to_end_the_rate_would_be_wrong_by_a_slice() -> None:
    marks = list(sliced(100e6, 1 << 17, 100_000_000 + (8 << 20), 0.0))
    assert marks[-1][1] / marks[-1][0] > 1.05 * 100e6


@given(times=st.lists(st.floats(1e-6, 0.039), min_size=1, max_size=50), hold=st.integers(0, 49))
def test_without_two_waits_the_whole_counts(times: list[float], hold: int) -> None:
    if hold < len(times):
        times[hold] = 0.2
    marks = [(0.0, 0), *((sum(times[: n + 1]), 100 * (n + 1)) for n in range(len(times)))]
    assert between_waits(marks) == (100 * len(times), pytest.approx(sum(times)))


@given(rate=st.floats(1e6, 50e6), length=st.floats(0.5, 2.0), bucket_seconds=st.floats(0.01, 0.2))
def test_the_bucket_that_was_full_at_the_start_is_not_in_the_rate(
    rate: float, length: float, bucket_seconds: float
) -> None:
    bucket, block = rate * bucket_seconds, 1 << 14
    counted, seconds = after_burst(
        list(bucketed(rate, bucket, block, int(rate * length + 2 * bucket))), int(2 * bucket)
    )
    assert counted == pytest.approx(rate * seconds, rel=1e-6)


@given(steps=st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_without_a_burst_or_with_one_never_spent_the_whole_counts(steps: list[int]) -> None:
    marks = [(float(n), total) for n, total in enumerate(itertools.accumulate([7, *steps]))]
    for burst in (0, sum(steps) + 1):
        assert after_burst(marks, burst) == (sum(steps), len(steps))


@pytest.mark.parametrize("size", [ALIGNMENT_BYTES, 5 * ALIGNMENT_BYTES + 512, READ_BYTES, 3 * READ_BYTES + 7 * 512])
def test_a_small_device_is_read_round_and_round_in_aligned_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path = tmp_path / "device"
    path.write_bytes(os.urandom(size))
    ticks, positions, preadv = itertools.count(), [], os.preadv

    def spy(descriptor: int, blocks: list[memoryview], position: int) -> int:
        positions.append(position)
        return preadv(descriptor, blocks, position)

    monkeypatch.setattr(os, "preadv", spy)
    with open(path, "rb", buffering=0) as stream:
        marks = list(read_marks(stream.fileno(), TOTAL_BYTES, lambda: float(next(ticks))))
    assert marks[0] == (0.0, 0)
    assert [seconds for seconds, _ in marks] == [float(n) for n in range(len(marks))]
    sizes = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(marks)]
    assert all(0 < each <= READ_BYTES and each % ALIGNMENT_BYTES == 0 for each in sizes)
    end = size // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    assert positions == [0, *(done % end for _, done in marks[1:-1])]
    assert TOTAL_BYTES <= marks[-1][1] < TOTAL_BYTES + READ_BYTES


def test_a_device_of_less_than_a_block_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "device"
    path.write_bytes(bytes(ALIGNMENT_BYTES - 1))
    with open(path, "rb", buffering=0) as stream, pytest.raises(DeviceFailed, match=r"larger shard"):
        list(read_marks(stream.fileno(), 1, lambda: 0.0))


def test_a_disk_that_cannot_be_read_is_told_and_the_limit_is_gone(tmp_path: Path) -> None:
    drive = FakeThrottled(tmp_path)
    with pytest.raises(DeviceFailed, match=r"cannot be read past the page cache"):
        probe_read(ProbeRead(1, 1000), FAKE_DISK.with_name("no-such-disk"), drive.throttle())
    assert drive.read_limit == "259:1 rbps=max"
