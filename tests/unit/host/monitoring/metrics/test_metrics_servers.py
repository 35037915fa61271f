"""Metrics of several servers, and the list of them that Prometheus reads."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.core.records import ServersRecord, StepRecord
from host.monitoring.metrics.metric_names import (
    ALLREDUCE_BYTES,
    ALLREDUCE_SECONDS,
    SERVER_STEPS,
    SERVER_WAIT_SECONDS,
    SERVERS,
)
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.run_facts import RunFacts
from host.monitoring.run_listener import show_round
from host.training.multi_server.prometheus_targets import render_targets, write_targets
from tests.support.metrics import DEVICES, begun, defined, scraped, starting
from tests.support.records import round_record

seconds = st.floats(0, 1e6)
steps = st.lists(st.tuples(st.integers(1, 64), st.integers(0, 10**12), seconds, seconds), max_size=4)
COUNTERS = (SERVER_STEPS, ALLREDUCE_BYTES, ALLREDUCE_SECONDS, SERVER_WAIT_SECONDS)


def counters(state: MetricsState) -> list[float]:
    """Steps, bytes, seconds of adding up, seconds of waiting."""
    metrics = scraped(state)
    return [math.fsum(metrics[metric.name].values()) for metric in COUNTERS]


def among(servers: int = 3) -> MetricsState:
    state = MetricsState(RunFacts("lab", "qemu", "digits_cnn", "sync", DEVICES, servers=servers))
    state.begin(starting())
    return state


def servers_step(present: int, sent_bytes: int, reduce: float, waited: float, meetings: int = 0) -> StepRecord:
    servers = ServersRecord(
        server="a",
        present=[str(number) for number in range(present)],
        samples=2,
        own_seconds=0.0,
        slowest_seconds=waited,
        reduce_seconds=reduce,
        sent_bytes=sent_bytes,
        meetings=meetings,
    )
    return StepRecord(step=1, loss=0.5, learning_rate=0.1, array_seconds=1.0, servers=servers)


@given(rounds=st.lists(steps, max_size=4), unfinished=steps)
def test_counters_are_the_sums_of_the_steps_of_rounds_that_are_over(
    rounds: list[list[tuple[int, int, float, float]]], unfinished: list[tuple[int, int, float, float]]
) -> None:
    state = among()
    expected = [0.0, 0.0, 0.0, 0.0]
    for number, taken in enumerate(rounds, 1):
        records = [servers_step(*step) for step in taken]
        for record in records:
            state.add_step(record, 1.0, {})
            assert record.servers is not None
            assert scraped(state)[SERVERS.name] == {(): len(record.servers.present)}
        assert counters(state) == pytest.approx(expected)
        show_round([state], round_record([], round=number, steps=records), len(records))
        added = [len(taken), *(math.fsum(step[place] for step in taken) for place in (1, 2, 3))]
        expected = [before + more for before, more in zip(expected, added, strict=True)]
        assert counters(state) == pytest.approx(expected)
    for step in unfinished:
        state.add_step(servers_step(*step), 1.0, {})
    assert counters(state) == pytest.approx(expected)


@pytest.mark.slow
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 10**12), seconds, seconds, st.integers(0, 3)), max_size=4), max_size=3)
)
def test_counters_of_a_resumed_run_go_on_where_they_were(rounds: list[list[tuple[int, float, float, int]]]) -> None:
    past = [
        round_record([], round=number, clock="counted", steps=[servers_step(2, *told) for told in taken])
        for number, taken in enumerate(rounds, 1)
    ]
    first = among()
    resumed = MetricsState(RunFacts("lab", "qemu", "digits_cnn", "sync", DEVICES, servers=3))
    for record in past:
        show_round((first, resumed), record)
    resumed.begin(starting())
    assert counters(resumed) == pytest.approx(counters(first))
    assert scraped(resumed)["csd_rendezvous_total"] == scraped(first)["csd_rendezvous_total"]
    assert scraped(resumed)["csd_servers"] == {(): 3}


def test_what_is_of_several_servers_is_not_there_for_one() -> None:
    state = begun()
    state.add_round(round_record([]))
    found = {name for name in scraped(state) if "server" in name or "allreduce" in name or "rendezvous" in name}
    assert found == {"csd_server_info"}


def test_servers_that_meet_anew_are_counted_at_once() -> None:
    state = among()
    assert scraped(state)["csd_servers_expected"] == scraped(state)["csd_servers"] == {(): 3}
    state.add_step(servers_step(2, 1, 1.0, 1.0, meetings=1), 1.0, {})
    assert (scraped(state)["csd_rendezvous_total"], scraped(state)["csd_servers"]) == ({(): 1}, {(): 2})
    state.add_step(servers_step(3, 1, 1.0, 1.0, meetings=1), 2.0, {})
    assert (scraped(state)["csd_rendezvous_total"], scraped(state)["csd_servers"]) == ({(): 2}, {(): 3})


@pytest.mark.parametrize(("given", "shown"), [("rack-1", "rack-1"), ("", "lab")])
def test_a_host_names_its_server_and_one_alone_its_array(given: str, shown: str) -> None:
    state = MetricsState(RunFacts("lab", "qemu", "digits_cnn", "sync", DEVICES, server=given))
    assert scraped(state)["csd_server_info"] == {(shown,): 1}
    assert scraped(defined())["csd_server_info"] == {("lab",): 1}


names = st.text(min_size=1, max_size=20)
ports = st.integers(1, 65535)


@given(servers=st.dictionaries(names, ports, max_size=8).filter(lambda s: len(set(s.values())) == len(s)))
def test_targets_are_what_was_given_one_by_one_with_their_names(servers: dict[str, int]) -> None:
    addresses = {name: f"10.0.0.1:{port}" for name, port in servers.items()}
    listed = json.loads(render_targets(addresses))
    assert {entry["labels"]["server"]: entry["targets"] for entry in listed} == {
        name: [address] for name, address in addresses.items()
    }
    assert all(entry["labels"].keys() == {"server"} for entry in listed)


def test_what_is_no_address_is_refused_and_nothing_is_written(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for address in [
        *("10.0.0.1", "10.0.0.1:", ":9464", "10.0.0.1:0", "a:65536", "http://a:9464", "a:x"),
        *(
            "a b:9464",
            "a:9464\n",
            "user@a:9464",
            "a?x:9464",
            "a:\u0661",
            "a:9464/x",
            "-a:1",
            "[::1:1",
            "a" * 300 + ":1",
        ),
    ]:
        with subtests.test(address=address):
            path = tmp_path / "targets.json"
            with pytest.raises(ConfigurationError, match=r"rack-2: .* is no address"):
                write_targets(path, {"rack-1": "a:9464", "rack-2": address})
            assert not path.exists()


def test_two_servers_on_one_address_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="servers rack-1 and rack-2 both export on a:9464"):
        render_targets({"rack-1": "a:9464", "rack-2": "a:9464"})


def test_a_list_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "targets" / "servers.json"
    write_targets(path, {"rack-1": "a:1", "rack-2": "b:1"})
    write_targets(path, {"rack-2": "b:1"})
    assert path.read_text() == render_targets({"rack-2": "b:1"})
    assert [each.name for each in path.parent.iterdir()] == ["servers.json"]


def test_a_place_that_cannot_be_written_to_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentUnfit, match="targets cannot be written"):
        write_targets(tmp_path / "file" / "servers.json", {"rack-1": "a:1"})
