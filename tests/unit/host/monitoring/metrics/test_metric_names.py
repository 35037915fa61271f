"""The table of metrics: it is what is exported, what is documented, and it keeps Prometheus' rules."""

import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from csd_lab.generate.metrics_documentation import PATH, render
from csd_lab.generate.promql_queries import QUERIES, TARGET
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.health.drive_health import DriveHealth
from firmware_agent.common.health.health_log import decode_health
from host.core.records import EventKind, EventRecord, RoundRecord, SendingRecord
from host.core.sampling.sampling_record import SamplingRecord
from host.monitoring.metrics.calibrated import Calibrated
from host.monitoring.metrics.metric_names import METRICS, OLD_NAMES
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.metrics.nvme_metrics import HEALTH_FIGURES
from host.monitoring.run_facts import RunFacts
from host.monitoring.run_listener import show_round
from tests.support.metrics import DEVICES, TABLE, begun, exposed, facts, scraped, starting
from tests.support.records import device_round, round_record, service_figures, service_rounds, with_bands
from tests.support.sync_records import SyncRun

UNITS = {"seconds", "bytes", "joules", "watts", "ratio", "celsius"}
# Their unit does not say that they are made of seconds.
MADE_OF_SECONDS = {"csd_device_slowdown_ratio", "csd_step_imbalance_ratio", "csd_possible_records_per_second"} | {
    *("csd_calibrated_records_per_second", "csd_dies_busy_ratio", "csd_training_share_ratio"),
}
# What would be unbounded, or names a thing of another kind.
FORBIDDEN_LABELS = {"tensor", "layer", "pid", "round", "step", "le", "quantile", "incarnation"}
HEALTH_LOGS = Path(__file__).parents[3] / "firmware_agent/common/health/fixtures"
SMART, OCP = ((HEALTH_LOGS / f"made-verbose.{log}.json").read_bytes() for log in ("smart", "ocp"))
SAMPLING = SamplingRecord(counted_steps=13, steps=368, error=0.002, start_share=0.005, not_counted=["csd-01"])


def full() -> str:
    """A scrape of a run of which everything is known."""
    calibrated = Calibrated(dict.fromkeys(DEVICES, TABLE))
    state = MetricsState(RunFacts("lab", "qemu", "digits_cnn", "federated", DEVICES, 400.0, servers=2), calibrated)
    for device in DEVICES:
        state.add_event(EventRecord(device, EventKind.JOINED))
    state.begin(starting(boot_seconds=dict.fromkeys(DEVICES, 2.5)))
    state.add_event(EventRecord(DEVICES[0], EventKind.REJECTED, "in round 1: it is no number [not_finite]"))
    joules = {"idle": 1.0}
    parts = [
        device_round(
            *(name, 10, PhaseSeconds(forward=1.0)),
            energy_joules=joules,
            peak_memory_bytes=1,
            metrics={"a b": 0.5},
            health=decode_health(SMART, OCP),
            service=service_figures(),
        )
        for name in DEVICES
    ]
    sent = {step: {"sending": SendingRecord("priority", 1 << 16, 1 << 18)} for step in range(1, 5)}
    show_round([state], with_bands(SyncRun(drives=3, steps=4, spoiled=sent).make()[0]))
    fields = {
        "energy_joules": {"host": joules},
        "machine_joules": 5.0,
        "sampling": SAMPLING,
        "gradient_noise_records": 42.0,
    }
    state.add_round(with_bands(round_record(parts, **fields)))
    return exposed(state)


def test_what_is_exported_is_the_table_and_nothing_else() -> None:
    families = {family.name: family for family in text_string_to_metric_families(full())}
    table = {metric.name.removesuffix("_total"): metric for metric in (*METRICS, *OLD_NAMES.values())}
    assert families.keys() == table.keys()
    for name, family in families.items():
        metric = table[name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(metric.labels)
            assert not sample.name.endswith("_created")


def banded_round(number: int = 1) -> RoundRecord:
    fields = {"energy_joules": {"host": {"idle": 5.0}}}
    part = device_round(DEVICES[0], 10, PhaseSeconds(forward=2.0), clock="sampled", energy_joules={"idle": 3.0})
    return with_bands(round_record([part], round=number, **fields))


def band_lines(state: MetricsState) -> list[str]:
    return sorted(line for line in exposed(state).splitlines() if line.startswith("csd_") and "_band_" in line)


def test_both_ends_of_bands_add_up_over_rounds_each_on_its_clock() -> None:
    state = begun(DEVICES)
    assert band_lines(state) == []
    state.add_round(banded_round())
    state.add_round(banded_round(2))
    device = DEVICES[0]
    assert band_lines(state) == [
        'csd_array_band_seconds_total{clock="counted",end="high"} 8.0',
        'csd_array_band_seconds_total{clock="counted",end="low"} 2.0',
        f'csd_compute_band_seconds_total{{clock="sampled",device="{device}",end="high"}} 8.0',
        f'csd_compute_band_seconds_total{{clock="sampled",device="{device}",end="low"}} 2.0',
        f'csd_energy_band_joules_total{{clock="counted",device="{device}",end="high"}} 12.0',
        f'csd_energy_band_joules_total{{clock="counted",device="{device}",end="low"}} 3.0',
        'csd_energy_band_joules_total{clock="counted",device="host",end="high"} 20.0',
        'csd_energy_band_joules_total{clock="counted",device="host",end="low"} 5.0',
    ]


@pytest.mark.parametrize("known", [(True, False), (False, True), (True, False, True)])
def test_there_are_no_bands_of_a_run_of_which_a_round_has_none(known: tuple[bool, ...]) -> None:
    state = begun(DEVICES)
    for number, banded in enumerate(known, 1):
        record = banded_round(number)
        state.add_round(record if banded else msgspec.structs.replace(record, bands={}, device_bands={}))
    assert band_lines(state) == []


def test_a_round_exports_how_far_its_seconds_rest_on_samples() -> None:
    found = [line for line in full().splitlines() if line.startswith("csd_sampling_")]
    assert sorted(found) == [
        "csd_sampling_counted_steps_total 13.0",
        'csd_sampling_error_ratio{error="interval"} 0.002',
        'csd_sampling_error_ratio{error="starts"} 0.005',
        "csd_sampling_missing_drives 1.0",
        "csd_sampling_steps_total 368.0",
    ]


def test_what_drives_do_for_their_host_adds_up_or_is_the_last_rounds() -> None:
    state, rounds = begun(DEVICES), service_rounds(2, DEVICES[:2], failed_writes=3)
    for record in rounds:
        state.add_round(record)
    found = scraped(state)
    device = DEVICES[1]
    assert found["csd_host_commands_total"][device, "read"] == 280_000
    assert found["csd_host_bytes_total"][device, "write"] == 120_000 * 4096
    assert found["csd_host_failed_writes_total"] == {(name,): 6 for name in DEVICES[:2]}
    latencies = {key: value for key, value in found["csd_host_latency_seconds"].items() if device in key}
    assert {percentile: value for (_, _, percentile), value in latencies.items()} == pytest.approx(
        {"50": 3.0e-4, "99": 4.5e-3, "99.9": 7.5e-3}
    )
    assert found["csd_host_mean_latency_seconds"]["counted", device] == pytest.approx(3.6e-4)
    assert found["csd_write_amplification"][device,] == 1.8
    for name in ("csd_host_queue_depth", "csd_dies_busy_ratio", "csd_training_share_ratio"):
        assert len(found[name]) == 2
    assert not [line for line in exposed(begun(DEVICES)).splitlines() if line.startswith("csd_host_c")]


@pytest.mark.parametrize("clock", ["counted", "sampled", "sampled+wall"])
def test_counters_of_samples_begin_at_zero_on_their_clock_alone(clock: str) -> None:
    counters = [line for line in exposed(begun(clock=clock)).splitlines() if line.startswith("csd_sampling_")]
    zeros = ["csd_sampling_counted_steps_total 0.0", "csd_sampling_steps_total 0.0"]
    assert sorted(counters) == (zeros if "sampled" in clock else [])


def test_names_keep_the_rules(subtests: pytest.Subtests) -> None:
    for metric in METRICS:
        with subtests.test(metric=metric):
            assert re.fullmatch(r"(csd|nvme)(_[a-z0-9]+)+", metric.name)
            assert metric.name.endswith("_total") == (metric.kind == "counter")
            assert metric.unit in UNITS | {""}
            last = metric.name.removesuffix("_total").rpartition("_")[2]
            assert last == metric.unit if metric.unit else last not in UNITS
            assert not set(metric.labels) & FORBIDDEN_LABELS
            assert metric.help
            assert not metric.help.endswith(".")
            assert bool(metric.buckets) == (metric.kind == "histogram")
            assert all(low < high for low, high in pairwise(metric.buckets))


def test_an_old_name_has_the_values_of_the_new_one() -> None:
    families = {family.name: family for family in text_string_to_metric_families(full())}
    assert {metric.name: old.name for metric, old in OLD_NAMES.items()} == {
        "csd_calibrated_records_per_second": "csd_calibrated_images_per_second",
        "csd_possible_records_per_second": "csd_possible_images_per_second",
    }
    for metric, old in OLD_NAMES.items():
        values = [[(each.labels, each.value) for each in families[name.name].samples] for name in (metric, old)]
        assert values[0]
        assert values[0] == values[1]
        assert metric.name in families[old.name].documentation


def test_every_figure_that_rests_on_time_names_its_clock(subtests: pytest.Subtests) -> None:
    for metric in METRICS:
        with subtests.test(metric=metric):
            rests_on_time = metric.unit in {"seconds", "joules", "watts"} or metric.name in MADE_OF_SECONDS
            others = metric.name == "csd_device_info" or metric.name.startswith("nvme_")  # labels of other exporters
            assert ("clock" in metric.labels) == rests_on_time or others


def test_no_two_metrics_have_a_name() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_the_published_page_is_that_of_the_code() -> None:
    assert PATH.read_text(encoding="utf-8") == render(), "run python -m csd_lab.generate.metrics_files"


def test_queries_ask_for_what_is_exported_with_labels_that_it_has() -> None:
    samples = {
        sample.name: sample.labels.keys() for f in text_string_to_metric_families(full()) for sample in f.samples
    }
    for query in QUERIES:
        asked = re.findall(r"csd_\w+", query.expression)
        assert asked
        assert set(asked) <= samples.keys(), query.question
        for group in re.findall(r"by \(([\w, ]+)\)", query.expression):
            own = set(group.split(", ")) - set(TARGET)  # those are Prometheus' own
            assert all(own <= samples[name] for name in asked), query.question


def test_a_drive_is_described_by_what_it_said() -> None:
    (first, *_) = [line for line in full().splitlines() if line.startswith("csd_device_info{")]
    for label in ('kind="emulated"', 'profile="newport"', 'cores="4"', 'clock="counted"', 'torch_version="2.9.1"'):
        assert label in first
    assert facts("csd-00").info[0] == "csd-00"


def test_the_health_of_a_real_drive_is_exported_as_other_exporters_do() -> None:
    device = DEVICES[0]
    lines = {line for line in full().splitlines() if line.startswith("nvme_") and f'device="{device}"' in line}
    assert len(lines) == len(HEALTH_FIGURES)
    assert lines >= {
        f'nvme_temperature_celsius{{device="{device}"}} 75.0',
        f'nvme_percentage_used_ratio{{device="{device}"}} 1.12',
        f'nvme_critical_warning{{device="{device}"}} 6.0',
        f'nvme_controller_busy_time_seconds_total{{device="{device}"}} 5925900.0',
        f'nvme_data_units_read_total{{device="{device}"}} 1234567890123.0',
        f'nvme_current_throttling_status{{device="{device}"}} 2.0',
    }


def test_the_drives_own_counters_are_not_added_up_and_what_is_not_told_has_no_series() -> None:
    state = begun(DEVICES)
    for number, hours in enumerate((100, 101), 1):
        part = device_round(DEVICES[0], 10, PhaseSeconds(forward=1.0), health=DriveHealth(power_on_hours=hours))
        state.add_round(round_record([part], round=number))
    lines = [line for line in exposed(state).splitlines() if line.startswith("nvme_")]
    assert lines == [f'nvme_power_on_hours_total{{device="{DEVICES[0]}"}} 101.0']
