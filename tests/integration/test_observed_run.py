"""Real runs on native drives, watched by a real Prometheus with the shipped rules: every expression has an answer.

One federated job in which a drive is killed and revived, one synchronous job with a tuner and competing work whose host
is killed in the end, and one that ends as it should.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from csd_emu.engines.rapl import RaplMeter
from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards.panels import PanelNeeds
from csd_lab.testkit.prometheus import LOOPBACK, PROGRAM, Prometheus, free_port, serve_prometheus
from tests.support.commands import Workshop
from tests.support.expressions import Expression, list_expressions
from tests.support.machines import REQUIRE_VARIABLE

# The agents of a host that was killed, and one that was revived, outlive the process that started them on purpose.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
SHIPPED = Path(__file__).parents[2] / "images" / "prometheus"
# For each thing that is waited for: this machine may be busy.
SECONDS = 120.0
DATA = {"source": "digits"}
FEDERATED: dict[str, Any] = {"model": "digits_cnn", "data": DATA, "rounds": 100_000, "epochs": 4, "target": None}
SYNC: dict[str, Any] = {
    "model": "digits_cnn",
    "data": DATA,
    "mode": "sync",
    "tuner": "hypertune",
    "rounds": 100_000,
    "target": None,
    "sync": {"tuning": {"slow_batch": 16}, "straggler_factor": 3.0, "round_steps": 10},
    # Four times as slow: late until it is retuned, and below its table ever after. Not before Prometheus has looked.
    "disturb": [{"device": "csd-01", "at_step": 150, "weight": 300, "steps": 10**6}],
}
SHORT = FEDERATED | {"rounds": 2, "epochs": 1}
FEDERATED_ARRAY: dict[str, Any] = {"devices": [{"profile": "newport", "count": 2}]}
SHORT_ARRAY: dict[str, Any] = {"devices": [{"profile": "newport"}]}
SYNC_ARRAY: dict[str, Any] = {"devices": [{"profile": "newport", "count": 2}], "host": {"trains": True}}


class Run:
    """A run of its own array in a folder of its own, scraped on a port of its own."""

    def __init__(self, folder: Path, array: dict[str, Any], job: dict[str, Any]) -> None:
        self.port = free_port()
        folder.mkdir()
        self.workshop = Workshop(folder)
        host = {"metrics_port": self.port, "power_cap": "1 W"} | array.get("host", {})
        common = {"name": "lab", "engine": "native", "clock": "modelled"}
        self.workshop.write("array.yaml", common | array | {"host": host})
        arguments = ["run", self.workshop.write("job.yaml", job), "--array", self.workshop.array]
        self.process = self.workshop.start(*arguments, "--runs", self.workshop.runs, "--json")

    @property
    def instance(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def kill(self, device: str) -> None:
        self.workshop.kill_agent(device)

    def revive(self, device: str) -> None:
        done = self.workshop.run("inject", "lab", device, "revive", "--json")
        assert done.code == 0, done.err

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        for agent in self.workshop.agents():
            agent.kill()
        self.process.communicate()


@dataclass
class Observed:
    """What Prometheus answered, and when."""

    silent: set[Expression] = field(default_factory=set)
    values: dict[Expression, list[tuple[dict[str, str], float]]] = field(default_factory=dict)
    gone: dict[str, list[str]] = field(default_factory=dict)
    back: dict[str, list[str]] = field(default_factory=dict)
    alerts: list[tuple[str, str]] = field(default_factory=list)
    ended: str = ""


def expected() -> list[Expression]:
    """What should have an answer on this machine; test_prometheus_servers.py asks the rest.

    No drive of these runs is refused; tests/prometheus/alerts.test.yml fires the alert that says so.
    """
    skipped = {PanelNeeds.SERVERS, PanelNeeds.HYPERVISOR, PanelNeeds.HOST_IO} | (
        {PanelNeeds.RAPL} if RaplMeter.open() is None else set()
    )
    return [
        each for each in list_expressions() if each.needs not in skipped and each.origin != "alert/CsdUpdatesRefused"
    ]


def wait(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it never happened: {what}"
        time.sleep(0.25)


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    if shutil.which(PROGRAM) is None and os.environ.get(REQUIRE_VARIABLE) != "1":
        pytest.skip("Prometheus is not installed; make setup-dev installs it")
    folder = Path(tempfile.mkdtemp(prefix="csd-"))
    runs: list[Run] = []
    try:
        for name, array, job in (
            ("a", FEDERATED_ARRAY, FEDERATED),
            ("b", SYNC_ARRAY, SYNC),
            ("c", SHORT_ARRAY, SHORT),
        ):
            runs.append(Run(folder / name, array, job))
        with serve_prometheus(configure(folder / "prometheus", runs)) as prometheus:
            yield watch(prometheus, *runs)
    finally:
        for run in runs:
            run.end()
        shutil.rmtree(folder)


def configure(folder: Path, runs: list[Run]) -> Path:
    """The shipped configuration, but for its target and for how often it looks."""
    shutil.copytree(SHIPPED, folder)
    config = folder / "prometheus.yml"
    text = config.read_text()
    assert '["host:8080"]' in text
    text = text.replace('["host:8080"]', str([run.instance for run in runs])).replace("2s", "1s")
    config.write_text(text)
    for path in (folder / "rules").iterdir():
        path.write_text(path.read_text().replace(f"interval: {rules.INTERVAL}", "interval: 1s"))
    return config


def watch(prometheus: Prometheus, federated: Run, sync: Run, short: Run) -> Observed:
    """Do to the runs what must be seen, and ask."""
    observed = Observed()

    def has(expression: str) -> Callable[[], bool]:
        return lambda: bool(prometheus.answer(expression))

    own = f'instance="{federated.instance}"'
    wait("a federated round", has(f"csd_round{{{own}}} >= 1"))
    federated.kill("csd-01")
    vanished = f'csd_device_up{{{own}, device="csd-01"}} == 0 unless on (device) csd_train_samples_total{{{own}}}'
    wait("a drive that is gone", has(vanished))
    host_gone = next(each for each in expected() if each.origin == "alert/CsdHostUnreachable")
    observed.silent = {each for each in expected() if each != host_gone}
    ask_until_answered(prometheus, observed)
    observed.gone = served(prometheus, own)
    federated.revive("csd-01")
    wait("a drive that is back", has(f'csd_train_samples_total{{{own}, device="csd-01"}}'))
    wait("its throughput", has(f'{rules.DEVICE_RECORDS.name}{{{own}, device="csd-01"}}'))
    observed.back = served(prometheus, own)
    wait("a run that has ended", lambda: short.process.poll() is not None)
    sync.process.kill()
    observed.silent.add(host_gone)
    ask_until_answered(prometheus, observed)
    wait("the end of the short run", has(f'up{{instance="{short.instance}"}} == 0'))
    observed.ended = short.instance
    time.sleep(3)  # so that rules have been evaluated since
    observed.alerts = [(labels["alertname"], labels["instance"]) for labels, _ in prometheus.answer("ALERTS")]
    return observed


def ask_until_answered(prometheus: Prometheus, observed: Observed) -> None:
    """What has no answer when the time is up stays among the silent: each is a test of its own."""
    deadline = time.monotonic() + SECONDS
    while observed.silent and time.monotonic() < deadline:
        for each in list(observed.silent):
            answer = prometheus.answer(each.asked("csd-00"))
            observed.values[each] = answer
            if any(math.isfinite(value) for _, value in answer):
                observed.silent.remove(each)
        time.sleep(0.25)


def served(prometheus: Prometheus, own: str) -> dict[str, list[str]]:
    """Metric -> devices of one array."""
    found: dict[str, list[str]] = {}
    for labels, _ in prometheus.answer(f'{{__name__=~"csd_.*|device.*", {own}, device!=""}}'):
        found.setdefault(labels["__name__"], []).append(labels["device"])
    return found


@pytest.mark.parametrize("expression", expected(), ids=lambda each: each.origin)
def test_every_expression_has_an_answer(observed: Observed, expression: Expression) -> None:
    assert expression not in observed.silent, expression.expression


def test_an_answer_is_a_number(observed: Observed) -> None:
    for expression, answer in observed.values.items():
        assert all(math.isfinite(value) for _, value in answer), expression


LASTING = {"csd_device_up", "csd_device_state", "csd_rejoins_total", "csd_errors_total"}
HARDWARE = {"csd_energy_joules_total", "csd_energy_band_joules_total", "csd_device_seconds_total", "csd_power_watts"}
HARDWARE |= {rules.WATTS.name}


def test_a_drive_that_is_gone_is_gone_from_prometheus_and_its_rates_too(observed: Observed) -> None:
    """It draws power still, and alerts need to know of it."""
    left = {name for name, devices in observed.gone.items() if "csd-01" in devices}
    assert left <= LASTING | HARDWARE
    assert left >= LASTING
    assert "csd-00" in observed.gone["csd_train_samples_total"]
    assert "csd-00" in observed.gone[rules.DEVICE_RECORDS.name]


def test_a_drive_that_is_back_is_back_in_prometheus(observed: Observed) -> None:
    for name in ("csd_train_samples_total", "csd_batch_size", rules.DEVICE_RECORDS.name):
        assert {"csd-00", "csd-01"} <= set(observed.back[name])


def test_nothing_is_wrong_with_a_run_that_has_ended(observed: Observed) -> None:
    assert observed.ended
    assert observed.ended not in {instance for _, instance in observed.alerts}
    assert {name for name, _ in observed.alerts} >= {"CsdHostUnreachable"}
