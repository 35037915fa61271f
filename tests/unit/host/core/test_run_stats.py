"""Sums of a run agree however they are taken, and what came too late counts in bytes and energy alone."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.health.drive_health import DriveHealth
from host.core.records import RoundRecord, in_time, node_joules
from host.core.run_stats import RunStats
from host.core.summary import SYNC, summarise
from host.monitoring.report.charts.training_charts import GROUPS, group_energy
from tests.support.records import array_rounds, device_round, round_record, with_bands
from tests.support.sync_records import SyncRun

FACTS = {
    "array": "lab",
    "engine": "qemu",
    "model": "digits_cnn",
    "target_accuracy": None,
    "reached": True,
    "wall_seconds": 1.0,
    "run_directory": "runs/lab",
    "seed": 0,
}


def with_late(rounds: list[RoundRecord], late: set[tuple[int, str]]) -> list[RoundRecord]:
    """Return the rounds with these (position, device) marked as stragglers."""
    return [
        msgspec.structs.replace(
            record, devices=[msgspec.structs.replace(p, straggler=(at, p.device) in late) for p in record.devices]
        )
        for at, record in enumerate(rounds)
    ]


@given(st.integers(1, 5), st.integers(1, 5), st.sets(st.tuples(st.integers(0, 4), st.just("csd-00"))))
def test_sums_agree_however_they_are_taken(count: int, drives: int, late: set[tuple[int, str]]) -> None:
    names = [f"csd-{number:02d}" for number in range(drives)]
    rounds = with_late(array_rounds(count, names), late)
    stats = RunStats.of(rounds, names)
    assert list(stats.devices)[:drives] == names
    assert stats.samples == sum(record.samples for record in rounds)
    assert stats.compute_seconds == pytest.approx(
        sum(part.device_seconds.total for record in rounds for part in in_time(record.devices))
    )
    assert stats.sent_bytes == sum(part.sent_bytes for record in rounds for part in record.devices)
    assert stats.received_bytes == sum(part.received_bytes for record in rounds for part in record.devices)
    assert stats.link_bytes == stats.sent_bytes + stats.received_bytes
    assert stats.read_bytes == sum(part.flash_read_bytes for record in rounds for part in record.in_time)
    by_node = sum(sum(parts.values()) for parts in stats.node_joules.values())
    by_group = sum(sum(group_energy(record).values()) for record in rounds)
    assert stats.energy_joules == pytest.approx(by_node) == pytest.approx(by_group)
    assert set(group_energy(rounds[0])) == set(GROUPS)
    stragglers = len([at for at, _ in late if at < count])
    assert stats.devices["csd-00"].stragglers == stragglers
    assert ("csd-00" in stats.device_seconds) == (stragglers < count)


def test_a_lost_drives_idle_energy_is_its_own() -> None:
    record = round_record([], lost=["csd-00"], energy_joules={"csd-00": {"idle": 6.0}, "host": {"idle": 9.0}})
    stats = RunStats.of([record], ["csd-00"])
    assert (stats.devices["csd-00"].lost, stats.devices["csd-00"].rounds) == (1, 0)
    assert stats.node_joules["csd-00"] == {"idle": 6.0}
    assert group_energy(record)["drives: idle"] == 6.0
    assert stats.records_per_array_second == stats.joules_per_record == 0
    assert math.isclose(stats.energy_joules, 15.0)


def test_a_host_that_trains_is_one_node() -> None:
    part = device_round("host", 10, PhaseSeconds(forward=1.0), energy_joules={"cpu": 1.0})
    drive = device_round("csd-00", 10, PhaseSeconds(forward=1.0), energy_joules={"cpu": 2.0})
    joules = node_joules([part, drive], {"host": {"cpu": 3.0, "idle": 4.0}, "csd-01": {"idle": 5.0}})
    assert joules == {"host": {"cpu": 4.0, "idle": 4.0}, "csd-00": {"cpu": 2.0}, "csd-01": {"idle": 5.0}}
    record = round_record([part, drive], energy_joules={"host": {"cpu": 3.0, "idle": 4.0}, "csd-01": {"idle": 5.0}})
    assert record.node_joules == joules
    assert sum(sum(parts.values()) for parts in joules.values()) == record.total_joules


def test_summary_and_sums_are_the_same_figures() -> None:
    rounds = SyncRun().make()
    stats, summary = RunStats.of(rounds), summarise(rounds, **FACTS)
    assert (summary.mode, summary.steps, summary.retunes) == (SYNC, stats.steps, stats.retunes)
    assert summary.device_seconds == stats.device_seconds
    assert (summary.samples, summary.energy_joules) == (stats.samples, stats.energy_joules)
    assert summary.joules_per_record == stats.joules_per_record


@given(st.integers(1, 4), st.sets(st.tuples(st.integers(0, 3), st.just("csd-00"))))
def test_bands_of_nodes_are_sums_over_rounds_and_add_up_to_those_of_all(count: int, late: set[tuple[int, str]]) -> None:
    rounds = [with_bands(record) for record in with_late(array_rounds(count, ["csd-00", "csd-01"]), late)]
    stats, summary = RunStats.of(rounds), summarise(rounds, **FACTS)
    assert summary.device_bands == stats.device_bands
    for node, parts in stats.node_joules.items():
        assert stats.device_bands[node]["energy_joules"].high == pytest.approx(2 * sum(parts.values()))
    for device, seconds in stats.device_seconds.items():
        assert stats.device_bands[device]["device_seconds"].low == pytest.approx(seconds / 2)
    for name in ("device_seconds", "energy_joules"):
        together = [bands[name].low for bands in stats.device_bands.values() if name in bands]
        assert sum(together) == pytest.approx(stats.bands[name].low)


@given(st.integers(0, 3))
def test_one_round_without_bands_leaves_none(unknown: int) -> None:
    rounds = array_rounds(4, ["csd-00", "csd-01"])
    stats = RunStats.of(record if at == unknown else with_bands(record) for at, record in enumerate(rounds))
    assert (stats.bands, stats.device_bands) == ({}, {})


def test_the_last_health_is_kept_and_the_logs_power_makes_joules() -> None:
    healths = [None, DriveHealth(power_watts=10.0), DriveHealth(power_watts=12.0, media_errors=1), None]
    rounds = [
        round_record([device_round("csd-00", 1, PhaseSeconds(), health=health)], array_seconds=2.0)
        for health in healths
    ]
    stats = RunStats.of(rounds).devices["csd-00"]
    assert stats.health == healths[2]
    assert stats.log_joules == 44.0
    assert RunStats.of(rounds[:1]).devices["csd-00"].log_joules is None
