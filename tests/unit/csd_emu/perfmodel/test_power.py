import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.power import (
    CHASSIS,
    COMPONENTS,
    PUBLISHED,
    add_up,
    busy_core_seconds,
    device_energy,
    host_energy,
    needed_drive_watts,
    sum_energy,
)
from csd_emu.perfmodel.timeline import READ, RECEIVE, SEND, Activity, Link, Span, compose
from csd_emu.profiles import PROFILES, Power, Profile, Sourced, get_profile
from tests.unit.csd_emu.perfmodel.test_timeline import arrays, links

NEWPORT, HOST = get_profile("newport"), get_profile("xeon-4108")
PHASES = (RECEIVE, READ, "forward", "backward", "update", "encode", SEND)
watts = st.floats(0, 1e3).map(lambda value: Sourced(value, "assumed: drawn"))
powers = st.builds(Power, watts, watts, watts, watts, watts)
amounts = st.tuples(*[st.floats(0, 1e4)] * 5)
# The spans of one device: one after the other, perhaps with waits between.
tracks = st.lists(
    st.tuples(st.sampled_from(PHASES), st.floats(0, 50), st.floats(0, 10), st.integers(0, 10**9)), max_size=12
).map(lambda parts: lay_out(parts))


def lay_out(parts: list[tuple[str, float, float, int]]) -> list[Span]:
    spans, now = [], 0.0
    for phase, seconds, wait, size in parts:
        moves = phase in (RECEIVE, READ, SEND)
        spans.append(Span("csd", phase, now, now + seconds, size if moves else 0))
        now += seconds + wait
    return spans


def joules(parts: dict[str, float]) -> float:
    return math.fsum(parts.values())


@given(power=powers, one=amounts, other=amounts)
def test_energy_adds_up_over_devices_and_over_intervals(
    power: Power, one: tuple[float, ...], other: tuple[float, ...]
) -> None:
    both = device_energy(power, *(a + b for a, b in zip(one, other, strict=True)))
    parts = sum_energy([device_energy(power, *one), device_energy(power, *other)])
    assert parts == pytest.approx(both)
    assert tuple(parts) == COMPONENTS


@given(power=powers, one=amounts, which=st.integers(0, 4), more=st.floats(0, 1e4))
def test_energy_is_never_negative_and_never_falls_when_more_is_done(
    power: Power, one: tuple[float, ...], which: int, more: float
) -> None:
    before = device_energy(power, *one)
    after = device_energy(power, *(value + more * (place == which) for place, value in enumerate(one)))
    for component in COMPONENTS:
        assert 0 <= before[component] <= after[component]


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
@given(spans=tracks, rest=st.floats(0, 100))
def test_energy_is_the_sum_of_what_each_span_draws_and_of_what_is_drawn_always(
    profile: Profile, spans: list[Span], rest: float
) -> None:
    elapsed, power = max((span.end_seconds for span in spans), default=0.0) + rest, profile.power
    want = dict.fromkeys(COMPONENTS, 0.0) | {"idle": power.idle_watts.value * elapsed}
    for span in spans:
        if span.phase in (RECEIVE, SEND):
            want["link"] += power.link_joules_per_byte.value * span.bytes
        elif span.phase == READ:
            want["flash"] += power.flash_joules_per_byte.value * span.bytes
        else:
            cores = 1.0 if span.phase == "encode" else profile.cores.value
            want["cpu"] += power.core_watts.value * cores * span.seconds
            want["dram"] += power.dram_watts.value * span.seconds
    assert device_energy(power, elapsed, *dataclasses.astuple(add_up(profile, spans))) == pytest.approx(want)


@given(spans=tracks, share=st.floats(0, 1))
def test_energy_of_two_intervals_is_that_of_the_whole(spans: list[Span], share: float) -> None:
    elapsed = max((span.end_seconds for span in spans), default=0.0) + 1
    middle = round(len(spans) * share)
    parts = [
        device_energy(NEWPORT.power, part * elapsed, *dataclasses.astuple(add_up(NEWPORT, some)))
        for part, some in ((share, spans[:middle]), (1 - share, spans[middle:]))
    ]
    whole = device_energy(NEWPORT.power, elapsed, *dataclasses.astuple(add_up(NEWPORT, spans)))
    assert sum_energy(parts) == pytest.approx(whole)


@given(array=arrays, link=links)
def test_a_composed_step_has_the_energy_of_what_its_devices_did(array: list[Activity], link: Link) -> None:
    step = compose(array, link)
    for part in array:
        totals = add_up(NEWPORT, [span for span in step.spans if span.device == part.device])
        assert totals.read_bytes == part.read_bytes
        assert totals.link_bytes == part.receive_bytes + part.send_bytes
        assert totals.busy_core_seconds == pytest.approx(busy_core_seconds(NEWPORT, part.phases), rel=1e-6, abs=1e-6)
        assert totals.busy_seconds == pytest.approx(part.compute_seconds, rel=1e-6, abs=1e-6)


def test_parallel_phases_keep_all_cores_busy_and_serial_ones_a_single_core() -> None:
    assert busy_core_seconds(NEWPORT, {"forward": 1.0, "backward": 2.0, "update": 0.5, "encode": 4.0}) == 3.5 * 4 + 4
    assert busy_core_seconds(NEWPORT, {"aggregate": 2.0}) == 2
    assert busy_core_seconds(NEWPORT, {READ: 2.0, SEND: 1.0}) == 0


def test_a_host_has_a_chassis() -> None:
    energy = host_energy(HOST, 10.0, 16.0, 2.0, 10**9)
    assert HOST.chassis_watts is not None
    assert energy[CHASSIS] == HOST.chassis_watts.value * 10
    assert energy["cpu"] == HOST.power.core_watts.value * 16
    assert energy["flash"] == 0
    assert CHASSIS not in device_energy(HOST.power, 10.0, 16.0, 2.0, 0, 10**9)


def test_assumed_figures_are_listed_and_sourced_ones_are_not() -> None:
    names = {entry.figure for entry in NEWPORT.entries() if entry.assumed}
    assert {"power.idle_watts", "link_bytes_per_second", "clock_hertz"} <= names
    assert "cores" not in names
    assert not {"cores", "dram_bytes"} & {entry.figure for entry in get_profile("solana").entries() if entry.assumed}


@given(speedup=st.floats(0.5, 20), factor=st.floats(0.5, 20), baseline=st.floats(1, 1e4), drives=st.integers(1, 36))
def test_with_the_needed_watts_the_published_energy_factor_holds(
    speedup: float, factor: float, baseline: float, drives: int
) -> None:
    added = needed_drive_watts(speedup, factor, baseline, drives)
    per_work = (baseline + drives * added) / speedup
    assert baseline / per_work == pytest.approx(factor)


def test_published_power_ratios_are_those_of_the_reference_table() -> None:
    ratios = {name: round(result.power_ratio, 2) for name, result in PUBLISHED.items()}
    assert ratios == {"hypertune": 1.27, "stannis": 0.84, "solana": 1.02}
    assert needed_drive_watts(2.7, PUBLISHED["stannis"].energy_factor, 400.0, 24) < 0
