"""Steps whose exchange overlaps what drives compute, on the timeline and in the accounts."""

import math
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.overlap.layer_work import compute_seconds
from csd_emu.perfmodel.overlap.overlapped_step import SLICE_SECONDS, OverlapComposer
from csd_emu.perfmodel.timeline import AGGREGATE, READ, RECEIVE, SEND, Activity, Composed, Link, compose
from csd_emu.profiles import get_profile
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Trained
from firmware_agent.common.layer_costs import LayerWork
from firmware_agent.common.send_queue import TransferSettings
from host.core.device_time import host_model
from host.policies.transfer.slice_costs import LinkFit, SliceTable
from host.training.accounting import DeviceReport, Lateness, make_accountant
from tests.support.examples import examples
from tests.support.sync import TABLE

SIZES = {"a.w": 40_000, "b.w": 900_000, "c.w": 2_000_000, "c.b": 4_000}
LAYERS = (
    LayerWork("a", {"a.w": 40_000}, 4.0, 4.0),
    LayerWork("b", {"b.w": 900_000, "b.steps": 8}, 2.0, 4.0),
    LayerWork("c", {"c.w": 2_000_000, "c.b": 4_000}, 1.0, 2.0),
)
BYTES = sum(SIZES.values())
COMPOSER = OverlapComposer(LAYERS, SIZES)
PRIORITY = TransferSettings("priority", 100_000, 200_000)

seconds = st.floats(0.001, 1)
rates = st.floats(1e6, 1e9)
latencies = st.floats(0, 1e-3)
links = st.builds(Link, rates, latencies, st.booleans())
sendings = st.just(TransferSettings()) | st.builds(
    TransferSettings, st.just("priority"), st.integers(150_000, 3_000_000), st.integers(50_000, 6_000_000)
)
drives = st.builds(
    Activity,
    device=st.just("csd"),
    receive_bytes=st.integers(BYTES, 2 * BYTES),
    read_bytes=st.integers(0, 10**6),
    read_operations=st.integers(0, 1),
    phases=st.fixed_dictionaries(
        {"forward": seconds, "backward": seconds, "update": st.just(0.0), "encode": st.floats(0, 0.1)}
    ),
    send_bytes=st.integers(BYTES, 2 * BYTES),
    flash_bytes_per_second=rates,
    flash_latency_seconds=latencies,
    link_bytes_per_second=rates,
    link_latency_seconds=latencies,
)
arrays = st.lists(drives, min_size=1, max_size=3).map(
    lambda parts: [replace(part, device=f"csd-{number:02d}") for number, part in enumerate(parts)]
)
servers = st.builds(
    Activity,
    device=st.just(HOST),
    receive_bytes=st.just(0),
    read_bytes=st.integers(0, 10**7),
    read_operations=st.integers(0, 1),
    phases=st.fixed_dictionaries({"forward": seconds, "backward": seconds}),
    send_bytes=st.just(0),
    flash_bytes_per_second=rates,
    flash_latency_seconds=latencies,
    link_bytes_per_second=rates,
    link_latency_seconds=st.just(0.0),
)


def sums(step: Composed) -> dict[tuple[str, str], tuple[float, int]]:
    """Seconds and bytes of each device in each phase."""
    found: dict[tuple[str, str], tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for span in step.spans:
        took, size = found[span.device, span.phase]
        found[span.device, span.phase] = took + span.seconds, size + span.bytes
    return found


@settings(max_examples=examples(50))
@given(arrays, st.none() | servers, links, sendings, st.floats(0, 0.1) | st.just(0.0))
def test_a_step_holds_what_was_measured_and_counted(
    array: list[Activity], server: Activity | None, link: Link, sending: TransferSettings, host_seconds: float
) -> None:
    parts = [*array, *([server] if server is not None else [])]
    step = COMPOSER.compose(parts, link, sending, host_seconds)
    found = sums(step)
    for part in parts:
        for phase, took in part.phases.items():
            assert found[part.device, phase][0] == pytest.approx(took, abs=1e-8)
        assert step.exposed_seconds[part.device] == pytest.approx(step.seconds - part.work_seconds, abs=1e-9)
        assert step.seconds >= part.work_seconds * (1 - 1e-9)
    for part in array:
        assert found[part.device, READ][0] == pytest.approx(part.read_seconds, abs=1e-8)
        assert found[part.device, READ][1] == part.read_bytes
        assert found[part.device, RECEIVE][1] == part.receive_bytes
        assert found[part.device, SEND][1] == part.send_bytes
        assert step.seconds >= BYTES / min(part.link_bytes_per_second, link.bytes_per_second) * (1 - 1e-9)
    if link.shared:
        assert step.seconds >= len(array) * BYTES / link.bytes_per_second * (1 - 1e-9)
    assert step.seconds >= host_seconds * (1 - 1e-9)
    assert set(step.finish_seconds) == {part.device for part in parts}
    assert all(0 <= span.start_seconds <= span.end_seconds for span in step.spans)


@given(drives, st.integers(1, 4), links)
def test_fifo_that_overlaps_is_never_slower_than_one_thing_after_the_other(
    part: Activity, count: int, link: Link
) -> None:
    """But for what slices cost beside their bytes, which the plain composition does not have."""
    array = [replace(part, device=f"csd-{n}", receive_bytes=BYTES, send_bytes=BYTES) for n in range(count)]
    fixed = 2 * len(SIZES) * SLICE_SECONDS.value
    step = COMPOSER.compose(array, link, TransferSettings())
    assert step.seconds <= (compose(array, link).seconds + fixed) * (1 + 1e-9)


def drive(device: str, forward: float, sent: int = BYTES) -> DeviceReport:
    trained = Trained(1, 8, 1, 0.5, PhaseSeconds(forward, 2 * forward, 0.0, forward / 10), 576)
    return DeviceReport(device, "counted", trained, 1, 8, sent, sent, micro_batch=8)


ARRAY = ArrayConfig.model_validate(
    {
        "name": "lab",
        "host": {"trains": True},
        "devices": [{"profile": "newport", "count": 3}],
        "link": {"bandwidth": "20 MB/s", "latency": "100 us", "shared": True},
    }
)
NAMES = ["csd-00", "csd-01", "csd-02"]
MODELS = {HOST: host_model(TABLE, get_profile("xeon-4108"))}


def test_accounts_of_scheduled_steps_have_the_same_work_in_less_time() -> None:
    returned = [drive(name, 0.05) for name in NAMES]
    plain = make_accountant(ARRAY, MODELS).account(returned, host_seconds=0.001)
    accountant = make_accountant(ARRAY, MODELS, COMPOSER)
    fifo, priority = (
        accountant.account(returned, host_seconds=0.001, sending=sending) for sending in (TransferSettings(), PRIORITY)
    )
    assert priority.array_seconds < fifo.array_seconds < plain.array_seconds
    assert accountant.array_seconds == pytest.approx(fifo.array_seconds + priority.array_seconds)
    for before, after in zip(plain.devices, priority.devices, strict=True):
        assert after.device_seconds == before.device_seconds
        assert (after.sent_bytes, after.received_bytes) == (before.sent_bytes, before.received_bytes)
        for component in ("cpu", "link", "flash"):
            assert after.energy_joules[component] == pytest.approx(before.energy_joules[component], rel=1e-6)
        assert after.energy_joules["idle"] < before.energy_joules["idle"]
        assert after.send_seconds > 0
    assert min(span.start_seconds for span in priority.spans) >= fifo.array_seconds
    host = [span for span in priority.spans if span.device == HOST]
    assert {span.phase for span in host} == {AGGREGATE}
    assert math.fsum(span.seconds for span in host) == pytest.approx(0.001, rel=0.05)


def test_without_settings_or_with_someone_late_a_step_is_composed_as_ever() -> None:
    returned = [drive(name, 0.05) for name in NAMES]
    plain = make_accountant(ARRAY, MODELS)
    accountant = make_accountant(ARRAY, MODELS, COMPOSER)
    assert accountant.account(returned).array_seconds == plain.account(returned).array_seconds
    late = Lateness(0.1, ["csd-02"])
    assert accountant.account(returned, late, sending=PRIORITY).array_seconds == pytest.approx(
        plain.account(returned, late).array_seconds
    )
    assert accountant.account([], sending=PRIORITY).array_seconds == 0.0


@given(drives, st.lists(st.floats(0.9995, 1.0), min_size=1, max_size=3), sendings)
def test_drives_that_are_nearly_alike_are_computed_as_the_slowest(
    part: Activity, shares: list[float], sending: TransferSettings
) -> None:
    link = Link(1e7, 1e-4)
    array = [part] + [
        replace(part, device=f"csd-{n}", phases={phase: share * took for phase, took in part.phases.items()})
        for n, share in enumerate(shares)
    ]
    equal = [replace(part, device=each.device) for each in array]
    step = COMPOSER.compose(array, link, sending)
    assert step.seconds == COMPOSER.compose(equal, link, sending).seconds
    for each in array:  # but what they did is their own
        assert sums(step)[each.device, "forward"][0] == pytest.approx(each.phases["forward"])


def test_the_slowest_drive_sets_the_pace_and_the_others_are_exposed() -> None:
    link = Link(1e9, 0.0)
    fast, slow = (
        Activity(name, BYTES, 0, 0, {"forward": f, "backward": 2 * f}, BYTES, 1e9, 0.0, 1e9, 0.0)
        for name, f in (("fast", 0.1), ("slow", 0.4))
    )
    step = COMPOSER.compose([fast, slow], link, PRIORITY)
    assert step.seconds == pytest.approx(1.2, rel=0.02)
    assert step.exposed_seconds["fast"] == pytest.approx(0.9, rel=0.03)


@settings(max_examples=examples(50))
@given(arrays, st.none() | servers, links, sendings)
def test_a_traced_step_is_the_same_and_tells_all_bytes_of_each_drive(
    array: list[Activity], server: Activity | None, link: Link, sending: TransferSettings
) -> None:
    parts = [*array, *([server] if server is not None else [])]
    plain, step = (composer.compose(parts, link, sending) for composer in (COMPOSER, replace(COMPOSER, traced=True)))
    assert replace(step, transfers=()) == plain
    assert len(step.transfers) == len(array)
    for part, (costs, slices) in zip(array, step.transfers, strict=True):
        assert compute_seconds(costs) == pytest.approx(part.compute_seconds)
        for push in (0, 1):
            own = slices[slices[:, 0] == push]
            assert own[:, 1].sum() == BYTES
            # Of drives that are computed as one, it is what the slowest of them saw.
            least = own[:, 1].min() / min(part.link_bytes_per_second, link.bytes_per_second)
            assert (own[:, 3] - own[:, 2]).max() >= least * (1 - 1e-9)


@given(drives, links, st.integers(1, 4))
def test_the_slices_of_a_traced_step_took_what_the_link_gives(part: Activity, link: Link, count: int) -> None:
    """Of like drives, one after the other: a slice's own seconds, and each byte at the drive's share of the link."""
    sending = TransferSettings("priority", 100_000, 100_000)
    array = [replace(part, device=f"csd-{number:02d}") for number in range(count)]
    step = replace(COMPOSER, traced=True).compose(array, link, sending)
    share = min(part.link_bytes_per_second, link.bytes_per_second / (count if link.shared else 1))
    for _, slices in step.transfers:
        for push, size, begin, end in slices:
            latency = (link.latency_seconds + part.link_latency_seconds) * (1 if push else 2)
            assert end - begin == pytest.approx(SLICE_SECONDS.value + size / share + latency), push


@pytest.mark.parametrize("milliseconds", [0.2, 2.0])
def test_a_tuner_believes_the_link_of_traced_steps(milliseconds: float) -> None:
    """Of a pull the answer counts too, as it does where slices really cross."""
    way = milliseconds / 2e3
    part = Activity("csd-00", BYTES, 0, 0, {"forward": 0.1, "backward": 0.2}, BYTES, 1e9, 0.0, 5e7, way)
    sending = TransferSettings("priority", 65_536, 262_144)
    step = replace(COMPOSER, traced=True).compose([part], Link(2e9, way, True), sending)
    fit = LinkFit(0.0)
    for _ in range(5):
        fit.observe(SliceTable.of(step.transfers[0].slices))
    assert 1 / fit.seconds[1] == pytest.approx(5e7, rel=0.05)
    assert fit.seconds[3] / 2 == pytest.approx(2 * way, rel=0.05)
