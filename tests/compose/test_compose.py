"""The life of one stack, from `docker-compose up` to `down`: tests of one file share it and run in order."""

import contextlib
import json
import math
import os
import re
import signal
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from csd_lab.bench.pipelines import rounds_done
from csd_lab.generate.dashboards.panels import PanelNeeds
from csd_lab.testkit.browser import Browser, Tab
from csd_lab.testkit.containers import Stack, docker, wait_for
from csd_lab.testkit.prometheus import fetch
from tests.compose.conftest import TOP
from tests.support.browser import find_browser
from tests.support.expressions import list_expressions
from tests.support.outputs import checked

pytestmark = [pytest.mark.compose, pytest.mark.long]
MINUTES = 60.0
DRAWN = "performance.getEntriesByName('drawn').length"
SCREENSHOTS = TOP / "build" / "screenshots"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(find_browser()) as browser:
        yield browser


@pytest.fixture(scope="module")
def training(stack: Stack) -> None:
    """Two rounds are done. If the stack does not get there, no test that needs it waits for that again."""
    stack.up()
    wait_for("two rounds", lambda: rounds_done(stack) >= 2, 10 * MINUTES)


@pytest.fixture(scope="module")
def finished(stack: Stack, training: None) -> None:
    """Training is done, although the host was killed in a round."""
    kill_children(stack.container("host")["State"]["Pid"])
    wait_for("the end of training", lambda: summary(stack), 15 * MINUTES)


@pytest.mark.usefixtures("training")
def test_it_comes_up_and_trains(stack: Stack) -> None:
    for service in ("drives", "host"):
        assert stack.container(service)["State"]["Health"]["Status"] in ("healthy", "starting"), service
    assert stack.container("drives")["State"]["Health"]["Status"] == "healthy"
    for service in ("drives", "host", "prometheus"):
        config = stack.container(service)
        assert config["Config"]["User"] not in ("", "root", "0"), service
        assert not config["HostConfig"]["Privileged"], service
        assert config["HostConfig"]["CapDrop"] == ["ALL"], service
        assert config["HostConfig"]["Memory"] > 0, service


@pytest.mark.usefixtures("finished")
def test_a_host_killed_in_a_round_resumes(stack: Stack) -> None:
    assert stack.container("host")["RestartCount"] == 1
    records = [json.loads(line) for line in read(stack, "records.jsonl").splitlines()]
    rounds = [record["round"] for record in records if record["kind"] == "round"]
    assert rounds == list(range(1, len(rounds) + 1))
    assert len(rounds) > 2
    assert "resumed" in [record["what"] for record in records if record["kind"] == "event"]


@pytest.mark.usefixtures("finished")
def test_it_reaches_its_target_on_counted_device_time(stack: Stack) -> None:
    done = summary(stack)
    assert done is not None
    assert (done["reached"], done["clock"]) == (True, "counted")
    assert done["accuracy"] >= done["target_accuracy"]
    wait_for("a healthy host", lambda: stack.container("host")["State"]["Health"]["Status"] == "healthy", 2 * MINUTES)


@pytest.mark.usefixtures("finished")
def test_prometheus_scrapes_the_host(stack: Stack) -> None:
    targets = ask(stack, "targets")["activeTargets"]
    assert [(target["labels"]["job"], target["health"]) for target in targets] == [("csd-emu", "up")]
    assert query(stack, "sum(csd_device_up)") == [3.0]
    done = summary(stack)
    assert done is not None
    # The summary is on disk up to one scrape interval before Prometheus has the last round.
    final = pytest.approx([done["accuracy"]])
    wait_for("the last round in Prometheus", lambda: query(stack, "csd_accuracy_ratio") == final, 1 * MINUTES)


@pytest.mark.usefixtures("finished")
def test_every_expression_of_dashboards_and_rules_has_data(stack: Stack) -> None:
    """What only several servers have is empty here; tests/integration/test_prometheus_servers.py has its data."""
    answered = {
        each: bool(ever(stack, each.asked("csd-01")))
        for each in list_expressions()
        if each.needs not in (PanelNeeds.SYNC, PanelNeeds.RAPL, PanelNeeds.HOST_IO)
    }
    alerting = {each.origin for each in answered if each.origin.startswith("alert/")}
    missing = {each for each, data in answered.items() if not data and each.origin not in alerting}
    assert missing == {each for each in answered if each.needs is PanelNeeds.SERVERS and each.origin not in alerting}
    assert ever(stack, 'ALERTS{alertname="CsdPowerCapExceeded"}')  # pending, or firing after half a minute
    groups = ask(stack, "rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules if rule["type"] == "alerting"} == {name[6:] for name in alerting}
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []


@pytest.mark.usefixtures("finished")
def test_the_page_shows_the_run(stack: Stack, browser: Browser) -> None:
    tab = browser.open(stack.page, 1280, dark=False)
    done = summary(stack)
    assert done is not None
    tab.wait_for(f"document.body.innerText.includes('{done['accuracy']:.4f}'.slice(0, 5))")
    text = tab.evaluate("document.body.innerText")
    for word in ("csd-00", "csd-01", "csd-02", "counted", "wall", "resumed"):
        assert word in text, word
    assert tab.complaints() == []
    assert {urllib.parse.urlsplit(url).netloc for url in tab.requests()} <= {urllib.parse.urlsplit(stack.page).netloc}
    tab.wait_for(DRAWN)
    keep(tab, "page-finished.png")


@pytest.mark.usefixtures("finished")
def test_a_killed_drive_is_seen_and_comes_back(stack: Stack, browser: Browser) -> None:
    assert stack.compose("exec", "-T", "drives", "csd-emu", "inject", "csd", "csd-01", "kill").returncode == 0
    wait_for("Prometheus to see it", lambda: query(stack, 'csd_device_up{device="csd-01"}') == [0.0], MINUTES)
    wait_for("the alert", lambda: "csd-01" in alerts(stack), 3 * MINUTES)
    tab = browser.open(stack.page, 1280, dark=True)
    tab.wait_for("document.body.innerText.includes('1 drive lost: csd-01')", MINUTES)
    tab.wait_for(DRAWN)
    keep(tab, "page-lost.png")
    assert "csd-01 has ended" in stack.must("logs", "drives")
    assert (
        stack.compose("exec", "-T", "drives", "csd-emu", "inject", "csd", "csd-01", "revive", seconds=300).returncode
        == 0
    )
    wait_for("its return", lambda: query(stack, 'csd_device_up{device="csd-01"}') == [1.0], 3 * MINUTES)
    wait_for("the alert's end", lambda: "csd-01" not in alerts(stack), 3 * MINUTES)


@pytest.mark.usefixtures("finished")
def test_drives_killed_after_training_come_up_anew_and_are_trained_on(stack: Stack) -> None:
    kill_children(stack.container("drives")["State"]["Pid"])
    wait_for("a second run", lambda: len(runs(stack)) == 2, 10 * MINUTES)
    assert "this one ends too" in stack.must("logs", "host")
    wait_for("its first round", lambda: rounds_done(stack) >= 1, 10 * MINUTES)


def test_down_leaves_nothing(stack: Stack) -> None:
    stack.down()
    assert stack.left() == []
    assert re.findall(rf"{stack.project}\S*", docker("ps", "--all", "--format", "{{.Names}}")) == []


def kill_children(pid: int) -> None:
    """Kill the processes that a process has started; it may end when one of them does, and all others with it."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as stream:
        for child in stream.read().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)


def read(stack: Stack, name: str) -> str:
    """A file of the one run directory."""
    return stack.must("exec", "-T", "host", "sh", "-c", f"cat /runs/*/{name}")


def runs(stack: Stack) -> list[str]:
    """The run directories; none while the host does not run."""
    done = stack.compose("exec", "-T", "host", "ls", "/runs")
    return done.stdout.split() if done.returncode == 0 else []


def summary(stack: Stack) -> dict[str, Any] | None:
    done = stack.compose("exec", "-T", "host", "sh", "-c", "cat /runs/*/summary.json")
    return checked("run", done.stdout) if done.returncode == 0 else None


def ask(stack: Stack, path: str, **parameters: str) -> Any:
    """What Prometheus' API answers."""
    content = fetch(f"{stack.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
    assert content is not None
    return json.loads(content)["data"]


def ever(stack: Stack, expression: str) -> list[float]:
    """All finite values that an expression had since the stack came up."""
    now = time.time()
    found = ask(stack, "query_range", query=expression, start=str(now - 45 * MINUTES), end=str(now), step="5")["result"]
    return [value for series in found for _, text in series["values"] if math.isfinite(value := float(text))]


def keep(tab: Tab, name: str) -> None:
    """Keep a screenshot for whoever wants to look."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    tab.screenshot(SCREENSHOTS / name)


def query(stack: Stack, expression: str) -> list[float]:
    return [float(series["value"][1]) for series in ask(stack, "query", query=expression)["result"]]


def alerts(stack: Stack) -> list[str]:
    """The devices for which an alert is firing."""
    return [alert["labels"].get("device", "") for alert in ask(stack, "alerts")["alerts"] if alert["state"] == "firing"]
