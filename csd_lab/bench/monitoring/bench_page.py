"""Time until a browser shows the live page of a thousand drives."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from csd_emu.config.array_file import ArrayConfig
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import bench_job, report
from csd_lab.testkit.browser import Browser, Tab, find_browser
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Trained
from host.core.device_time import COUNTED
from host.core.records import EventKind, EventRecord, RoundRecord
from host.monitoring.exporter import Exporter
from host.monitoring.metrics.info_metrics import KINDS, describe_run
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.page.page_app import PageApp
from host.monitoring.page.run_history import History
from host.monitoring.run_facts import DeviceFacts
from host.monitoring.run_listener import RunStart, show_round
from host.training.accounting import Accountant, DeviceReport, make_accountant
from host.training.training_protocol import round_totals

DRIVES, ROUNDS, LOADS = 1000, 120, 5
LOST = 3
WIDTH = 1280
_SAMPLES, _READ_BYTES, _WEIGHT_BYTES = 1437, 91_968, 153_875
# Marks that the page sets: figures and drives are there; curves and timeline too.
_MARKS = {"page_drives_seconds": "shown", "page_complete_seconds": "drawn"}
_PAINT = "first-contentful-paint"


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Serve a run of 1,000 drives by the server of a run, and open its page in Chromium, each time with nothing cached.

    The records are generated, and accounted as those of a run. Wall seconds since the browser began to open the page,
    medians of five times; the browser has been started before. Figures: `page_first_paint_seconds`, the browser's own
    first contentful paint; `page_drives_seconds` until figures, drives and events are in the page;
    `page_complete_seconds` until curves and timeline are drawn too.
    """
    program = find_browser()
    progress.stage(f"account {ROUNDS} rounds of {DRIVES} drives")
    config = ArrayConfig.model_validate(
        {"name": "bench-page", "engine": "qemu", "devices": [{"profile": "newport", "count": DRIVES}]}
    )
    job = bench_job(seed)
    facts = describe_run(config, job)
    metrics, history = MetricsState(facts), History(facts)
    play(config, seed, metrics, history)
    page = PageApp(history, metrics.devices)
    with Exporter(metrics, None, page=page) as server, Browser(program) as browser:
        loads = []
        for number in range(LOADS):
            progress.stage(f"open the page, {number + 1} of {LOADS}")
            loads.append(_load(browser, server.page_address))
    figures = {name: statistics.median(load[name] for load in loads) for name in loads[0]}
    samples: dict[str, Any] = {name: [load[name] for load in loads] for name in loads[0]}
    samples |= {"drives": DRIVES, "rounds": ROUNDS, "shown_drives": _count(loads)}
    figures.pop("shown_drives")
    return report("page", "wall", seed, figures, samples, engine="none")


def play(config: ArrayConfig, seed: int, metrics: MetricsState, history: History) -> None:
    """Show a whole run to metrics and page: all drives join, a few are lost before the last round."""
    names = [device.name for device in config.list_devices()]
    facts = [DeviceFacts(name, KINDS[config.engine], "newport", 4, COUNTED, {}, {}) for name in names]
    for name in names:
        _tell(EventRecord(name, EventKind.JOINED), metrics, history)
    for listener in (metrics, history):
        listener.begin(RunStart(COUNTED, list_devices=lambda: facts))
    for record in make_rounds(config, names, seed):
        if record.round == ROUNDS:
            for name in names[:: DRIVES // LOST][:LOST]:
                _tell(EventRecord(name, EventKind.LEFT), metrics, history)
                _tell(EventRecord(name, EventKind.LOST, "killed"), metrics, history)
        show_round((metrics, history), record)


def make_rounds(config: ArrayConfig, names: list[str], seed: int) -> Iterator[RoundRecord]:
    """Yield federated rounds, made up of what drives of unequal speed would return, in the accounts of a run."""
    accountant, generator = make_accountant(config), np.random.default_rng(seed)
    pace = generator.uniform(1.0, 1.6, len(names))
    for number in range(1, ROUNDS + 1):
        seconds = pace * generator.normal(1.0, 0.02, len(names))
        returned = [_returned(name, number, float(each)) for name, each in zip(names, seconds, strict=True)]
        yield _round(number, returned, accountant)


def _round(number: int, returned: list[DeviceReport], accountant: Accountant) -> RoundRecord:
    start, accounted = accountant.array_seconds, accountant.account(returned, host_seconds=0.004)
    return RoundRecord(
        round=number,
        accuracy=1 - 0.9 * math.exp(-number / 20),
        test_loss=2.3 * math.exp(-number / 25),
        start_seconds=start,
        array_seconds=accounted.array_seconds,
        wall_seconds=20.0,
        devices=accounted.devices,
        spans=accounted.spans,
        energy_joules=accounted.energy_joules,
        **round_totals(accounted.devices),
    )


def _returned(name: str, number: int, scale: float) -> DeviceReport:
    seconds = PhaseSeconds(forward=0.20 * scale, backward=0.36 * scale, update=0.04 * scale, encode=0.01)
    loss = 2.3 * math.exp(-number / 25)
    trained = Trained(number, _SAMPLES, 23, loss, seconds, _READ_BYTES, 180_000_000)
    return DeviceReport(name, COUNTED, trained, 1, 64, _WEIGHT_BYTES, _WEIGHT_BYTES)


def _tell(event: EventRecord, metrics: MetricsState, history: History) -> None:
    metrics.add_event(event)
    history.add_event(event)


def _load(browser: Browser, address: str) -> dict[str, float]:
    """Open the page in a new tab with an empty cache, and return when it was how far."""
    empty = browser.open("about:blank", WIDTH, dark=False)
    empty.call("Network.clearBrowserCache")
    empty.close()
    tab = browser.open(address, WIDTH, dark=False)
    tab.wait_for("performance.getEntriesByName('drawn').length")
    found = {"page_first_paint_seconds": _moment(tab, _PAINT)}
    found |= {name: _moment(tab, mark) for name, mark in _MARKS.items()}
    found["shown_drives"] = tab.evaluate("document.querySelectorAll('.cells li').length")
    tab.close()
    return found


def _moment(tab: Tab, name: str) -> float:
    """Return when something happened in the page, in seconds since it began to be opened."""
    return float(tab.wait_for(f"performance.getEntriesByName('{name}')[0]?.startTime")) / 1000


def _count(loads: list[dict[str, float]]) -> int:
    return int(min(load["shown_drives"] for load in loads))
