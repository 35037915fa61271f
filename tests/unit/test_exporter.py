import socket
import urllib.request
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from firmware_agent.errors import EnvironmentUnfit
from firmware_agent.wire import PhaseSeconds
from host.exporter import Exporter
from host.records import EventRecord, RoundRecord, What
from tests.records import device_round, round_record

Samples = dict[tuple[str, ...], float]


def scrape(exporter: Exporter) -> dict[str, Samples]:
    """Fetch as Prometheus does."""
    with urllib.request.urlopen(exporter.address, timeout=10) as answer:
        return parse(answer.read().decode())


def parse(text: str) -> dict[str, Samples]:
    """Return metric -> label values -> value."""
    metrics: dict[str, Samples] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            metrics.setdefault(sample.name, {})[tuple(sample.labels[key] for key in sorted(sample.labels))] = (
                sample.value
            )
    return metrics


def record(clock: str, *parts: tuple[str, int, int, float]) -> RoundRecord:
    devices = [
        device_round(name, samples, PhaseSeconds(forward=seconds), steps=steps, clock=clock)
        for name, samples, steps, seconds in parts
    ]
    return round_record(devices, clock=clock)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    with Exporter(None) as exporter:
        yield exporter


names = st.sampled_from(["csd-00", "csd-01", "csd-02"])
parts = st.lists(
    st.tuples(names, st.integers(1, 10**6), st.integers(1, 1000), st.floats(0, 1e4)), unique_by=lambda part: part[0]
)


@given(rounds=st.lists(st.tuples(st.sampled_from(["counted", "wall"]), parts), max_size=5))
def test_counters_are_the_sums_of_the_records(rounds: list[tuple[str, list[tuple[str, int, int, float]]]]) -> None:
    samples: Samples = {}
    steps: Samples = {}
    seconds: Samples = {}
    exporter = Exporter(None)
    for clock, devices in rounds:
        exporter.add_round(record(clock, *devices))
        for name, count, step_count, time in devices:
            samples[(name,)] = samples.get((name,), 0) + count
            steps[(name,)] = steps.get((name,), 0) + step_count
            seconds[(clock, name)] = seconds.get((clock, name), 0.0) + time
    metrics = parse(generate_latest(exporter.registry).decode())
    assert metrics.get("csd_train_samples_total", {}) == samples
    assert metrics.get("csd_train_steps_total", {}) == steps
    assert metrics.get("csd_device_seconds_total", {}) == pytest.approx(seconds)


def test_a_round_is_there_at_the_next_scrape(exporter: Exporter) -> None:
    assert "csd_train_samples_total" not in scrape(exporter)
    exporter.add_round(record("counted", ("csd-00", 100, 4, 1.5)))
    metrics = scrape(exporter)
    assert metrics["csd_train_samples_total"] == {("csd-00",): 100.0}
    assert metrics["csd_train_steps_total"] == {("csd-00",): 4.0}
    assert metrics["csd_device_seconds_total"] == {("counted", "csd-00"): 1.5}


def test_a_device_is_up_until_it_leaves(exporter: Exporter) -> None:
    exporter.add_event(EventRecord("csd-00", What.JOINED))
    exporter.add_event(EventRecord("csd-01", What.JOINED))
    exporter.add_event(EventRecord("csd-01", What.LEFT))
    assert scrape(exporter)["csd_device_up"] == {("csd-00",): 1.0, ("csd-01",): 0.0}


def test_a_port_in_use_is_one_clear_error_that_names_the_key(exporter: Exporter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            EnvironmentUnfit, match=rf"host\.metrics_port: cannot listen on 127\.0\.0\.1:{port}"
        ) as caught:
            Exporter(port).__enter__()
    assert caught.value.exit_code == 2


def test_it_listens_on_loopback_alone_and_stops(exporter: Exporter) -> None:
    assert exporter.address.startswith("http://127.0.0.1:")
    with Exporter(None) as other:
        address = other.address
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=5)
