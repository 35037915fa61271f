"""A token bucket and a pipe with a clock of their own: what passes when."""

import asyncio
import heapq
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.engines.shaping.relay import BURST_SECONDS, CHUNK_BYTES, Pipe, TokenBucket
from csd_emu.engines.shaping.shaper import QUEUE_BYTES, Shape, bucket_arguments, burst_bytes
from firmware_agent.common.errors import ConfigurationError

SIZES = st.lists(st.tuples(st.integers(1, 20_000), st.floats(0, 0.05)), min_size=1, max_size=40)
RATES = st.floats(1e4, 1e8)
NOISE = 1e-6


def taken(rate: float, burst_seconds: float, asked: Sequence[tuple[int, float]]) -> list[tuple[float, int, float]]:
    """(when asked, bytes, when passed) of requests that come so many seconds apart."""
    bucket, now, out = TokenBucket(rate, burst_seconds, 0.0), 0.0, []
    for size, pause in asked:
        now += pause
        out.append((now, size, bucket.take(size, now)))
    return out


@given(RATES, st.floats(0, 0.02), SIZES)
def test_never_more_than_rate_and_burst_in_any_span_of_time(
    rate: float, burst_seconds: float, asked: Sequence[tuple[int, float]]
) -> None:
    passed = [(moment, size) for _, size, moment in taken(rate, burst_seconds, asked)]
    for first, last in itertools.combinations_with_replacement(range(len(passed)), 2):
        seconds = passed[last][0] - passed[first][0]
        # The first of them may have begun to pass before.
        size = sum(size for _, size in passed[first + 1 : last + 1])
        assert size <= rate * (seconds + burst_seconds) * (1 + NOISE) + NOISE


@given(RATES, st.floats(0, 0.02), SIZES)
def test_in_order_and_not_before_it_is_asked_for(
    rate: float, burst_seconds: float, asked: Sequence[tuple[int, float]]
) -> None:
    out = taken(rate, burst_seconds, asked)
    moments = [passed for _, _, passed in out]
    assert moments == sorted(moments)
    assert all(passed >= when for when, _, passed in out)


@given(RATES, st.floats(0, 0.02), st.lists(st.integers(1, 20_000), min_size=1, max_size=40))
def test_work_that_waits_is_served_at_the_rate(rate: float, burst_seconds: float, sizes: Sequence[int]) -> None:
    *_, (_, _, last) = taken(rate, burst_seconds, [(size, 0.0) for size in sizes])
    assert last == pytest.approx(max(0.0, sum(sizes) / rate - burst_seconds), abs=1e-9)


@given(RATES, st.lists(st.tuples(st.integers(1, 20_000), st.floats(0, BURST_SECONDS)), min_size=1, max_size=40))
def test_who_asks_late_by_less_than_the_burst_loses_nothing(rate: float, asked: Sequence[tuple[int, float]]) -> None:
    """As a relay does, which wakes up too late every time."""
    bucket, now, whole = TokenBucket(rate, BURST_SECONDS, 0.0), 0.0, 0
    for size, late in asked:
        now = max(now, whole / rate - BURST_SECONDS + late)
        passed, whole = bucket.take(size, now), whole + size
    assert passed == pytest.approx(max(now, whole / rate - BURST_SECONDS), abs=1e-9)


@given(RATES, RATES, st.integers(1, 10**6), st.floats(0, 1))
def test_a_change_of_rate_holds_for_what_has_not_passed(
    before: float, after: float, size_bytes: int, share: float
) -> None:
    bucket = TokenBucket(before, 0.0, 0.0)
    moment = share * bucket.take(size_bytes, 0.0)
    bucket.change(after, moment)
    left = size_bytes - moment * before
    assert bucket.take(1, moment) == pytest.approx(moment + (left + 1) / after, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("rate", "latency"),
    [(0.0, 0.0), (-1.0, 0.0), (float("nan"), 0.0), (999.0, 0.0), (1e6, -1.0), (float("inf"), 0.0)],
)
def test_a_shape_is_checked(rate: float, latency: float) -> None:
    with pytest.raises(ConfigurationError, match="shaped link"):
        Shape(rate, latency)


@given(st.floats(1e3, 1e10))
def test_the_kernels_bucket_holds_two_frames_and_a_millisecond(rate: float) -> None:
    arguments = bucket_arguments(rate)
    burst = int(arguments[arguments.index("burst") + 1].removesuffix("b"))
    assert burst == burst_bytes(rate) >= 18_000
    assert burst >= round(rate / 1000)
    assert arguments[arguments.index("rate") + 1] == f"{round(8 * rate)}bit"
    assert arguments[-1] == f"{QUEUE_BYTES}b"


class VirtualTime:
    """A clock that moves on when everybody sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        heapq.heappush(self._sleepers, (self.seconds + seconds, next(self._numbers), woken))
        await woken.wait()

    async def run(self, *tasks: asyncio.Task[None]) -> None:
        """Let time pass until the tasks are done."""
        while not all(task.done() for task in tasks):
            for _ in range(20):  # everybody who can run does, until all sleep
                await asyncio.sleep(0)
            if self._sleepers:
                self.seconds, _, woken = heapq.heappop(self._sleepers)
                woken.set()
        for task in tasks:
            task.result()


class Flow:
    """A source of so many bytes, and where they arrive."""

    def __init__(self, time: VirtualTime, size_bytes: int) -> None:
        self.time, self.left = time, size_bytes
        self.arrived: list[tuple[float, bytes]] = []
        self._sent = 0

    async def read(self, size_bytes: int) -> bytes:
        size = min(size_bytes, self.left)
        self.left -= size
        data = bytes((self._sent + place) % 251 for place in range(size))
        self._sent += size
        return data

    async def deliver(self, data: bytes) -> None:
        self.arrived.append((self.time.now(), data))


def carried(shape: Shape, sizes: Sequence[int]) -> list[Flow]:
    async def run() -> list[Flow]:
        time = VirtualTime()
        pipe, flows = Pipe(shape, time.now, time.sleep), [Flow(time, size) for size in sizes]
        await time.run(*(asyncio.create_task(pipe.carry(flow, flow.deliver)) for flow in flows))
        return flows

    return asyncio.run(run())


@given(st.floats(1e5, 1e8), st.floats(0, 0.1), st.lists(st.integers(0, 200_000), min_size=1, max_size=3))
def test_a_pipe_carries_every_byte_once_in_order_at_its_rate(rate: float, latency: float, sizes: Sequence[int]) -> None:
    flows = carried(Shape(rate, latency), sizes)
    for flow, size in zip(flows, sizes, strict=True):
        assert b"".join(data for _, data in flow.arrived) == bytes(place % 251 for place in range(size))
    if whole := sum(sizes):
        end = max(flow.arrived[-1][0] for flow in flows if flow.arrived)
        ideal = whole / rate + latency
        assert ideal - BURST_SECONDS - 0.001 <= end <= ideal + 0.001


def test_connections_have_equal_shares() -> None:
    """The smaller one ends when twice its bytes have passed, not behind the larger one."""
    small, large = carried(Shape(1e6), [20 * CHUNK_BYTES, 60 * CHUNK_BYTES])
    assert small.arrived[-1][0] == pytest.approx(40 * CHUNK_BYTES / 1e6, rel=0.05)
    assert large.arrived[-1][0] == pytest.approx(80 * CHUNK_BYTES / 1e6, rel=0.05)


def test_latency_delays_and_does_not_slow() -> None:
    (near,), (far,) = carried(Shape(1e6), [10 * CHUNK_BYTES]), carried(Shape(1e6, 0.5), [10 * CHUNK_BYTES])
    assert far.arrived[-1][0] - near.arrived[-1][0] == pytest.approx(0.5, abs=0.001)
