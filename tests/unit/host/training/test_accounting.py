from dataclasses import astuple, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.power import add_up, device_energy
from csd_emu.profiles import get_profile
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Trained
from host.training.accounting import Accountant, DeviceReport, Lateness, StepAccount, make_accountant

NAMES = [f"csd-{number:02d}" for number in range(4)]
NEWPORT = get_profile("newport")

seconds = st.floats(0, 100)
returned_parts = st.lists(
    st.tuples(seconds, seconds, st.integers(0, 10**9), st.integers(0, 10**8), st.integers(0, 10**8)),
    min_size=1,
    max_size=len(NAMES),
)


def accountant(**link: Any) -> Accountant:
    array = {"name": "lab", "devices": [{"profile": "newport", "count": len(NAMES)}], "link": link}
    return make_accountant(ArrayConfig.model_validate(array))


def returned(device: str, forward: float, encode: float, read: int, sent: int, received: int) -> DeviceReport:
    trained = Trained(1, 64, 2, 0.5, PhaseSeconds(forward=forward, encode=encode), read)
    return DeviceReport(device, "counted", trained, 1, 32, sent, received)


def parts_of(values: list[tuple[float, float, int, int, int]]) -> list[DeviceReport]:
    return [returned(name, *value) for name, value in zip(NAMES, values, strict=False)]


def joules(accounted: StepAccount) -> dict[str, float]:
    own = {part.device: sum(part.energy_joules.values()) for part in accounted.devices}
    return own | {node: sum(parts.values()) for node, parts in accounted.energy_joules.items()}


@given(returned_parts)
def test_a_round_takes_as_long_as_its_slowest_part_and_every_watt_is_somebodys(values: list[Any]) -> None:
    result = accountant().account(parts_of(values))
    for part in result.devices:
        own = part.receive_seconds + part.read_seconds + part.device_seconds.total + part.send_seconds
        assert result.finish_seconds[part.device] == pytest.approx(own)
        assert own <= result.array_seconds + 1e-9
    assert result.array_seconds == pytest.approx(max(result.finish_seconds.values()))
    assert set(joules(result)) == {*NAMES, "host"}
    assert min(joules(result).values()) >= 0


@given(returned_parts, returned_parts)
def test_rounds_follow_each_other_in_the_arrays_time(first: list[Any], second: list[Any]) -> None:
    books = accountant()
    one, two = books.account(parts_of(first)), books.account(parts_of(second))
    assert books.array_seconds == pytest.approx(one.array_seconds + two.array_seconds)
    assert all(span.end_seconds <= one.array_seconds + 1e-6 for span in one.spans)
    assert all(span.start_seconds >= one.array_seconds - 1e-6 for span in two.spans)


@given(returned_parts)
def test_a_devices_energy_is_that_of_its_spans(values: list[Any]) -> None:
    books = accountant()
    books.account(parts_of(values))
    result = books.account(parts_of(values))
    for part in result.devices:
        did = astuple(add_up(NEWPORT, [span for span in result.spans if span.device == part.device]))
        want = device_energy(NEWPORT.power, result.array_seconds, *did)
        assert part.energy_joules == pytest.approx(want, rel=1e-4, abs=1e-6)


def test_a_device_past_the_deadline_is_a_straggler_and_the_round_ends_then() -> None:
    parts = [returned("csd-00", 1.0, 0.0, 0, 0, 0), returned("csd-01", 40.0, 0.0, 0, 0, 0)]
    result = accountant().account(parts, Lateness(2.0))
    assert [part.straggler for part in result.devices] == [False, True]
    assert result.array_seconds == 2.0
    in_time = accountant().account(parts, Lateness(100.0))
    assert [part.straggler for part in in_time.devices] == [False, False]
    assert in_time.array_seconds == max(in_time.finish_seconds.values())


@given(returned_parts, st.floats(0.001, 50))
def test_a_late_device_is_taken_to_stop_at_the_deadline(values: list[Any], deadline_seconds: float) -> None:
    books = accountant()
    books.account(parts_of(values), Lateness(deadline_seconds))
    begin = books.array_seconds
    result = books.account(parts_of(values), Lateness(deadline_seconds))
    end = begin + result.array_seconds
    assert result.array_seconds <= deadline_seconds
    assert all(begin - 1e-9 <= span.start_seconds <= span.end_seconds <= end + 1e-9 for span in result.spans)
    power = NEWPORT.power
    most_watts = power.idle_watts.value + power.dram_watts.value + NEWPORT.cores.value * power.core_watts.value
    for part in result.devices:
        assert part.straggler == (result.finish_seconds[part.device] > deadline_seconds)
        computing = {name: part.energy_joules[name] for name in ("idle", "cpu", "dram")}
        assert sum(computing.values()) <= most_watts * result.array_seconds * (1 + 1e-9) + 1e-9
        assert sum(part.energy_joules.values()) >= 0


def test_a_narrower_link_makes_the_round_longer() -> None:
    parts = [returned(name, 0.1, 0.0, 0, 10**8, 10**8) for name in NAMES]
    wide, narrow = (accountant(bandwidth=rate).account(parts) for rate in ("2 GB/s", "100 MB/s"))
    assert narrow.array_seconds > 4 * wide.array_seconds
    # 400 MB each way at 100 MB/s, the two ways one after the other.
    assert narrow.array_seconds >= 8.0
    alone = accountant(bandwidth="100 MB/s", shared=False).account(parts)
    assert alone.array_seconds == pytest.approx(2 * 1.0 + 0.1 * NEWPORT.scale("forward"), rel=1e-2)


def test_numbers_are_those_of_a_client_program_alone() -> None:
    part = returned("csd-00", 1.0, 0.0, 0, 0, 0)
    part = replace(part, trained=structs.replace(part.trained, metrics={"loss": 0.5, "acc": 0.75}))
    kept = [accountant().account([replace(part, by_program=own)]).devices[0].metrics for own in (False, True)]
    assert kept == [{}, {"acc": 0.75}]


def test_drives_that_returned_nothing_still_draw_power() -> None:
    result = accountant().account([returned("csd-00", 1.0, 0.0, 0, 0, 0)])
    idle = NEWPORT.power.idle_watts.value * result.array_seconds
    assert {node: sum(parts.values()) for node, parts in result.energy_joules.items() if node != "host"} == {
        name: pytest.approx(idle) for name in NAMES[1:]
    }
    host = get_profile("xeon-4108")
    assert host.chassis_watts is not None
    expected = (host.power.idle_watts.value + host.chassis_watts.value) * result.array_seconds
    assert sum(result.energy_joules["host"].values()) == pytest.approx(expected)
