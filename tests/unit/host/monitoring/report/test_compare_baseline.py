"""A run against "the host trains, drives are plain storage": laws, and figures worked out by hand."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.power import PUBLISHED, needed_drive_watts
from csd_emu.profiles import PROFILES
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import RoundRecord
from host.monitoring.report.compare_baseline import compare, saved_share
from host.monitoring.report.comparison import Comparison
from host.monitoring.report.load_run import RunData
from host.monitoring.report.run_work import RunWork, newport_seconds
from tests.support.records import READ_BYTES, WEIGHT_BYTES, array_rounds, device_round

NEWPORT, XEON = PROFILES["newport"], PROFILES["xeon-4108"]


def run_of(records: list[RoundRecord], drives: int, **fields: Any) -> RunData:
    names = {f"csd-{number:02d}": "newport" for number in range(drives)}
    defaults: dict[str, Any] = {
        "path": Path("run"),
        "rounds": records,
        "array": {"engine": "qemu"},
        "job": {"epochs": 2},
        "devices": names,
    }
    return RunData(**defaults | fields)


def compared(drives: int, count: int = 3, **fields: Any) -> Comparison:
    return compare(run_of(array_rounds(count, [f"csd-{number:02d}" for number in range(drives)]), drives, **fields))


def change(rounds: list[RoundRecord], **fields: Any) -> list[RoundRecord]:
    return [
        msgspec.structs.replace(record, devices=[msgspec.structs.replace(part, **fields) for part in record.devices])
        for record in rounds
    ]


def test_the_hosts_compute_is_the_drives_divided_by_the_ratio() -> None:
    run = run_of(array_rounds(3, ["csd-00", "csd-01"]), 2)
    seconds = sum(
        part.device_seconds.total - part.device_seconds.encode for record in run.rounds for part in record.devices
    )
    band = compare(run).band
    assert [each.ratio for each in band] == [11, 15.2, 21]
    for each in band:
        assert each.compute_seconds == pytest.approx(seconds / each.ratio)
        assert each.seconds == pytest.approx(each.compute_seconds + each.exposed_seconds)
        assert each.speedup == pytest.approx(each.seconds / sum(record.array_seconds for record in run.rounds))


def test_a_faster_host_is_a_harder_baseline() -> None:
    low, middle, high = compared(3).band
    assert low.speedup > middle.speedup > high.speedup
    assert low.energy_joules > middle.energy_joules > high.energy_joules
    assert low.break_even_drives is not None
    assert high.break_even_drives is not None
    assert low.break_even_drives < high.break_even_drives


def test_three_drives_lose_against_a_xeon_and_thirty_six_win() -> None:
    assert all(each.speedup < 1 for each in compared(3).band)
    assert all(each.speedup > 1 for each in compared(36).band)


@pytest.mark.parametrize("drives", [1, 3, 12])
def test_so_many_drives_are_as_fast_and_one_less_is_not(drives: int) -> None:
    run = run_of(array_rounds(3, [f"csd-{number:02d}" for number in range(drives)]), drives)
    link = run.link()
    assert link is not None
    work = RunWork(run.rounds, dict.fromkeys(run.devices, NEWPORT), XEON, link)
    needed = work.break_even_drives(11)
    assert needed is not None
    assert work.predict_seconds(needed) <= work.baseline(11, needed).seconds
    assert work.predict_seconds(needed - 1) > work.baseline(11, needed - 1).seconds


def test_equal_drives_are_predicted_as_they_were_composed() -> None:
    """With drives that differ, equal shares are never slower than the slowest drive was."""
    one = array_rounds(3, ["csd-00"])
    run = run_of(one, 1)
    link = run.link()
    assert link is not None
    work = RunWork(one, {"csd-00": NEWPORT}, XEON, link)
    assert work.predict_seconds(1) == pytest.approx(sum(record.array_seconds for record in one), rel=0.01)
    four = array_rounds(3, [f"csd-{number:02d}" for number in range(4)])
    equal = RunWork(four, {f"csd-{number:02d}": NEWPORT for number in range(4)}, XEON, link).predict_seconds(4)
    assert equal < sum(record.array_seconds for record in four)


def test_no_number_of_drives_is_enough_where_the_weights_cost_more_than_the_work() -> None:
    rounds = change(array_rounds(2, ["csd-00"]), sent_bytes=10**9, received_bytes=10**9)
    assert [each.break_even_drives for each in compare(run_of(rounds, 1)).band] == [None, None, None]


@given(st.integers(0, 10**15), st.integers(1, 10**15), st.integers(0, 10**12))
def test_saved_shares_are_at_most_one_and_more_bytes_are_never_better(ours: int, baseline: int, more: int) -> None:
    share = saved_share(ours, baseline)
    assert share <= 1
    assert (share >= 0) == (ours <= baseline)
    assert saved_share(ours + more, baseline) <= share
    assert saved_share(ours, baseline + more) >= share


def test_bytes_are_the_records_own() -> None:
    comparison = compared(3, count=4)
    assert comparison.link_bytes == 4 * 3 * 2 * WEIGHT_BYTES
    assert comparison.baseline_link_bytes == 4 * 3 * READ_BYTES
    assert comparison.cached_link_bytes == 3 * (READ_BYTES // 2)  # two passes in each round
    assert comparison.saved_share == 1 - comparison.link_bytes / comparison.baseline_link_bytes


@pytest.mark.slow
@given(st.integers(2, 50))
def test_reading_more_never_makes_the_baseline_faster_or_thriftier(factor: int) -> None:
    rounds = array_rounds(2, ["csd-00", "csd-01"])
    less, more = (compare(run_of(each, 2)) for each in (rounds, change(rounds, flash_read_bytes=READ_BYTES * factor)))
    for before, after in zip(less.band, more.band, strict=True):
        assert after.seconds >= before.seconds
        assert after.energy_joules > before.energy_joules
        assert after.speedup >= before.speedup


def test_the_baselines_energy_by_hand() -> None:
    """Host, chassis and idle drives over its time, and bytes at both ends."""
    comparison = compared(2)
    low = comparison.band[0]
    power, host = NEWPORT.power, XEON.power
    assert XEON.chassis_watts is not None
    idle = (host.idle_watts.value + XEON.chassis_watts.value + 2 * power.idle_watts.value) * low.seconds
    busy = (host.core_watts.value * XEON.cores.value + host.dram_watts.value) * low.compute_seconds
    per_byte = power.flash_joules_per_byte.value + power.link_joules_per_byte.value + host.link_joules_per_byte.value
    assert low.energy_joules == pytest.approx(idle + busy + per_byte * comparison.baseline_link_bytes, rel=1e-6)
    assert low.energy_factor == pytest.approx(low.energy_joules / comparison.energy_joules)


def test_published_results_say_which_watts_they_need() -> None:
    comparison = compared(36)
    watts = comparison.band[1].energy_joules / comparison.band[1].seconds
    by_source = {each.source: each for each in comparison.published}
    hypertune = by_source[PUBLISHED["hypertune"].source]
    assert hypertune.power_ratio == pytest.approx(1.265, abs=1e-3)
    assert hypertune.needed_watts == needed_drive_watts(3.1, 2.45, watts, 36)
    assert hypertune.needed_watts > 0
    assert by_source[PUBLISHED["stannis"].source].needed_watts < 0
    assert [each.assumed_watts for each in comparison.published] == pytest.approx([0.3 * 4 + 2.2] * len(PUBLISHED))


def test_assumed_figures_are_told_each_profile_once() -> None:
    assumed = compared(3).assumed
    assert ("newport", "power.idle_watts", 6.0, "W") in [
        (each.profile, each.name, each.value, each.unit) for each in assumed
    ]
    assert len({(each.profile, each.name) for each in assumed}) == len(assumed)
    assert {each.profile for each in assumed} == {"newport", "xeon-4108"}


def test_seconds_of_another_drive_become_newports() -> None:
    part = device_round("a", 10, PhaseSeconds(forward=3.4, backward=0.0, update=0.0, encode=5.0))
    assert newport_seconds(part, NEWPORT) == pytest.approx({"forward": 3.4, "backward": 0, "update": 0})
    seconds = newport_seconds(part, PROFILES["generic-a53"])
    assert seconds["forward"] == pytest.approx(1.0)  # four cores at 0.85 against one


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rounds": []}, "No round was finished"),
        ({"array": {"host": {"profile": "newport"}}}, "speed in drives"),
        ({"array": {"host": {"profile": "unheard-of"}}}, "not known"),
        ({"devices": {}}, "profile of a drive"),
        ({"devices": {"csd-00": "unheard-of"}}, "profile of a drive"),
        ({"rounds": change(array_rounds(1, ["csd-00"]), flash_read_bytes=0)}, "read from flash"),
        ({"rounds": change(array_rounds(1, ["csd-00"]), clock="wall"), "array": {"engine": "native"}}, "wall seconds"),
    ],
)
def test_what_cannot_be_told_is_not_told(fields: dict[str, Any], reason: str) -> None:
    comparison = compare(run_of(array_rounds(1, ["csd-00"]), 1, **fields))
    assert reason in comparison.reason
    assert comparison.band == comparison.published == comparison.assumed == []


def test_a_real_drives_wall_seconds_are_its_own() -> None:
    rounds = change(array_rounds(1, ["csd-00"]), clock="wall")
    assert len(compare(run_of(rounds, 1, array={"engine": "remote"})).band) == 3


def test_without_the_runs_energy_there_is_no_factor() -> None:
    rounds = [msgspec.structs.replace(record, energy_joules={}) for record in array_rounds(1, ["csd-00"])]
    band = compare(run_of(change(rounds, energy_joules={}), 1)).band
    assert [each.energy_factor for each in band] == [None, None, None]
