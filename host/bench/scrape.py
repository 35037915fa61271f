"""How long does Prometheus wait for the metrics of a thousand drives?"""

from __future__ import annotations

import gzip
import http.client
import statistics
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import numpy as np

from csd_emu.paths import Paths
from csd_emu.power import COMPONENTS
from csd_emu.progress import Progress
from firmware_agent.errors import ProtocolError
from firmware_agent.wire import PhaseSeconds
from host.bench.harness import PROFILE, report
from host.device_time import COUNTED
from host.metrics.counting import DeviceFacts
from host.metrics.server import Exporter
from host.metrics.state import MetricsState, RunFacts
from host.outputs import BenchReport
from host.records import DeviceRound, DeviceStep, EventRecord, RoundRecord, StepRecord, What
from host.summary import FEDERATED, SYNC

DEVICES = 1000
SCRAPES, WARM_UP = 30, 3
STEPS = 4
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
                state.add_round(record)
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
        state.add_event(EventRecord(name, What.JOINED))
    hello = {"machine": "aarch64", "agent": "0.1.0", "torch": "2.9.1"}
    scales = dict.fromkeys(PhaseSeconds.__struct_fields__, 0.25)
    state.begin([DeviceFacts(name, "emulated", PROFILE, 4, COUNTED, scales, hello) for name in names], COUNTED)
    return state


def list_rounds(mode: str, names: Sequence[str], count: int, seed: int) -> Iterator[RoundRecord]:
    """Yield rounds in which every drive took part for its own random seconds, joules and bytes."""
    draw = np.random.default_rng(seed)
    for number in range(1, count + 1):
        seconds = draw.uniform(0.5, 2.0, (len(names), 4))
        joules = draw.uniform(1.0, 9.0, (len(names), len(COMPONENTS)))
        sizes = draw.integers(1_000, 1_000_000, (len(names), 3))
        parts = [
            _part(name, *values)
            for name, values in zip(
                names, zip(seconds.tolist(), joules.tolist(), sizes.tolist(), strict=True), strict=True
            )
        ]
        steps = (
            [_step(step + (number - 1) * STEPS, names, draw) for step in range(1, STEPS + 1)] if mode == SYNC else []
        )
        yield RoundRecord(
            round=number,
            clock=COUNTED,
            accuracy=1 - 1 / (number + 1),
            test_loss=1 / number,
            train_loss=1.1 / number,
            images_per_device_second=100.0,
            slowest_device_seconds=8.0,
            start_seconds=8.0 * (number - 1),
            array_seconds=8.0,
            wall_seconds=60.0,
            devices=parts,
            energy_joules={"host": {"idle": 100.0, "chassis": 50.0}},
            steps=steps,
        )


def _part(name: str, seconds: list[float], joules: list[float], sizes: list[int]) -> DeviceRound:
    return DeviceRound(
        device=name,
        clock=COUNTED,
        samples=64 * STEPS,
        steps=STEPS,
        batch_size=64,
        loss=0.5,
        stopwatch_seconds=PhaseSeconds(*seconds),
        device_seconds=PhaseSeconds(*seconds),
        read_seconds=seconds[0] / 100,
        receive_seconds=seconds[1] / 100,
        send_seconds=seconds[2] / 100,
        flash_read_bytes=sizes[0],
        sent_bytes=sizes[1],
        received_bytes=sizes[2],
        peak_memory_bytes=200_000_000 + sizes[0],
        energy_joules=dict(zip(COMPONENTS, joules, strict=True)),
    )


def _step(number: int, names: Sequence[str], draw: np.random.Generator) -> StepRecord:
    seconds = draw.uniform(0.5, 2.0, len(names)).tolist()
    return StepRecord(
        step=number,
        loss=1 / number,
        learning_rate=0.1,
        array_seconds=2.0,
        possible_images_per_second=100.0 * len(names),
        devices=[
            DeviceStep(device=name, batch_size=64, compute_seconds=value, expected_seconds=1.0, weight=1 / len(names))
            for name, value in zip(names, seconds, strict=True)
        ],
    )
