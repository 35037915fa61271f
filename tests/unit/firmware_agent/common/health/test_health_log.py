"""Decoding of nvme-cli's health logs: all kinds of drives are read, nothing in a log can make it crash."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import HealthLogRefused
from firmware_agent.common.health.drive_health import DriveHealth, IoCounters
from firmware_agent.common.health.health_log import MAX_LOG_BYTES, decode_health

FIXTURES = Path(__file__).parent / "fixtures"
SMART = {path.name.removesuffix(".smart.json"): path.read_bytes() for path in sorted(FIXTURES.glob("*.smart.json"))}
OCP = {path.name.removesuffix(".ocp.json"): path.read_bytes() for path in sorted(FIXTURES.glob("*.ocp.json"))}
MADE = "made-verbose"


def changed(log: bytes, **values: Any) -> bytes:
    return json.dumps(json.loads(log) | values).encode()


def without(log: bytes, *keys: str) -> bytes:
    return json.dumps({key: value for key, value in json.loads(log).items() if key not in keys}).encode()


@pytest.mark.parametrize("name", SMART)
def test_the_logs_of_every_kind_of_drive_are_read(name: str) -> None:
    health = decode_health(SMART[name], OCP.get(name))
    raw = {key.lower(): value for key, value in json.loads(SMART[name]).items()}
    assert health.temperature_celsius == int(raw["temperature"]) - 273
    assert health.io.read_commands == int(raw["host_read_commands"])
    assert health.io.written_units == int(raw["data_units_written"])
    assert health.power_on_hours == int(raw["power_on_hours"])
    assert health.media_errors == int(raw["media_errors"])
    assert (health.ocp_version is not None) == (name in OCP)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(health), type=DriveHealth) == health


def test_there_are_fixtures_of_at_least_five_kinds_of_drives_each_with_its_source() -> None:
    table = (FIXTURES / "README.md").read_text(encoding="utf-8")
    decoded = [name for name in SMART if decode_health(SMART[name], OCP.get(name)) != DriveHealth()]
    assert len(decoded) == len(SMART) >= 5, "health logs decoded: all of them"
    assert OCP.keys() <= SMART.keys()
    assert all(f"`{name}`" in table for name in SMART)


def test_a_drive_that_tells_all_is_read_field_by_field() -> None:
    assert decode_health(SMART[MADE], OCP[MADE]) == DriveHealth(
        io=IoCounters(45678901234567, 23456789012345, 1234567890123, 987654321098),
        critical_warning=6,
        temperature_celsius=75.0,
        hottest_celsius=86.0,
        available_spare=0.08,
        spare_threshold=0.1,
        used=1.12,
        busy_minutes=98765,
        power_cycles=41,
        power_on_hours=30123,
        unsafe_shutdowns=12,
        media_errors=17,
        error_log_entries=205,
        throttle_transitions=13,
        throttle_seconds=708,
        power_watts=pytest.approx(12.24),  # type: ignore[arg-type]
        ocp_version=4,
        throttling=2,
        throttle_events=13,
        media_written_bytes=987654321098765432,
        media_read_bytes=876543210987654321,
        bad_user_blocks=23,
        uncorrectable_reads=2,
        capacitor_health=None,
        power_loss_starts=52,
    )


def test_both_formats_of_the_ocp_log_say_the_same() -> None:
    first = json.loads(OCP["autoval-hynix"])
    second = {
        "physical_media_units_written": first["Physical media units written"],
        "thermal_throttling_events": first["Number of Thermal throttling events"],
        "uncorrectable_read_errors": first["Uncorrectable read error count"],
        "log_page_version": 2,
    }
    old, new = (decode_health(SMART["autoval-hynix"], json.dumps(log).encode()) for log in (first, second))
    assert (old.media_written_bytes, old.throttle_events, old.uncorrectable_reads) == (39074645999616, 0, 0)
    assert (new.media_written_bytes, new.throttle_events, new.uncorrectable_reads) == (39074645999616, 0, 0)


def test_what_a_log_lacks_is_none_and_never_zero() -> None:
    health = decode_health(b'{"critical_warning": 0, "temperature": 0}')
    assert health == DriveHealth(critical_warning=0)
    assert decode_health(SMART["intel-p3700"]).power_watts is None
    for name in ("media_errors", "percent_used", "thm_temp1_trans_count"):
        assert decode_health(without(SMART["throttled"], name)) != decode_health(
            changed(SMART["throttled"], **{name: 0})
        )


@pytest.mark.parametrize(
    ("raw", "watts"), [(0, None), (0x1_0000 | 25000, 2.5), (0x2_0000 | 1224, 12.24), (0x3_0000 | 5, None), (77, None)]
)
def test_a_power_has_a_scale_or_is_none(raw: int, watts: float | None) -> None:
    log = changed(SMART["intel-p3700"], interval_power_measurement=raw)
    assert decode_health(log).power_watts == (watts if watts is None else pytest.approx(watts))


@pytest.mark.parametrize(
    ("smart", "says"),
    [
        (b"", "cut short"),
        (b"[1]", "cut short, or no JSON of nvme-cli"),
        (b'{"error": "failed to open /dev/nvme0"}', "no critical_warning and no temperature; it says 'failed to open"),
        (b'{"nvme_smart_health_information_log": {"temperature": 30}}', "another log"),
        (b" " * (MAX_LOG_BYTES + 1), "longer than"),
        (changed(SMART["throttled"], temperature=-5), "no drive can have.*temperature_celsius"),
        (changed(SMART["throttled"], media_errors=-1), "media_errors"),
        (changed(SMART["throttled"], media_errors=2**120), "whole number|no drive can have"),
        (changed(SMART["throttled"], media_errors="12 errors"), "'12 errors' as media_errors"),
        (changed(SMART["throttled"], media_errors=True), "bool'> as media_errors"),
        (changed(SMART["throttled"], media_errors=None), "NoneType"),
        (changed(SMART["throttled"], power_cycles="9" * 5000), "as power_cycles"),
        (changed(SMART["throttled"], critical_warning={"ro": 1}), "dict'> as critical_warning"),
    ],
)
def test_another_log_and_impossible_values_are_refused_by_name(smart: bytes, says: str) -> None:
    with pytest.raises(HealthLogRefused, match=says):
        decode_health(smart)


@pytest.mark.parametrize(
    ("ocp", "says"),
    [
        (changed(OCP[MADE], log_page_version=9), "version 9, and csd-emu knows 1 to 6"),
        (changed(OCP[MADE], log_page_guid="0x123"), "GUID '0x123'"),
        (changed(OCP[MADE], physical_media_units_read={"hi": 1, "lo": 5}), "no drive can have.*media_read_bytes"),
        (changed(OCP[MADE], physical_media_units_read={"hi": 1}), "dict'> as physical_media_units_read"),
        (SMART[MADE], "OCP log of this drive is another log"),
        (OCP[MADE][:-20], "OCP log of this drive is cut short"),
    ],
)
def test_an_ocp_log_of_another_version_or_page_is_refused(ocp: bytes, says: str) -> None:
    with pytest.raises(HealthLogRefused, match=says):
        decode_health(SMART[MADE], ocp)


@given(st.sampled_from([*SMART.values()]), st.data())
def test_a_log_cut_anywhere_is_refused(log: bytes, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(log.rstrip()) - 1))
    with pytest.raises(HealthLogRefused):
        decode_health(log[:end])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(2**140), 2**140) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["hi", "lo", "Value", "x"]), inner),
    max_leaves=6,
)


@given(st.sampled_from([*json.loads(SMART[MADE])]), st.sampled_from([*json.loads(OCP[MADE])]), JSON)
def test_a_wrong_value_is_refused_or_read_within_bounds(smart_key: str, ocp_key: str, value: Any) -> None:
    for smart, ocp in (
        (changed(SMART[MADE], **{smart_key: value}), OCP[MADE]),
        (SMART[MADE], changed(OCP[MADE], **{ocp_key: value})),
    ):
        try:
            health = decode_health(smart, ocp)
        except HealthLogRefused:
            continue
        msgspec.msgpack.decode(msgspec.msgpack.encode(health), type=DriveHealth)


@pytest.mark.parametrize("opened", ['{"a":', "["])
@pytest.mark.parametrize("depth", [50, 990, 10_000])
def test_deep_nesting_ends_in_a_refusal(opened: str, depth: int) -> None:
    closed = {"[": "]", '{"a":': "}"}[opened]
    nested = f"{opened * depth}{closed * depth}".replace(":}", ":0}")
    for log in (nested, f'{{"temperature": {nested}, "critical_warning": 0}}', f'{{"error": {nested}}}'):
        with pytest.raises(HealthLogRefused):
            decode_health(log.encode())
    with contextlib.suppress(HealthLogRefused):
        decode_health(SMART[MADE], f'{{"log_page_version": 2, "log_page_guid": {nested}}}'.encode())


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    with pytest.raises(HealthLogRefused):
        decode_health(data)


COUNTERS = st.builds(IoCounters, *[st.none() | st.integers(0, 2**53)] * 4)


@given(COUNTERS, COUNTERS)
def test_what_came_since_is_never_negative_and_nothing_is_made_up(now: IoCounters, before: IoCounters) -> None:
    for came, end, begin in zip(*map(msgspec.structs.astuple, (now.since(before), now, before)), strict=True):
        assert came == (None if end is None or begin is None or end < begin else end - begin)


@pytest.mark.parametrize(
    ("before", "now", "throttled"),
    [
        (DriveHealth(), DriveHealth(), False),
        (DriveHealth(), DriveHealth(throttling=1), True),
        (DriveHealth(throttle_events=2), DriveHealth(throttle_events=2, throttling=0), False),
        (DriveHealth(throttle_events=2), DriveHealth(throttle_events=3, throttling=0), True),
        (DriveHealth(throttle_transitions=2), DriveHealth(throttle_transitions=3), True),
        (DriveHealth(), DriveHealth(throttle_transitions=3), False),
    ],
)
def test_a_drive_has_throttled_if_it_says_so_now_or_its_counters_grew(
    before: DriveHealth, now: DriveHealth, throttled: bool
) -> None:
    assert now.has_throttled(before) is throttled


def test_critical_warnings_have_words() -> None:
    assert DriveHealth().warnings == []
    assert DriveHealth(critical_warning=0b1000_1001).warnings == [
        "spare blocks below their threshold",
        "read-only",
        "bit 7",
    ]
