"""Two servers' exporters and one real Prometheus: figures per server and hypervisor are those of the records."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards.panels import PanelNeeds
from csd_lab.testkit.prometheus import PROGRAM, Prometheus, serve_prometheus
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import EventKind, EventRecord, RoundRecord, ServersRecord, StepRecord
from host.monitoring.exporter import Exporter
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.run_facts import DeviceFacts, RunFacts
from host.monitoring.run_listener import RunStart, show_round
from host.training.multi_server.prometheus_targets import write_targets
from tests.support.expressions import Expression, list_expressions
from tests.support.machines import REQUIRE_VARIABLE
from tests.support.records import device_round, round_record, service_figures

SHIPPED = Path(__file__).parents[2] / "images" / "prometheus"
SECONDS, PAUSE_SECONDS = 120.0, 0.25
DEVICES = ("csd-00", "csd-01", "csd-02")
HYPERVISORS = {"csd-00": "here", "csd-01": "rack-b", "csd-02": "rack-b"}
STEPS = 5
REDUCED_BYTES, REDUCE_SECONDS = 1000, 0.25


@dataclass
class Server:
    """A server of a run that never was: every round takes the same, so that any window says the same.

    Attributes:
        name: of the server.
        scale: of its work: how it differs from the other.
        state: what its exporter serves.
        waited_seconds: of each step.
        present: servers that take it.
        meetings: how often they meet anew in each step.
    """

    name: str
    scale: float
    waited_seconds: float
    state: MetricsState
    rounds: int = 0
    present: int = 2
    meetings: int = 0

    @classmethod
    def begun(cls, name: str, scale: float, waited_seconds: float) -> Server:
        facts = RunFacts("lab", "qemu", "digits_cnn", "sync", DEVICES, server=name, servers=2)
        server = cls(name, scale, waited_seconds, MetricsState(facts))
        for device in DEVICES:
            server.state.add_event(EventRecord(device, EventKind.JOINED))
        about = [
            DeviceFacts(device, "emulated", "newport", 4, "counted", {}, {}, HYPERVISORS[device]) for device in DEVICES
        ]
        server.state.begin(RunStart("counted", list_devices=lambda: about))
        return server

    def record(self) -> RoundRecord:
        parts = [
            device_round(
                device,
                int(100 * self.scale * (place + 1)),
                PhaseSeconds(forward=1.0 + place),
                energy_joules={"cpu": 3.0 * self.scale * (place + 1)},
                service=service_figures(place + 1),
            )
            for place, device in enumerate(DEVICES)
        ]
        return round_record(
            parts,
            round=self.rounds + 1,
            array_seconds=8.0,
            energy_joules={"host": {"chassis": 40.0 * self.scale}},
            steps=[self.step()] * STEPS,
        )

    def step(self) -> StepRecord:
        servers = ServersRecord(
            server=self.name,
            present=[f"rack-{number}" for number in range(self.present)],
            samples=1,
            own_seconds=1.0,
            slowest_seconds=1.0 + self.waited_seconds,
            reduce_seconds=REDUCE_SECONDS,
            sent_bytes=int(REDUCED_BYTES * self.scale),
            meetings=self.meetings,
        )
        return StepRecord(step=1, loss=0.5, learning_rate=0.1, array_seconds=1.0, servers=servers)

    def train(self) -> None:
        show_round([self.state], self.record())
        self.rounds += 1


@dataclass
class Watched:
    """Two servers that Prometheus scrapes, and what it is asked with."""

    prometheus: Prometheus
    servers: list[Server]
    list_path: Path
    addresses: dict[str, str]
    exporters: list[Exporter]

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Train on until it is so."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"it never happened: {what}"
            for server in self.servers:
                server.train()
            time.sleep(PAUSE_SECONDS)

    def by(self, expression: str, label: str) -> dict[str, float]:
        answer = self.prometheus.answer(expression)
        values = {labels.get(label, ""): value for labels, value in answer}
        assert len(values) == len(answer)
        return values


@pytest.fixture(scope="module", params=["labelled", "plain"])
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    """With the list that csd-emu writes, and with addresses alone: rules name servers either way."""
    if shutil.which(PROGRAM) is None and os.environ.get(REQUIRE_VARIABLE) != "1":
        pytest.skip("Prometheus is not installed; make setup-dev installs it")
    servers = [Server.begun("rack-1", 1.0, 0.0), Server.begun("rack-2", 0.5, 0.125)]
    with contextlib.ExitStack() as stack:
        exporters = [stack.enter_context(Exporter(server.state, None)) for server in servers]
        addresses = {
            server.name: exporter.address.removeprefix("http://").removesuffix("/metrics")
            for server, exporter in zip(servers, exporters, strict=True)
        }
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="csd-")))
        shutil.copytree(SHIPPED, folder / "prometheus")
        config = folder / "prometheus" / "prometheus.yml"
        plain = str(list(addresses.values())) if request.param == "plain" else "[]"
        config.write_text(config.read_text().replace('["host:8080"]', plain).replace("2s", "1s"))
        for path in (folder / "prometheus" / "rules").iterdir():
            path.write_text(path.read_text().replace(f"interval: {rules.INTERVAL}", "interval: 1s"))
        list_path = folder / "prometheus" / "targets" / "servers.json"
        if request.param == "labelled":
            write_targets(list_path, addresses)
        prometheus = stack.enter_context(serve_prometheus(config))
        watched = Watched(prometheus, servers, list_path, addresses, exporters)
        watched.until("a figure of each server", lambda: len(watched.by(rules.SERVER_WAIT_SHARE.name, "server")) == 2)
        watched.until("a figure of each hypervisor", lambda: bool(prometheus.answer(rules.HYPERVISOR_WATTS.name)))
        yield watched


def records_of(record: RoundRecord) -> float:
    return sum(part.samples for part in record.devices)


FIGURES: dict[str, Callable[[Server], float]] = {
    rules.SERVER_RECORDS.name: lambda server: records_of(server.record()) / 8.0,
    rules.SERVER_WATTS.name: lambda server: server.record().total_joules / 8.0,
    rules.SERVER_JOULES_PER_RECORD.name: lambda server: server.record().total_joules / records_of(server.record()),
    rules.SERVER_WAIT_SHARE.name: lambda server: STEPS * server.waited_seconds / 8.0,
    rules.SERVER_ALLREDUCE.name: lambda server: STEPS * REDUCE_SECONDS / 8.0,
    rules.SERVER_ALLREDUCE_BYTES.name: lambda server: STEPS * int(REDUCED_BYTES * server.scale) / 8.0,
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_servers_figures_are_those_of_its_records(watched: Watched, name: str) -> None:
    answered = watched.by(name, "server")
    assert answered == pytest.approx({server.name: FIGURES[name](server) for server in watched.servers})


def test_a_servers_energy_is_that_of_its_rounds_so_far(watched: Watched) -> None:
    expected = {server.name: server.rounds * server.record().total_joules for server in watched.servers}

    def same() -> bool:
        answered = watched.by(rules.SERVER_JOULES.name, "server")
        return answered.keys() == expected.keys() and all(
            math.isclose(answered[name], value) for name, value in expected.items()
        )

    deadline = time.monotonic() + SECONDS
    while not same():  # nobody trains meanwhile
        assert time.monotonic() < deadline, (watched.by(rules.SERVER_JOULES.name, "server"), expected)
        time.sleep(PAUSE_SECONDS)


def test_a_hypervisors_figures_are_those_of_its_drives_on_each_server(watched: Watched) -> None:
    for rule, figure in (
        (rules.HYPERVISOR_RECORDS, lambda part: part.samples / part.device_seconds.total),
        (rules.HYPERVISOR_WATTS, lambda part: sum(part.energy_joules.values()) / 8.0),
    ):
        expected: dict[tuple[str, str], float] = {}
        for server in watched.servers:
            for part in server.record().devices:
                key = watched.addresses[server.name], HYPERVISORS[part.device]
                expected[key] = expected.get(key, 0.0) + figure(part)
        answer = watched.prometheus.answer(rule.name)
        answered = {(labels["instance"], labels["hypervisor"]): value for labels, value in answer}
        assert answered == pytest.approx(expected)


def of_what_these_have() -> list[Expression]:
    return [
        each
        for each in list_expressions()
        if each.needs in (PanelNeeds.SERVERS, PanelNeeds.HYPERVISOR, PanelNeeds.HOST_IO)
        and not each.origin.startswith("alert/")
    ]


def test_what_only_servers_virtual_machines_and_host_io_have_is_asked_here() -> None:
    assert len(of_what_these_have()) >= len(rules.OF_SERVERS) + len(rules.OF_HYPERVISORS)


@pytest.mark.parametrize("expression", of_what_these_have(), ids=lambda each: each.origin)
def test_every_expression_has_an_answer(watched: Watched, expression: Expression) -> None:
    answer = watched.prometheus.answer(expression.asked("csd-00"))
    assert answer
    assert np.isfinite([value for _, value in answer]).all()


def test_every_series_of_a_listed_server_has_its_name_and_no_other_has_one(watched: Watched) -> None:
    named = watched.by("count by (server) (csd_train_samples_total)", "server")
    assert named == ({"rack-1": 3, "rack-2": 3} if watched.list_path.exists() else {"": 6})


@pytest.mark.long
def test_a_server_that_goes_away_is_named(watched: Watched) -> None:
    """The last test: one exporter ends."""
    if not watched.list_path.exists():
        pytest.skip("only a list names servers that do not answer")
    watched.exporters[1].__exit__(None, None, None)
    watched.servers[0].meetings = watched.servers[0].present = 1
    watched.servers.pop()
    firing = 'ALERTS{alertstate="firing"}'
    wanted = {"CsdServerLost", "CsdServerUnreachable", "CsdHostUnreachable"}

    def about() -> dict[str, tuple[str, str]]:
        answer = watched.prometheus.answer(firing)
        return {labels["alertname"]: (labels["instance"], labels.get("server", "")) for labels, _ in answer}

    watched.until("its alerts", lambda: wanted <= about().keys())
    fired = about()
    gone = watched.addresses["rack-2"], "rack-2"
    assert fired["CsdServerUnreachable"] == gone
    assert fired["CsdHostUnreachable"] == gone
    assert fired["CsdServerLost"] == (watched.addresses["rack-1"], "rack-1")
