"""Benches of what a run serves: the metrics of a thousand drives, and their live page."""

from __future__ import annotations

import gzip
import http.client
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from csd_emu.config.array_file import ArrayConfig
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import PROFILE, Bench, array_of, bench_job
from csd_lab.testkit.browser import Browser, Tab, find_browser
from csd_lab.testkit.random_rounds import list_rounds
from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Trained
from host.core.device_time import COUNTED
from host.core.records import EventKind, EventRecord, RoundRecord
from host.core.summary import FEDERATED, SYNC
from host.monitoring.exporter import Exporter
from host.monitoring.metrics.info_metrics import KINDS, describe_run
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.page.page_app import PageApp
from host.monitoring.page.run_history import History
from host.monitoring.run_facts import DeviceFacts, RunFacts
from host.monitoring.run_listener import RunStart, show_round
from host.training.accounting import Accountant, DeviceReport, make_accountant
from host.training.training_protocol import round_totals

DRIVES = 1000
SCRAPES, WARM_UP = 30, 3
# As Prometheus 2.42 asks.
ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
GZIP, PLAIN = "gzip", "identity"
FRESH, UNCHANGED = "fresh", "unchanged"


def bench_scrape(bench: Bench, devices: int = DRIVES, scrapes: int = SCRAPES) -> BenchReport:
    """Prometheus' wait for the metrics of a thousand drives.

    Scrape the exporter of a run that never was, federated and synchronous, over HTTP. Wall milliseconds.

    Figures: `scrape_ms`, as Prometheus asks (gzip), each time after another round has ended: nothing of the answer is
    still there from the scrape before. It is the median of the mode that takes longer; `unchanged_scrape_ms` and
    `plain_scrape_ms` (without gzip) likewise.
    """
    samples: dict[str, list[float]] = {}
    shown: dict[str, int] = {}
    for mode in (FEDERATED, SYNC):
        bench.progress.stage(f"{scrapes} scrapes of {devices} drives ({mode})")
        times, bytes_sent = _measure(mode, devices, scrapes, bench.seed)
        samples |= {f"{mode}_{case}_ms": values for case, values in times.items()}
        shown |= {f"{mode}_{name}": size for name, size in zip(("bytes", "lines"), bytes_sent, strict=True)}
    cases = {"scrape_ms": f"{FRESH}_{GZIP}", "unchanged_scrape_ms": f"{UNCHANGED}_{GZIP}"}
    cases["plain_scrape_ms"] = f"{FRESH}_{PLAIN}"
    figures = {
        figure: max(statistics.median(samples[f"{mode}_{case}_ms"]) for mode in (FEDERATED, SYNC))
        for figure, case in cases.items()
    }
    return bench.report("wall", figures, samples | {"devices": devices} | shown, "none")


def _measure(mode: str, devices: int, scrapes: int, seed: int) -> tuple[dict[str, list[float]], list[int]]:
    """Return the milliseconds of each scrape in each case, and the bytes and lines of the last answer."""
    names = [f"csd-{number:04d}" for number in range(devices)]
    state = _begun(mode, names)
    rounds = list_rounds(mode, names, 2 * (scrapes + WARM_UP), seed)
    times: dict[str, list[float]] = {}
    with Exporter(state, None) as exporter:
        for encoding in (GZIP, PLAIN):
            for number in range(scrapes + WARM_UP):
                record = next(rounds)
                show_round([state], record)
                for case in (FRESH, UNCHANGED):
                    milliseconds, text = _scrape(exporter.address, encoding)
                    _check(text, mode, record.round)
                    if number >= WARM_UP:
                        times.setdefault(f"{case}_{encoding}", []).append(milliseconds)
    return times, [len(text), text.count(b"\n")]


def _scrape(address: str, encoding: str) -> tuple[float, bytes]:
    """Return how long the answer took to be here, in milliseconds, and its text."""
    url = urlsplit(address)
    headers = {"Accept": ACCEPT, "Accept-Encoding": encoding, "User-Agent": "Prometheus/2.42.0"}
    begin = time.perf_counter()
    connection = http.client.HTTPConnection(url.netloc, timeout=60.0)
    try:
        connection.request("GET", url.path, headers=headers)
        body = connection.getresponse().read()
    finally:
        connection.close()
    milliseconds = 1000 * (time.perf_counter() - begin)
    return milliseconds, gzip.decompress(body) if encoding == GZIP else body


def _check(text: bytes, mode: str, number: int) -> None:
    if f'csd_round{{mode="{mode}"}} {number}.0\n'.encode() not in text:
        raise ProtocolError(f"bench scrape: the answer is not that of round {number}; the exporter is broken")


def _begun(mode: str, names: Sequence[str]) -> MetricsState:
    state = MetricsState(RunFacts("bench-scrape", "qemu", "digits_cnn", mode, tuple(names)))
    for name in names:
        state.add_event(EventRecord(name, EventKind.JOINED))
    hello = {"machine": "aarch64", "agent": "0.1.0", "torch": "2.9.1"}
    scales = dict.fromkeys(PhaseSeconds.__struct_fields__, 0.25)
    facts = [DeviceFacts(name, "emulated", PROFILE, 4, COUNTED, scales, hello) for name in names]
    state.begin(RunStart(COUNTED, list_devices=lambda: facts))
    return state


DRIVES, ROUNDS, LOADS = 1000, 120, 5
LOST = 3
WIDTH = 1280
_SAMPLES, _READ_BYTES, _WEIGHT_BYTES = 1437, 91_968, 153_875
# Marks that the page sets: figures and drives are there; curves and timeline too.
_MARKS = {"page_drives_seconds": "shown", "page_complete_seconds": "drawn"}
_PAINT = "first-contentful-paint"


def bench_page(bench: Bench) -> BenchReport:
    """Time until a browser shows the live page of a thousand drives.

    Serve a run of 1,000 drives by the server of a run, and open its page in Chromium, each time with nothing cached.

    The records are generated, and accounted as those of a run. Wall seconds since the browser began to open the page,
    medians of five times; the browser has been started before. Figures: `page_first_paint_seconds`, the browser's own
    first contentful paint; `page_drives_seconds` until figures, drives and events are in the page;
    `page_complete_seconds` until curves and timeline are drawn too.
    """
    program = find_browser()
    bench.progress.stage(f"account {ROUNDS} rounds of {DRIVES} drives")
    config, job = array_of(bench.name, DRIVES), bench_job(bench.seed)
    facts = describe_run(config, job)
    metrics, history = MetricsState(facts), History(facts)
    play(config, bench.seed, metrics, history)
    page = PageApp(history, metrics.devices)
    with Exporter(metrics, None, page=page) as server, Browser(program) as browser:
        loads = []
        for number in range(LOADS):
            bench.progress.stage(f"open the page, {number + 1} of {LOADS}")
            loads.append(_load(browser, server.page_address))
    samples: dict[str, Any] = {name: [load[name] for load in loads] for name in loads[0]}
    shown = int(min(samples.pop("shown_drives")))
    figures = {name: statistics.median(seconds) for name, seconds in samples.items()}
    samples |= {"drives": DRIVES, "rounds": ROUNDS, "shown_drives": shown}
    return bench.report("wall", figures, samples, engine="none")


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
