"""Measurements of `csd-emu top`: a run's metrics, read from its endpoint."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPException

from prometheus_client.parser import text_string_to_metric_families

from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.cli.top_report import TopDevice, TopReport
from host.monitoring.metrics import metric_names as names
from host.monitoring.metrics import step_names
from host.monitoring.metrics.metric import Metric
from host.monitoring.run_registry import LiveRun

USER_AGENT = "csd-emu-top"
_TIMEOUT_SECONDS = 10.0
# What knows the clock of a device; a host has said no hello, and may train or not.
_CLOCKS = (names.DEVICE_INFO, names.COMPUTE_SECONDS, names.DEVICE_SECONDS)


class Readings:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        """Parse what the endpoint answered."""
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def sum(self, name: Metric | str, **labels: str) -> float:
        """Return the sum of all series with these labels, 0 if there is none."""
        return sum(value for _, value in self._matching(name, labels))

    def first(self, name: Metric | str, **labels: str) -> float | None:
        """Return the value of one series with these labels, if there is one."""
        return next((value for _, value in self._matching(name, labels)), None)

    def labels(self, name: Metric | str, **labels: str) -> dict[str, str]:
        """Return the labels of one series with these labels, or none."""
        return next((found for found, _ in self._matching(name, labels)), {})

    def values(self, name: Metric | str, label: str) -> list[str]:
        """Return the values of a label, in order, each once."""
        return list(dict.fromkeys(found[label] for found, _ in self._matching(name, {})))

    def state(self, device: str) -> str:
        """Return the state that a device is in."""
        found = (labels["state"] for labels, value in self._matching(names.DEVICE_STATE, {"device": device}) if value)
        return next(found, "")

    def _matching(self, name: Metric | str, wanted: dict[str, str]) -> Iterator[tuple[dict[str, str], float]]:
        text = name if isinstance(name, str) else name.name
        for labels, value in self._samples.get(text, []):
            if all(labels.get(key) == content for key, content in wanted.items()):
                yield labels, value


@dataclass(frozen=True)
class ScrapeWindow:
    """Two scrapes: rates are of what lies between them, and of all since the run began if `before` is None."""

    before: Readings | None
    now: Readings

    def ratio(self, above: Metric | str, below: Metric | str, device: str = "") -> float | None:
        """Return how much one counter grew over how much another did; None if the latter did not."""
        labels = {"device": device} if device else {}
        growth = [self.now.sum(name, **labels) for name in (above, below)]
        if self.before is not None:
            growth = [now - self.before.sum(n, **labels) for now, n in zip(growth, (above, below), strict=True)]
        return growth[0] / growth[1] if growth[1] > 0 else None


def find_run(runs: Iterable[LiveRun], array: str | None) -> LiveRun:
    """Return the run in progress on `array`, or the only one.

    Raises:
        EnvironmentUnfit: there is none.
        ConfigurationError: there are several, and no array is named.
    """
    found = [run for run in runs if array in (None, run.array)]
    if not found:
        where = f" on array {array!r}" if array else ""
        raise EnvironmentUnfit(f"no run is in progress{where}; csd-emu top shows one that csd-emu run has started")
    if len(found) > 1:
        arrays = ", ".join(run.array for run in found)
        raise ConfigurationError(f"several runs are in progress; name an array: {arrays}")
    return found[0]


def scrape(run: LiveRun) -> Readings:
    """Return the run's metrics as they are.

    Raises:
        EnvironmentUnfit: its endpoint does not answer.
    """
    request = urllib.request.Request(run.address, headers={"User-Agent": USER_AGENT})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            return Readings(answer.read().decode())
    except (OSError, HTTPException) as error:
        raise EnvironmentUnfit(
            f"the run on array {run.array!r} does not answer at {run.address} ({error}); has it just ended?"
        ) from error


class Recent:
    """Remembers the last two scrapes between which a round ended."""

    def __init__(self) -> None:
        """Nothing has been seen."""
        self._before: Readings | None = None
        self._now: Readings | None = None

    def add(self, readings: Readings) -> ScrapeWindow:
        """Return the window that ends with these readings: since the round before the last that was seen end."""
        if self._now is not None and readings.first(names.ROUND) != self._now.first(names.ROUND):
            self._before = self._now
        self._now = readings
        return ScrapeWindow(self._before, readings)


def make_report(run: LiveRun, window: ScrapeWindow) -> TopReport:
    """Return what is known of a run."""
    now = window.now
    facts = now.labels(names.RUN_INFO)
    seconds = f"{names.ROUND_SECONDS.name}_sum"
    devices = [device for device in now.values(names.DEVICE_UP, "device")]
    others = [node for node in now.values(names.ENERGY_JOULES, "device") if node not in devices]
    return TopReport(
        array=run.array,
        engine=facts.get("engine", ""),
        model=facts.get("model", ""),
        run_directory=run.run_directory,
        address=run.address,
        clock=now.labels(seconds).get("clock", ""),
        round=int(now.sum(names.ROUND)),
        accuracy=now.first(names.ACCURACY),
        records_per_array_second=window.ratio(names.SAMPLES, seconds),
        array_seconds=now.sum(seconds),
        energy_joules=now.sum(names.ENERGY_JOULES),
        host_link_bytes=int(now.sum(names.HOST_LINK_BYTES)),
        wall_seconds=now.sum(names.WALL_SECONDS),
        devices=[_device(window, device) for device in devices + others],
        step=_whole(now.first(step_names.STEP)),
        global_batch_size=_whole(now.first(step_names.GLOBAL_BATCH_SIZE)),
        retunes=int(now.sum(step_names.RETUNES)) if now.first(step_names.STEP) is not None else None,
    )


def _device(window: ScrapeWindow, device: str) -> TopDevice:
    now = window.now
    clocks = [now.labels(name, device=device).get("clock", "") for name in _CLOCKS]
    return TopDevice(
        device=device,
        state=now.state(device),
        clock=next(filter(None, clocks), ""),
        batch_size=_whole(now.first(names.BATCH_SIZE, device=device)),
        records_per_device_second=window.ratio(names.SAMPLES, names.COMPUTE_SECONDS, device),
        compute_seconds=now.sum(names.COMPUTE_SECONDS, device=device),
        device_seconds=now.sum(names.DEVICE_SECONDS, device=device),
        power_watts=window.ratio(names.ENERGY_JOULES, names.DEVICE_SECONDS, device),
        energy_joules=now.sum(names.ENERGY_JOULES, device=device),
        host_link_bytes=int(now.sum(names.HOST_LINK_BYTES, device=device)),
        memory_bytes=_whole(now.first(names.MEMORY_BYTES, device=device)),
        slowdown_ratio=now.first(step_names.SLOWDOWN, device=device),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
