"""Prometheus' wait for the metrics of a thousand drives."""

from __future__ import annotations

import gzip
import http.client
import statistics
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import PROFILE, report
from csd_lab.testkit.random_rounds import list_rounds
from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.device_time import COUNTED
from host.core.records import EventKind, EventRecord
from host.core.summary import FEDERATED, SYNC
from host.monitoring.exporter import Exporter
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.run_facts import DeviceFacts, RunFacts
from host.monitoring.run_listener import RunStart, show_round

DEVICES = 1000
SCRAPES, WARM_UP = 30, 3
# As Prometheus 2.42 asks.
ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
GZIP, PLAIN = "gzip", "identity"
FRESH, UNCHANGED = "fresh", "unchanged"


def run(paths: Paths, progress: Progress, seed: int, devices: int = DEVICES, scrapes: int = SCRAPES) -> BenchReport:
    """Scrape the exporter of a run that never was, federated and synchronous, over HTTP. Wall milliseconds.

    Figures: `scrape_ms`, as Prometheus asks (gzip), each time after another round has ended: nothing of the answer is
    still there from the scrape before. It is the median of the mode that takes longer; `unchanged_scrape_ms` and
    `plain_scrape_ms` (without gzip) likewise.
    """
    samples: dict[str, list[float]] = {}
    sizes: dict[str, list[int]] = {}
    for mode in (FEDERATED, SYNC):
        progress.stage(f"{scrapes} scrapes of {devices} drives ({mode})")
        times, bytes_sent = _measure(mode, devices, scrapes, seed)
        samples |= {f"{mode}_{case}_ms": values for case, values in times.items()}
        sizes[mode] = bytes_sent
    medians = {name: statistics.median(values) for name, values in samples.items()}

    def worst(case: str) -> float:
        return max(medians[f"{mode}_{case}_ms"] for mode in (FEDERATED, SYNC))

    figures = {
        "scrape_ms": worst(f"{FRESH}_{GZIP}"),
        "unchanged_scrape_ms": worst(f"{UNCHANGED}_{GZIP}"),
        "plain_scrape_ms": worst(f"{FRESH}_{PLAIN}"),
    }
    shown = {
        f"{mode}_{name}": size for mode in sizes for name, size in zip(("bytes", "lines"), sizes[mode], strict=True)
    }
    return report("scrape", "wall", seed, figures, samples | {"devices": devices} | shown, "none")


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
