"""Metrics of runs that never were: a state that events and records are played to, and what a scrape of it says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from csd_emu.profiles import PROFILES
from host.core.device_time import TableModel
from host.core.records import EventKind, EventRecord
from host.monitoring.metrics.calibrated import Calibrated
from host.monitoring.metrics.exposition import Exposition
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.run_facts import DeviceFacts, RunFacts
from host.monitoring.run_listener import RunStart
from tests.support.calibration import make_table

DEVICES = ("csd-00", "csd-01", "csd-02")
HELLO = {"machine": "aarch64", "agent": "0.1.0", "torch": "2.9.1"}
# 20 ms per step and 10 ms per record on the reference core.
TABLE = TableModel(make_table({batch: 0.02 + 0.01 * batch for batch in (2, 8, 16, 64)}), PROFILES["newport"])
Samples = dict[tuple[str, ...], float]


def facts(device: str, clock: str = "counted") -> DeviceFacts:
    return DeviceFacts(device, "emulated", "newport", 4, clock, {"forward": 0.25, "encode": 1.0}, HELLO)


def starting(devices: Iterable[str] = DEVICES, clock: str = "counted", **others: Any) -> RunStart:
    """Return what a run begins to train with on these drives, whose own clock is `counted`."""
    about = [facts(device) if clock == "counted+modelled" else facts(device, clock) for device in devices]
    return RunStart(clock, "runs/lab", lambda: about, **others)


def defined(devices: Iterable[str] = DEVICES) -> MetricsState:
    return MetricsState(RunFacts("lab", "qemu", "digits_cnn", "federated", tuple(devices)))


def begun(
    devices: Iterable[str] = DEVICES,
    clock: str = "counted",
    calibrated: Calibrated | None = None,
    power_cap_watts: float | None = None,
) -> MetricsState:
    """A run that has just begun to train on drives that have all joined."""
    about = RunFacts("lab", "qemu", "digits_cnn", "federated", tuple(devices), power_cap_watts)
    state = MetricsState(about, calibrated)
    for device in devices:
        state.add_event(EventRecord(device, EventKind.JOINED))
    state.begin(starting(devices, clock))
    return state


def exposed(state: MetricsState) -> str:
    return Exposition(state).render(None, None)[1].decode()


def scraped(state: MetricsState) -> dict[str, Samples]:
    return parse(exposed(state))


def parse(text: str) -> dict[str, Samples]:
    """Return metric -> values of its labels, in the order of their names -> value."""
    metrics: dict[str, Samples] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[key] for key in sorted(sample.labels))
            metrics.setdefault(sample.name, {})[labels] = sample.value
    return metrics


def devices_of(text: str) -> dict[str, set[str]]:
    """Return sample name -> values of its label `device`, for those that have it."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "device" in sample.labels:
                found.setdefault(sample.name, set()).add(sample.labels["device"])
    return found
