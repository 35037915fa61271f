"""A run in progress, for `csd-emu top`: its metrics read from its endpoint, as JSON and as a table."""

from __future__ import annotations

import math
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from typing import Annotated, get_args

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from csd_emu.profiles.profile import End
from csd_emu.util.renamed import Renamed, old_name_of
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from firmware_agent.common.units import format_bytes
from host.core.console import MOST_WIDTH, console
from host.core.figure_bands import IN_BRACKETS, Band, format_band, rate_band, stack_band, watts_band
from host.monitoring.metrics import metric_names as names
from host.monitoring.metrics.metric import Metric
from host.monitoring.run_registry import LiveRun


class TopDevice(Renamed, frozen=True):
    """One drive (or the ``host``) in `csd-emu top`.

    Attributes:
        device: its name.
        state: ``defined``, ``booting``, ``ready``, ``training`` or ``lost``; empty for the host.
        clock: of its seconds.
        batch_size: records per step; null before the first round.
        slowdown_ratio: observed over expected seconds of its last synchronous step; null without a table.
        records_per_device_second: over compute seconds.
        compute_seconds: device seconds in which it computed, since the run began.
        device_seconds: elapsed device time since the run began, waiting included.
        power_watts: mean over elapsed device time.
        energy_joules: since the run began.
        host_link_bytes: over the link, both ways, since the run began.
        memory_bytes: most memory that the agent has held; null if it is not known.
        bands: of its seconds, rate, watts and joules, by their names here; empty if not known (docs/bands.md).
        health: what a real drive's own log says (docs/health.md), of the keys of `HEALTH` those that it tells.
    """

    device: str
    state: str
    clock: str
    batch_size: int | None
    records_per_device_second: float | None
    compute_seconds: float
    device_seconds: float
    power_watts: float | None
    energy_joules: float
    host_link_bytes: int
    memory_bytes: int | None
    slowdown_ratio: float | None = None
    bands: dict[str, Band] = msgspec.field(default_factory=dict)
    health: dict[str, float] = msgspec.field(default_factory=dict)
    images_per_device_second: Annotated[float | None, old_name_of("records_per_device_second")] = None


class TopReport(Renamed, frozen=True):
    """`csd-emu top`: a run in progress. Rates and watts are means since the run began; null where nothing has ended.

    `clock` is of the array's seconds, in which `records_per_array_second` counts; `wall_seconds` of the rounds are the
    cost of emulation. `step`, `global_batch_size` and `retunes` are of synchronous runs, null in others; `retunes` are
    changes of a device's batch, all devices together. `bands` are of the array's seconds, rate and joules.
    """

    array: str
    engine: str
    model: str
    run_directory: str
    address: str
    clock: str
    round: int
    accuracy: float | None
    records_per_array_second: float | None
    array_seconds: float
    energy_joules: float
    host_link_bytes: int
    wall_seconds: float
    devices: list[TopDevice]
    step: int | None = None
    global_batch_size: int | None = None
    retunes: int | None = None
    bands: dict[str, Band] = msgspec.field(default_factory=dict)
    images_per_array_second: Annotated[float | None, old_name_of("records_per_array_second")] = None


USER_AGENT = "csd-emu-top"
_TIMEOUT_SECONDS = 10.0
# Figure of a drive's health -> metric, and how the table shows it; a word alone if it is not 0.
HEALTH = {
    "temperature_celsius": ("nvme_temperature_celsius", "{:.0f} °C"),
    "throttling": ("nvme_current_throttling_status", "throttled"),
    "critical_warning": ("nvme_critical_warning", "warns"),
    "media_errors": ("nvme_media_errors_total", "{:.0f} media errors"),
    "spare_ratio": ("nvme_available_spare_ratio", "spare {:.0%}"),
}
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
        samples = self._samples.get(name if isinstance(name, str) else name.name, [])
        yield from (sample for sample in samples if wanted.items() <= sample[0].items())


@dataclass(frozen=True)
class ScrapeWindow:
    """Two scrapes: rates are of what lies between them, and of all since the run began if `before` is None."""

    before: Readings | None
    now: Readings

    def slide(self, readings: Readings) -> ScrapeWindow:
        """Return the window that ends with these readings: since the round before the last that was seen end."""
        ended = readings.first(names.ROUND) != self.now.first(names.ROUND)
        return ScrapeWindow(self.now if ended else self.before, readings)

    def ratio(self, above: Metric | str, below: Metric | str, **labels: str) -> float | None:
        """Return how much one counter grew over how much another did; None if the latter did not."""
        grown = self.growth(below, **labels)
        return self.growth(above, **labels) / grown if grown > 0 else None

    def growth(self, name: Metric | str, **labels: str) -> float:
        """Return how much the counters with these labels grew together."""
        return self.now.sum(name, **labels) - (self.before.sum(name, **labels) if self.before is not None else 0.0)

    def band(self, metric: Metric, **labels: str) -> Band | None:
        """Return between what that may lie, of the `metric` of a counter's bands; None if it is not known."""
        low, high = (self.growth(metric, end=end, **labels) for end in get_args(End))
        return Band(low, high) if low > 0 else None


def find_run(runs: Iterable[LiveRun], array: str | None) -> LiveRun:
    """Return the run in progress on `array`, or the only one.

    Raises:
        EnvironmentUnfit: there is none.
        ConfigurationError: there are several, and no array is named.
    """
    if not (found := [run for run in runs if array in (None, run.array)]):
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


def make_report(run: LiveRun, window: ScrapeWindow) -> TopReport:
    """Return what is known of a run."""
    now, all_rounds = window.now, ScrapeWindow(None, window.now)
    facts = now.labels(names.RUN_INFO)
    seconds = f"{names.ROUND_SECONDS.name}_sum"
    devices = now.values(names.DEVICE_UP, "device")
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
        step=_whole(now.first(names.STEP)),
        global_batch_size=_whole(now.first(names.GLOBAL_BATCH_SIZE)),
        retunes=int(now.sum(names.RETUNES)) if now.first(names.STEP) is not None else None,
        bands=_known(
            array_seconds=all_rounds.band(names.ARRAY_BAND_SECONDS),
            energy_joules=all_rounds.band(names.ENERGY_BAND_JOULES),
            records_per_array_second=_rate(window, window.band(names.ARRAY_BAND_SECONDS)),
        ),
    )


def _known(**bands: Band | None) -> dict[str, Band]:
    return {name: band for name, band in bands.items() if band is not None}


def _rate(window: ScrapeWindow, seconds: Band | None, **labels: str) -> Band | None:
    return None if seconds is None else rate_band(window.growth(names.SAMPLES, **labels), seconds)


def _elapsed(window: ScrapeWindow, device: str) -> Band | None:
    """Return the band of a device's elapsed time: the array's if it was there in all of it."""
    there, whole = window.growth(names.DEVICE_SECONDS, device=device), window.growth(f"{names.ROUND_SECONDS.name}_sum")
    return window.band(names.ARRAY_BAND_SECONDS) if math.isclose(there, whole) else None


def _device_bands(window: ScrapeWindow, device: str) -> dict[str, Band]:
    run, watts = ScrapeWindow(None, window.now), window.ratio(names.ENERGY_JOULES, names.DEVICE_SECONDS, device=device)
    return _known(
        compute_seconds=run.band(names.COMPUTE_BAND_SECONDS, device=device),
        device_seconds=_elapsed(run, device),
        energy_joules=run.band(names.ENERGY_BAND_JOULES, device=device),
        records_per_device_second=_rate(window, window.band(names.COMPUTE_BAND_SECONDS, device=device), device=device),
        power_watts=watts_band(
            watts or 0.0, window.band(names.ENERGY_BAND_JOULES, device=device), _elapsed(window, device)
        ),
    )


def _device(window: ScrapeWindow, device: str) -> TopDevice:
    now = window.now
    return TopDevice(
        device=device,
        state=now.state(device),
        clock=next(filter(None, [now.labels(name, device=device).get("clock", "") for name in _CLOCKS]), ""),
        batch_size=_whole(now.first(names.BATCH_SIZE, device=device)),
        records_per_device_second=window.ratio(names.SAMPLES, names.COMPUTE_SECONDS, device=device),
        compute_seconds=now.sum(names.COMPUTE_SECONDS, device=device),
        device_seconds=now.sum(names.DEVICE_SECONDS, device=device),
        power_watts=window.ratio(names.ENERGY_JOULES, names.DEVICE_SECONDS, device=device),
        energy_joules=now.sum(names.ENERGY_JOULES, device=device),
        host_link_bytes=int(now.sum(names.HOST_LINK_BYTES, device=device)),
        memory_bytes=_whole(now.first(names.MEMORY_BYTES, device=device)),
        slowdown_ratio=now.first(names.SLOWDOWN, device=device),
        bands=_device_bands(window, device),
        health={name: value for name, (of, _) in HEALTH.items() if (value := now.first(of, device=device)) is not None},
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


_COLOURS = {"training": "green", "ready": "cyan", "lost": "red"}
_NONE = "-"
# Columns that hold no figures.
_WORDS = ("drive", "state", "clock", "health")
# What a terminal may be too narrow for: then these columns are left out, and if need be bands have lines of their own.
_LEAST = ("device s\ncomputing", "memory")
_RECENT = "of the last round seen to end; before, since the run began"


def watch(run: LiveRun, interval_seconds: float, goes_on: Callable[[], bool]) -> None:
    """Show the run until it has ended; `goes_on` tells whether it is still announced.

    Raises:
        EnvironmentUnfit: it goes on, and its metrics do not answer.
        KeyboardInterrupt: the user has seen enough.
    """
    window, pause = ScrapeWindow(None, scrape(run)), threading.Event()
    report = make_report(run, window)
    with Live(render(report, console.width, _RECENT), console=console, auto_refresh=False) as live:
        while True:
            pause.wait(interval_seconds)
            try:
                window = window.slide(scrape(run))
            except EnvironmentUnfit:
                if goes_on():
                    raise
                break
            report = make_report(run, window)
            live.update(render(report, console.width, _RECENT), refresh=True)
    console.print(f"the run has ended: {run.run_directory}")


def render(report: TopReport, width: int, rates: str) -> RenderableType:
    """Return the view for a terminal `width` characters wide; `rates` says what rates and watts are means of."""
    tables = [_table(report, *layout) for layout in ((True, True), (False, True), (False, False))]
    options, brackets = console.options.update_width(MOST_WIDTH), f"; {IN_BRACKETS}" if report.bands else ""
    fitting = (table for table in tables if console.measure(table, options=options).maximum <= width)
    return Group(*_head(report), next(fitting, tables[-1]), Text(f"rates and W: means {rates}{brackets}", style="dim"))


def _head(report: TopReport) -> list[Text]:
    accuracy = _NONE if report.accuracy is None else f"{report.accuracy:.4f}"
    clock = report.clock or "no clock yet"
    first = f"{report.array} ({report.engine}, {report.model})  round {report.round}  accuracy {accuracy}"
    second = (
        f"array: {_banded(report, 'records_per_array_second', 1)} records/s, "
        f"{_banded(report, 'array_seconds', 3)} s ({clock})  "
        f"{_banded(report, 'energy_joules', 1)} J  link {format_bytes(report.host_link_bytes)}"
    )
    third = f"emulating it took {report.wall_seconds:.1f} s (wall)"
    head = [Text(first, style="bold"), Text(second), Text(third, style="dim")]
    return head if report.step is None else [head[0], _steps(report), *head[1:]]


def _steps(report: TopReport) -> Text:
    batch = _NONE if report.global_batch_size is None else str(report.global_batch_size)
    return Text(f"step {report.step}  global batch {batch}  devices' batches changed {report.retunes} times")


def _table(report: TopReport, whole: bool, one_line: bool) -> Table:
    """Return the devices: `whole` with all columns, on `one_line` each."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    slowdowns = any(device.slowdown_ratio is not None for device in report.devices)
    healthy = any(device.health for device in report.devices)
    rows = [_row(device, slowdowns, healthy) for device in report.devices]
    for heading in [heading for heading in (rows[0] if rows else ()) if whole or heading not in _LEAST]:
        table.add_column(heading, justify="left" if heading in _WORDS else "right", no_wrap=True)
    for row in rows:
        cells = (cell for heading, cell in row.items() if whole or heading not in _LEAST)
        table.add_row(*(cell if one_line or isinstance(cell, Text) else stack_band(cell) for cell in cells))
    return table


def _row(device: TopDevice, slowdowns: bool, healthy: bool) -> dict[str, Text | str]:
    """Return heading -> cell."""
    return {
        "drive": device.device,
        "state": Text(device.state or _NONE, style=_COLOURS.get(device.state, "")),
        "clock": device.clock or _NONE,
        "batch": _NONE if device.batch_size is None else str(device.batch_size),
        **({"slow-\ndown": _number(device.slowdown_ratio, 2)} if slowdowns else {}),
        "records/\ndevice s": _banded(device, "records_per_device_second", 1),
        "device s\ncomputing": _banded(device, "compute_seconds", 3),
        "device s\nelapsed": _banded(device, "device_seconds", 3),
        "W": _banded(device, "power_watts", 2),
        "J": _banded(device, "energy_joules", 2),
        "link": format_bytes(device.host_link_bytes),
        "memory": _NONE if device.memory_bytes is None else format_bytes(device.memory_bytes),
        **({"health": _health(device)} if healthy else {}),
    }


def _health(device: TopDevice) -> str:
    shown = ((HEALTH[name][1], value) for name, value in device.health.items())
    return ", ".join(text.format(value) for text, value in shown if value or "{" in text)


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"


def _banded(of: TopReport | TopDevice, figure: str, digits: int) -> str:
    """Return a figure with its band, where it has one."""
    return format_band(_number(getattr(of, figure), digits), of.bands.get(figure))
