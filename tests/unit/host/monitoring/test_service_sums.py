"""Sums of what drives did for their host: counts add up, means stay between, percentiles are of one round."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.storage.service_figures import ServiceFigures
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.health.drive_health import DriveHealth, IoCounters
from host.core.records import RoundRecord, decode_record
from host.monitoring.service_sums import (
    bytes_per_second,
    commands_per_second,
    list_figures,
    measure_by_drive,
    sum_by_drive,
    sum_services,
)
from tests.support.records import array_rounds, device_round, round_record, service_figures, service_rounds

COUNTS = ("reads", "writes", "read_bytes", "write_bytes", "failed_writes", "over_limit_seconds")
MEANS = ("mean_seconds", "queue_depth", "die_busy_share", "training_share")
PERCENTILES = ("p50_seconds", "p99_seconds", "p999_seconds", "alone_p99_seconds")
_SHARES = st.floats(0.0, 1.0)
FIGURES = st.builds(
    ServiceFigures,
    seconds=st.floats(0.0, 1e4),
    **{name: st.integers(0, 10**9) for name in COUNTS},
    **{name: _SHARES for name in (*MEANS, *PERCENTILES, "waited_seconds")},
    write_amplification=st.floats(1.0, 9.0),
    second_p99_seconds=st.lists(_SHARES, max_size=3),
)


@given(st.lists(FIGURES, min_size=1, max_size=6))
def test_counts_add_up_means_lie_between_and_percentiles_are_of_the_worst_round(figures: list[ServiceFigures]) -> None:
    total = sum_services(figures)
    for name in COUNTS:
        assert getattr(total, name) == sum(getattr(each, name) for each in figures)
    for name in ("seconds", "waited_seconds"):
        assert getattr(total, name) == pytest.approx(sum(getattr(each, name) for each in figures))
    for name in MEANS:
        values = [getattr(each, name) for each in figures]
        assert min(values) * (1 - 1e-9) - 1e-200 <= getattr(total, name) <= max(values) * (1 + 1e-9)
    worst = [getattr(total, name) for name in PERCENTILES]
    assert worst in [[getattr(each, name) for name in PERCENTILES] for each in figures]
    assert total.p99_seconds == max(each.p99_seconds for each in figures)
    assert total.write_amplification == figures[-1].write_amplification


@given(FIGURES)
def test_one_round_is_its_own_sum(figures: ServiceFigures) -> None:
    assert list_figures(sum_services([figures])) == pytest.approx(list_figures(figures))


@given(st.lists(FIGURES, min_size=2, max_size=6))
def test_rates_lie_between_those_of_the_rounds(figures: list[ServiceFigures]) -> None:
    timed = [each for each in figures if each.seconds > 1e-3]
    for rate in (commands_per_second, bytes_per_second):
        if timed:
            rates, whole = [rate(each) for each in timed], rate(sum_services(timed))
            assert min(rates) * (1 - 1e-9) <= whole <= max(rates) * (1 + 1e-9)


def test_no_time_is_no_rate() -> None:
    assert commands_per_second(service_figures(seconds=0.0)) == bytes_per_second(service_figures(seconds=0.0)) == 0.0
    assert math.isfinite(sum_services([service_figures(seconds=0.0, reads=0, writes=0)] * 2).mean_seconds)


def test_each_drive_has_its_own_sum_and_who_serves_nobody_has_none() -> None:
    found = sum_by_drive(service_rounds(3, ["csd-00", "csd-01"]))
    assert {name: each.p99_seconds for name, each in found.items()} == pytest.approx({"csd-00": 4.5e-3, "csd-01": 6e-3})
    assert {each.reads for each in found.values()} == {420_000}
    assert sum_by_drive(array_rounds(2, ["csd-00"])) == {}
    assert list_figures(None) == {}


def test_a_record_keeps_them_and_a_diverged_run_may_lack_them() -> None:
    (served,), (plain,) = service_rounds(1, ["csd-00"], second_p99_seconds=[1e-3]), array_rounds(1, ["csd-00"])
    assert decode_record(msgspec.json.encode(served)) == served
    diverged = decode_record(msgspec.json.encode(msgspec.structs.replace(plain, test_loss=math.nan)))
    assert isinstance(diverged, RoundRecord)
    assert diverged.devices[0].service is None


def measured(*told: tuple[int | None, int] | None, seconds: float = 10.0) -> list[float | None]:
    """Return the rates of a drive whose counters each round, and when it took the job, are all the same."""
    health = (
        None if each is None else DriveHealth(io=_same(each[0]), io_of_job=_same(each[0]).since(_same(each[1])))
        for each in told
    )
    parts = (device_round("csd-00", 10, PhaseSeconds(), health=each) for each in health)
    found = measure_by_drive(round_record([part], wall_seconds=seconds) for part in parts)
    return found.get("csd-00", [])


def _same(count: int | None) -> IoCounters:
    return IoCounters(count, count, count, count)


@given(st.integers(0, 2**62), st.lists(st.integers(0, 40_000), min_size=1, max_size=6), st.floats(0.5, 100.0))
def test_a_drives_rate_is_what_its_counter_grew_over_the_time(start: int, steps: list[int], seconds: float) -> None:
    counts = [start + sum(steps[:number]) for number in range(len(steps) + 1)]
    rate = sum(steps) / (len(steps) * seconds)
    assert measured(*((count, start) for count in counts), seconds=seconds) == pytest.approx([rate] * 4)


def test_a_round_in_which_a_drive_tells_nothing_counts_with_the_next_one() -> None:
    assert measured((100, 0), None, (300, 0)) == [10.0] * 4
    assert measured(None) == []


@pytest.mark.parametrize(
    "odd",
    [
        [(0, 0), (100, 0), (100 + 2**60, 0), (200 + 2**60, 0)],  # it jumps
        [(500, 500), (600, 500), (3, 500), (103, 500)],  # it is set back
        [(0, 0), (100, 0), (9000, 8000), (9100, 8000)],  # the job is taken again, long after
        [(0, 0), (100, 0), (None, 0), (200, 0), (300, 0)],  # it is absent
    ],
)
def test_time_in_which_a_counter_cannot_be_believed_is_left_out(odd: list[tuple[int | None, int]]) -> None:
    assert measured(*odd) == [10.0] * 4


def test_a_jump_within_what_old_logs_may_hold_is_no_rate() -> None:
    assert measured((0, 0), (100, 0), (11 * 10**8, 0)) == [None, None, 10.0, 10.0]


def test_one_look_or_no_counter_gives_no_rate() -> None:
    assert measured((100, 0)) == measured((None, 0), (None, 0)) == [None] * 4
    unknown_begin = [
        round_record([device_round("csd-00", 10, PhaseSeconds(), health=DriveHealth(io=_same(count)))])
        for count in (100, 200)
    ]
    assert measure_by_drive(unknown_begin) == {"csd-00": [None] * 4}
    assert measure_by_drive(array_rounds(2, ["csd-00"])) == {}
