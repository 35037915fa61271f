"""Throttles are set, hold for their block, and are always cleared: on a fake cgroup tree and with a fake `tc`."""

import socket
import struct
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import DeviceFailed
from firmware_agent.faults.io_limits import MIN_BUCKET_BYTES, Throttle, block_number, bucket_bytes, find_card
from tests.support.fakes import FAKE_DISK, FakeThrottled

HEADING = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"


def route(card: str, network: str, length: int) -> str:
    """A line of /proc/net/route."""
    destination = struct.unpack("=I", socket.inet_aton(network))[0]
    mask = struct.unpack("=I", struct.pack("!I", (2**32 - 1) << (32 - length) & (2**32 - 1)))[0]
    return f"{card}\t{destination:08X}\t00000000\t0003\t0\t0\t0\t{mask:08X}\t0\t0\t0\n"


@pytest.fixture
def drive(tmp_path: Path) -> FakeThrottled:
    return FakeThrottled(tmp_path)


@pytest.fixture(params=["reads", "sends"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def limit(drive: FakeThrottled, kind: str, rate: int = 10_000_000) -> AbstractContextManager[None]:
    throttle = drive.throttle()
    return throttle.limit_reads(FAKE_DISK, rate) if kind == "reads" else throttle.limit_sends("127.0.0.1", rate)


def test_reads_are_limited_inside_the_block_and_not_after(drive: FakeThrottled) -> None:
    with limit(drive, "reads"):
        assert drive.read_limit == "259:1 rbps=10000000"
        assert drive.controllers == "+io"
    assert drive.read_limit == "259:1 rbps=max"


def test_sends_are_limited_inside_the_block_and_not_after(drive: FakeThrottled) -> None:
    with limit(drive, "sends"):
        assert drive.discipline == "lo root tbf rate 80000000bit burst 1000000 limit 4194304"
    assert drive.discipline is None


@pytest.mark.parametrize("failure", [ValueError, OSError, KeyboardInterrupt, SystemExit])
def test_a_limit_is_cleared_whatever_happens_under_it(
    drive: FakeThrottled, kind: str, failure: type[BaseException]
) -> None:
    def work() -> None:
        with limit(drive, kind):
            assert drive.limited
            raise failure

    with pytest.raises(failure):
        work()
    assert not drive.limited


def test_a_limit_can_be_set_again(drive: FakeThrottled, kind: str) -> None:
    for rate in (1, 2_000_000):
        with limit(drive, kind, rate):
            assert drive.limited
    assert not drive.limited


def test_without_a_cgroup_of_its_own_a_device_refuses_both_and_calls_nothing(drive: FakeThrottled, kind: str) -> None:
    drive.group = None
    with pytest.raises(DeviceFailed, match=r"no cgroup of its own; use qemu"), limit(drive, kind):
        raise AssertionError("it was let in")
    assert drive.calls == []


@pytest.mark.parametrize("missing", ["cgroup.subtree_control", "trainer/io.max"])
def test_without_an_io_controller_reads_are_not_limited(drive: FakeThrottled, missing: str) -> None:
    drive.lose(missing)
    with pytest.raises(DeviceFailed, match=r"delegate io, or use qemu"), limit(drive, "reads"):
        raise AssertionError("it was let in")


def test_what_is_no_block_device_is_not_limited(tmp_path: Path) -> None:
    (tmp_path / "shard.tar").write_bytes(b"")
    for path in (tmp_path / "shard.tar", Path("/dev/null")):
        with pytest.raises(DeviceFailed, match=r"no block device.*use qemu"):
            block_number(path)


def test_without_tc_sends_are_not_limited(drive: FakeThrottled) -> None:
    drive.tc.unlink()
    with pytest.raises(DeviceFailed, match=r"install iproute2"), limit(drive, "sends"):
        raise AssertionError("it was let in")


def test_another_queue_discipline_is_left_alone(drive: FakeThrottled) -> None:
    drive.discipline = "lo root fq"
    with pytest.raises(DeviceFailed, match=r"File exists.*use qemu"), limit(drive, "sends"):
        raise AssertionError("it was let in")
    assert drive.discipline == "lo root fq"


def test_a_limit_that_cannot_be_cleared_is_told(drive: FakeThrottled, kind: str) -> None:
    def work() -> None:
        with limit(drive, kind):
            drive.discipline = None
            drive.lose("trainer/io.max")

    with pytest.raises(DeviceFailed, match=r"use qemu"):
        work()


@pytest.mark.parametrize("host", ["host.invalid", "192.0.2.1"])
def test_a_host_that_cannot_be_reached_is_told(
    drive: FakeThrottled, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    def lookup(name: str) -> str:
        if name == "host.invalid":
            raise socket.gaierror("no such name")
        return name

    monkeypatch.setattr(socket, "gethostbyname", lookup)
    with pytest.raises(DeviceFailed, match=rf"route to {host}.*can reach"):
        drive.throttle().card_towards(host)


def test_a_missing_routing_table_is_told(tmp_path: Path) -> None:
    with pytest.raises(DeviceFailed, match=r"no route to 192.0.2.1"):
        Throttle(None, routes=tmp_path / "none").card_towards("192.0.2.1")


def test_the_loopback_needs_no_route(tmp_path: Path) -> None:
    assert Throttle(None, routes=tmp_path / "none").card_towards("127.0.0.1") == "lo"


@given(rate=st.integers(1, 10**11))
def test_a_bucket_holds_a_segment_and_a_tenth_of_a_second(rate: int) -> None:
    assert bucket_bytes(rate) >= max(MIN_BUCKET_BYTES, int(rate * 0.1))
    assert bucket_bytes(rate) <= MIN_BUCKET_BYTES + rate // 10


def test_the_most_specific_route_wins_wherever_it_stands() -> None:
    lines = [route("eth0", "0.0.0.0", 0), route("tap0", "10.0.0.0", 8), route("tap1", "10.0.2.0", 24)]
    for order in (lines, lines[::-1]):
        table = HEADING + "".join(order)
        for address, card in {"10.0.2.2": "tap1", "10.1.0.1": "tap0", "192.0.2.1": "eth0"}.items():
            assert find_card(socket.inet_aton(address), table) == card
    assert find_card(socket.inet_aton("192.0.2.1"), HEADING + lines[1]) is None
    assert find_card(socket.inet_aton("192.0.2.1"), HEADING) is None
