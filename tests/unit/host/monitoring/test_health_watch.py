"""Notes on the health of drives: once for each thing, and again only when it comes back."""

from __future__ import annotations

import msgspec

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.health.drive_health import DriveHealth
from host.core.records import decode_record
from host.monitoring.health_watch import HealthWatch
from tests.support.records import device_round, round_record


def notes(*rounds: DriveHealth | None) -> list[list[str]]:
    """Return what is told in each round of one drive."""
    told: list[str] = []
    watch = HealthWatch(lambda device, what, detail: told.append(f"{device} {what}: {detail}"))
    found = []
    for health in rounds:
        watch.look_at(round_record([device_round("csd-00", 10, PhaseSeconds(), health=health)]))
        found.append([*told])
        told.clear()
    return found


def test_a_drive_that_is_well_or_tells_nothing_is_not_noted() -> None:
    assert notes(None, DriveHealth(critical_warning=0, throttle_events=7), None, DriveHealth(throttle_events=7)) == [
        *([], [], [], [])
    ]


def test_a_warning_is_noted_when_it_is_set_and_another_one_when_that_is() -> None:
    spare, both = DriveHealth(critical_warning=1), DriveHealth(critical_warning=0b11)
    assert notes(spare, spare, both, both) == [
        ["csd-00 note: its own log warns: spare blocks below their threshold; see docs/health.md"],
        [],
        ["csd-00 note: its own log warns: temperature beyond a threshold; see docs/health.md"],
        [],
    ]


def test_throttling_is_noted_once_until_it_has_ended() -> None:
    hot, cool = DriveHealth(throttling=1, temperature_celsius=81.0), DriveHealth(throttling=0)
    told = notes(hot, hot, cool, hot)
    note = "csd-00 note: it throttles itself at 81 °C: a cool drive takes fewer seconds"
    assert told == [[note], [], [], [note]]


def test_throttling_between_two_looks_is_noted_by_the_counters() -> None:
    told = notes(*(DriveHealth(throttle_transitions=count) for count in (3, 3, 4, 5, 5, 6)))
    assert [len(each) for each in told] == [0, 0, 1, 0, 0, 1]


def test_health_is_written_down_and_read_again() -> None:
    health = DriveHealth(temperature_celsius=41.0, media_errors=0)
    record = round_record(
        [device_round(name, 10, PhaseSeconds(), health=own) for name, own in zip("ab", (health, None), strict=True)]
    )
    line = msgspec.json.encode(record)
    assert b'"media_errors":0' in line
    assert b"power_watts" not in line
    assert decode_record(line) == record
