"""Our text is what `prometheus_client` writes of what it reads in it, for states that change at random."""

import gzip
import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import parser as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import EventKind, EventRecord
from host.monitoring.metrics.exposition import Exposition
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.run_facts import RunFacts
from host.monitoring.run_listener import show_round
from tests.support.metrics import begun, defined, starting
from tests.support.records import device_round, round_record
from tests.support.sync_records import SyncRun
from tests.unit.host.monitoring.metrics.test_metrics_state import rounds

PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
ACCEPTS = [None, "", "*/*", "text/plain; version=1.0.0", "application/openmetrics-text", PROMETHEUS]
events = st.builds(
    EventRecord,
    st.sampled_from(["csd-00", "csd-01", "csd-02", "stranger"]),
    st.sampled_from(
        [EventKind.JOINED, EventKind.LEFT, EventKind.LOST, EventKind.REJOINED, EventKind.FAILED, EventKind.REFUSED]
    ),
)


class Read(Collector):
    """What a client of Prometheus reads in a text."""

    def __init__(self, text: str) -> None:
        read = (
            open_metrics.text_string_to_metric_families if text.endswith("# EOF\n") else text_string_to_metric_families
        )
        self._families = list(read(text))

    def collect(self) -> Iterable[Metric]:
        return self._families

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not look for names that collide."""
        return ()


def lines_of(text: str) -> list[str]:
    """The lines, values as numbers all alike."""
    pairs = [(line, "") if line.startswith("#") else line.rsplit(" ", 1) for line in text.splitlines()]
    return [f"{line} {float(value)}" if value else line for line, value in pairs]


def assert_same(state: MetricsState, exposition: Exposition, accept: str | None) -> None:
    """It is whole, it is what another exposition makes of the state anew, and it is the client's own text."""
    headers, body = exposition.render(accept, None)
    encoder, content_type = choose_encoder(accept or "")
    registry = CollectorRegistry()
    registry.register(Read(body.decode()))
    assert headers == [("Content-Type", content_type)]
    assert body == Exposition(state).render(accept, None)[1]
    assert lines_of(body.decode()) == lines_of(encoder(registry).decode())


@pytest.mark.slow
@given(records=rounds(), more=st.lists(events, max_size=12), accept=st.sampled_from(ACCEPTS))
def test_it_is_the_text_of_prometheus_client_at_every_moment(
    records: list[Any], more: list[EventRecord], accept: str | None
) -> None:
    state = begun()
    exposition = Exposition(state)
    assert_same(state, exposition, accept)
    for number in range(max(len(records), len(more))):
        for record in records[number : number + 1]:
            state.add_round(record)
        assert_same(state, exposition, accept)
        for event in more[number : number + 1]:
            state.add_event(event)
        assert_same(state, exposition, accept)


@pytest.mark.parametrize("accept", ACCEPTS)
def test_synchronous_runs_too(accept: str | None) -> None:
    run = SyncRun(steps=30, round_steps=10)
    state = MetricsState(RunFacts("lab", "native", "digits_cnn", "sync", tuple(run.names)))
    state.begin(starting(run.names, "counted+modelled"))
    exposition = Exposition(state)
    for record in run.make():
        show_round([state], record)
        assert_same(state, exposition, accept)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_written_as_prometheus_writes_it(number: float) -> None:
    state = begun()
    state.add_round(round_record([], test_loss=number))
    _, body = Exposition(state).render(None, None)
    word = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[str(number)]
    assert f'csd_loss{{set="test"}} {word}\n' in body.decode()
    assert_same(state, Exposition(state), None)


def test_labels_hold_any_text() -> None:
    strange = 'a "quoted" 100 % \\ back\nslash'
    state = MetricsState(RunFacts(strange, "native", "my %s model", "federated", ("csd-00",)))
    state.begin(starting(["csd-00"]))
    assert_same(state, Exposition(state), None)


def test_prometheus_gets_it_compressed_and_others_as_it_is() -> None:
    exposition = Exposition(begun())
    plain_headers, plain = exposition.render(None, "identity")
    headers, body = exposition.render(None, "gzip")
    assert headers == [*plain_headers, ("Content-Encoding", "gzip")]
    assert gzip.decompress(body) == plain


def test_an_unchanged_state_is_not_rendered_again_and_a_changed_one_is() -> None:
    state = begun()
    exposition = Exposition(state)
    _, first = exposition.render(PROMETHEUS, "gzip")
    assert exposition.render(PROMETHEUS, "gzip")[1] is first
    for change in (
        lambda: state.add_event(EventRecord("csd-01", EventKind.LEFT)),
        lambda: state.add_round(round_record([device_round("csd-00", 1, PhaseSeconds(forward=1.0))], round=2)),
        state.end,
    ):
        change()
        _, now = exposition.render(PROMETHEUS, "gzip")
        assert now != first
        assert_same(state, exposition, PROMETHEUS)
        first = now


def test_a_state_that_has_only_been_defined_is_served() -> None:
    state = defined()
    assert_same(state, Exposition(state), None)
