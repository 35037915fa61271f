from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.timeline import (
    AGGREGATE,
    COMMUNICATION,
    HOST_READER,
    READ,
    RECEIVE,
    SEND,
    Activity,
    Composed,
    Link,
    compose,
    shift,
)
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import ConfigurationError

sizes = st.integers(0, 10**9) | st.just(0)
seconds = st.floats(0, 100) | st.just(0.0)
rates = st.floats(1e6, 1e10)
latencies = st.floats(0, 1e-2)
activities = st.builds(
    Activity,
    device=st.just("csd"),
    receive_bytes=sizes,
    read_bytes=sizes,
    read_operations=st.integers(0, 1000),
    phases=st.fixed_dictionaries({"forward": seconds, "backward": seconds, "update": seconds, "encode": seconds}),
    send_bytes=sizes,
    flash_bytes_per_second=rates,
    flash_latency_seconds=latencies,
    link_bytes_per_second=rates,
    link_latency_seconds=latencies,
)
arrays = st.lists(activities, min_size=1, max_size=8).map(
    lambda parts: [replace(part, device=f"csd-{number:02d}") for number, part in enumerate(parts)]
)
links = st.builds(Link, rates, latencies, st.booleans())

# What makes a device slower, each by some amount.
WORSE: dict[str, Callable[[Activity, int], Activity]] = {
    "receive": lambda part, more: replace(part, receive_bytes=part.receive_bytes + more),
    "read": lambda part, more: replace(part, read_bytes=part.read_bytes + more),
    "operations": lambda part, more: replace(part, read_operations=part.read_operations + more // 1000),
    "forward": lambda part, more: replace(part, phases=part.phases | {"forward": part.phases["forward"] + more / 1e6}),
    "encode": lambda part, more: replace(part, phases=part.phases | {"encode": part.phases["encode"] + more / 1e6}),
    "send": lambda part, more: replace(part, send_bytes=part.send_bytes + more),
    "flash": lambda part, more: replace(part, flash_bytes_per_second=part.flash_bytes_per_second / (1 + more / 1e6)),
    "flash latency": lambda part, more: replace(part, flash_latency_seconds=part.flash_latency_seconds + more / 1e9),
    "own link": lambda part, more: replace(part, link_bytes_per_second=part.link_bytes_per_second / (1 + more / 1e6)),
    "own latency": lambda part, more: replace(part, link_latency_seconds=part.link_latency_seconds + more / 1e6),
}


def at_least(value: float, bound: float) -> bool:
    return value >= bound * (1 - 1e-9) - 1e-9


@given(array=arrays, link=links, host=seconds)
def test_a_step_is_never_shorter_than_compute_nor_than_bytes_over_bandwidth(
    array: list[Activity], link: Link, host: float
) -> None:
    step = compose(array, link, host)
    for part in array:
        assert at_least(step.seconds, part.read_seconds + part.compute_seconds + host)
        for size in (part.receive_bytes, part.send_bytes):
            assert at_least(step.seconds, size / min(part.link_bytes_per_second, link.bytes_per_second) + host)
    if link.shared:
        for total in (sum(part.receive_bytes for part in array), sum(part.send_bytes for part in array)):
            assert at_least(step.seconds, total / link.bytes_per_second + host)


@given(
    array=arrays, link=links, which=st.integers(0, 7), what=st.sampled_from(sorted(WORSE)), more=st.integers(0, 10**9)
)
def test_a_step_never_gets_shorter_when_a_device_has_more_to_do_or_less_to_do_it_with(
    array: list[Activity], link: Link, which: int, what: str, more: int
) -> None:
    which %= len(array)
    worse = [*array[:which], WORSE[what](array[which], more), *array[which + 1 :]]
    assert at_least(compose(worse, link).seconds, compose(array, link).seconds)


@given(array=arrays, link=links, factor=st.floats(1, 100), delay=latencies, host=seconds)
def test_a_step_never_gets_shorter_on_a_worse_link_or_with_a_slower_host(
    array: list[Activity], link: Link, factor: float, delay: float, host: float
) -> None:
    before = compose(array, link).seconds
    assert at_least(compose(array, replace(link, bytes_per_second=link.bytes_per_second / factor)).seconds, before)
    assert at_least(compose(array, replace(link, latency_seconds=link.latency_seconds + delay)).seconds, before)
    assert at_least(compose(array, link, host).seconds, before)
    assert at_least(
        compose(array, replace(link, shared=True)).seconds, compose(array, replace(link, shared=False)).seconds
    )


@given(array=arrays, link=links, data=st.data())
def test_the_order_of_the_devices_changes_nothing(array: list[Activity], link: Link, data: st.DataObject) -> None:
    step, other = compose(array, link), compose(data.draw(st.permutations(array)), link)
    assert other.seconds == pytest.approx(step.seconds)
    assert other.finish_seconds == pytest.approx(dict(step.finish_seconds))
    assert other.exposed_seconds == pytest.approx(dict(step.exposed_seconds), abs=1e-9)


@given(part=activities, link=links, host=seconds)
def test_one_device_alone_takes_the_plain_sum(part: Activity, link: Link, host: float) -> None:
    step = compose([part], link, host)
    rate = min(part.link_bytes_per_second, link.bytes_per_second)
    delay = part.link_latency_seconds + link.latency_seconds
    wire = sum(size / rate + delay for size in (part.receive_bytes, part.send_bytes) if size)
    total = wire + part.read_seconds + part.compute_seconds + host
    assert step.seconds == pytest.approx(total)
    assert step.exposed_seconds["csd"] == pytest.approx(wire, abs=1e-9)


@given(array=arrays, link=links)
def test_a_link_that_is_not_shared_makes_devices_independent(array: list[Activity], link: Link) -> None:
    own = replace(link, shared=False)
    step = compose(array, own)
    for part in array:
        assert step.finish_seconds[part.device] == compose([part], own).seconds
    assert step.seconds == max(step.finish_seconds.values())


@given(array=arrays, link=links, host=seconds, begin=st.floats(0, 10) | st.just(0.0))
def test_the_spans_of_a_device_follow_each_other_and_hold_all_its_bytes(
    array: list[Activity], link: Link, host: float, begin: float
) -> None:
    step = compose(array, link, host, begin)
    for part in array:
        own = [span for span in step.spans if span.device == part.device]
        now = begin
        for span in own:
            assert span.start_seconds == pytest.approx(now, abs=1e-9)
            assert span.end_seconds >= span.start_seconds
            now = span.end_seconds
        assert now == pytest.approx(step.finish_seconds[part.device])
        moved = {phase: sum(span.bytes for span in own if span.phase == phase) for phase in (RECEIVE, READ, SEND)}
        assert moved == {RECEIVE: part.receive_bytes, READ: part.read_bytes, SEND: part.send_bytes}
        exposed = sum(span.seconds for span in own if span.phase in COMMUNICATION)
        assert step.exposed_seconds[part.device] == pytest.approx(exposed, abs=1e-9)
    assert [span.phase for span in step.spans if span.device == HOST] == [AGGREGATE] * bool(host)


@given(array=arrays, link=links, host=seconds, begin=st.floats(0, 10))
def test_a_step_that_begins_later_ends_as_much_later(
    array: list[Activity], link: Link, host: float, begin: float
) -> None:
    soon, later = compose(array, link, host), compose(array, link, host, begin)
    assert later.seconds == pytest.approx(begin + soon.seconds)
    for part in array:
        assert later.finish_seconds[part.device] == pytest.approx(begin + soon.finish_seconds[part.device])
        assert later.exposed_seconds[part.device] == pytest.approx(soon.exposed_seconds[part.device], abs=1e-9)


def simple(device: str, receive: int = 0, compute: float = 0.0, send: int = 0) -> Activity:
    return Activity(device, receive, 0, 0, {"forward": compute}, send, 1e9, 0.0, 1e12, 0.0)


def test_a_shared_link_is_divided_equally_among_those_who_use_it() -> None:
    step = compose([simple("a", receive=100), simple("b", receive=300)], Link(100.0, 0.0))
    # Both get 50 B/s until a has its 100 at 2 s; b then gets all of it for the 200 that it lacks.
    assert step.finish_seconds == {"a": 2.0, "b": 4.0}


def test_a_transfer_that_begins_later_slows_the_one_in_progress() -> None:
    step = compose([simple("a", send=300), simple("b", compute=1.0, send=50)], Link(100.0, 0.0))
    assert step.finish_seconds == {"a": 3.5, "b": 2.0}


def test_both_directions_are_used_at_once() -> None:
    sender, receiver = simple("a", send=100), simple("b", receive=100)
    assert compose([sender, receiver], Link(100.0, 0.0)).seconds == 1.0


def test_ten_thousand_devices_share_one_link_to_the_byte() -> None:
    array = [
        simple(f"d{number}", receive=1 + number % 97, compute=number % 13, send=1 + number % 89)
        for number in range(10_000)
    ]
    step = compose(array, Link(1000.0, 0.0), 1.0)
    sent = sum(part.send_bytes for part in array) / 1000
    received = sum(part.receive_bytes for part in array) / 1000
    assert max(sent, received) <= step.seconds <= sent + received + 12 + 1
    assert len(step.finish_seconds) == 10_000


def test_nothing_to_do_takes_no_time() -> None:
    assert compose([], Link(1.0, 1.0)) == Composed((), 0.0)
    step = compose([simple("a")], Link(1.0, 1.0))
    assert (step.spans, step.seconds) == ((), 0.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"link_bytes_per_second": 0.0}, "csd: link bandwidth is 0.0; it must be a positive number"),
        ({"flash_bytes_per_second": float("nan")}, "csd: flash bandwidth is nan"),
        ({"send_bytes": -1}, "csd: send bytes is -1; it must be a number that is not negative"),
        ({"phases": {"forward": float("inf")}}, "csd: forward is inf"),
        ({"device": HOST, "send_bytes": 1}, "the host's own part of a step crosses no link"),
        ({"device": HOST, "receive_bytes": 1}, "the host's own part of a step crosses no link"),
    ],
)
def test_numbers_that_no_device_has_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        compose([replace(simple("csd"), **change)], Link(1.0, 0.0))  # type: ignore[arg-type]


@given(array=arrays, link=links, part=activities, after=seconds)
def test_the_hosts_own_part_runs_beside_the_drives_and_reads_ahead(
    array: list[Activity], link: Link, part: Activity, after: float
) -> None:
    host = replace(part, device=HOST, receive_bytes=0, send_bytes=0)
    alone, step = compose(array, link), compose([*array, host], link, after)
    done = max(host.read_seconds, host.compute_seconds)
    assert step.finish_seconds[HOST] == pytest.approx(done)
    assert step.seconds == pytest.approx(max(alone.seconds, done) + after)
    drives = {device: end for device, end in step.finish_seconds.items() if device != HOST}
    assert drives == alone.finish_seconds
    assert step.exposed_seconds[HOST] == pytest.approx(max(0.0, host.read_seconds - host.compute_seconds), abs=1e-9)
    reader = [span for span in step.spans if span.device == HOST_READER]
    assert [(span.phase, span.bytes) for span in reader] == [(RECEIVE, host.read_bytes)] * bool(
        host.read_bytes or host.read_operations
    )
    own = [span for span in step.spans if span.device == HOST and span.phase != AGGREGATE]
    assert sum(span.seconds for span in own) == pytest.approx(host.compute_seconds, abs=1e-9)
    assert all(span.start_seconds >= 0 for span in own)


def test_a_device_twice_and_a_link_without_bandwidth_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="device 'a' occurs twice"):
        compose([simple("a"), simple("a")], Link(1.0, 0.0))
    with pytest.raises(ConfigurationError, match="device 'host' occurs twice"):
        compose([simple(HOST), simple(HOST)], Link(1.0, 0.0))
    with pytest.raises(ConfigurationError, match="the link: bandwidth is 0"):
        compose([simple("a")], Link(0, 0.0))
    with pytest.raises(ConfigurationError, match="the host: start is nan"):
        compose([simple("a")], Link(1.0, 0.0), 0.0, float("nan"))


@given(array=arrays, link=links, delay=st.floats(0, 1000))
def test_steps_are_put_one_behind_the_other(array: list[Activity], link: Link, delay: float) -> None:
    step = compose(array, link)
    for before, after in zip(step.spans, shift(step.spans, delay), strict=True):
        assert after.start_seconds == before.start_seconds + delay
        assert after.seconds == pytest.approx(before.seconds, abs=1e-9)


def test_a_far_device_that_sends_does_not_end_sooner_because_another_computes_for_longer() -> None:
    far = replace(simple("far", compute=1.0, send=100), link_latency_seconds=10.0)
    ends = [compose([far, simple("near", compute=1.0 + more, send=100)], Link(100.0, 0.0)).seconds for more in range(9)]
    assert ends == sorted(ends)
