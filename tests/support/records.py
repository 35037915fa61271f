"""Records of runs that never were, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import yaml

from csd_emu.perfmodel.power import add_up, device_energy, host_energy
from csd_emu.perfmodel.storage.service_figures import ServiceFigures
from csd_emu.perfmodel.timeline import Activity, Link, Span, compose, shift
from csd_emu.profiles import PROFILES, Profile
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.figure_bands import Band
from host.core.records import DeviceRound, Record, RoundRecord

WEIGHT_BYTES = 153_875
READ_BYTES = 85_104
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits"},
    "strategy": "fedavg",
    "rounds": 12,
    "epochs": 2,
    "seed": 0,
    "target": {"accuracy": 0.95},
}


def device_round(device: str, samples: int, seconds: PhaseSeconds, **fields: Any) -> DeviceRound:
    """Return a device's part in a round; `fields` replace what is made up."""
    defaults: dict[str, Any] = {
        "clock": "counted",
        "steps": 2,
        "batch_size": 32,
        "loss": 0.5,
        "stopwatch_seconds": PhaseSeconds(),
        "sent_bytes": 100,
        "received_bytes": 200,
    }
    return DeviceRound(device=device, samples=samples, device_seconds=seconds, **defaults | fields)


def round_record(devices: list[DeviceRound], **fields: Any) -> RoundRecord:
    """Return a round of these devices; `fields` replace what is made up."""
    slowest = max((part.device_seconds.total for part in devices), default=0.0)
    defaults: dict[str, Any] = {
        "round": 1,
        "clock": "counted",
        "accuracy": 0.9,
        "test_loss": 0.3,
        "train_loss": 0.5,
        "records_per_device_second": 2.7,
        "slowest_device_seconds": slowest,
        "start_seconds": 0.0,
        "array_seconds": slowest,
        "wall_seconds": 9.0,
    }
    return RoundRecord(devices=devices, **defaults | fields)


def with_bands(record: RoundRecord) -> RoundRecord:
    """Return a round whose figures may be half or twice as much."""
    computed = sum(part.device_seconds.total for part in record.in_time)
    figures = {
        "array_seconds": record.array_seconds,
        "device_seconds": computed,
        "energy_joules": record.total_joules,
    }
    nodes = {node: {"energy_joules": sum(parts.values())} for node, parts in record.node_joules.items()}
    for part in record.in_time:
        nodes.setdefault(part.device, {})["device_seconds"] = part.device_seconds.total
    of_nodes = {node: _half_to_twice(own) for node, own in nodes.items()}
    return msgspec.structs.replace(record, bands=_half_to_twice(figures), device_bands=of_nodes)


def _half_to_twice(figures: Mapping[str, float]) -> dict[str, Band]:
    return {name: Band(value / 2, value * 2) for name, value in figures.items()}


def array_round(number: int, names: Sequence[str], start_seconds: float = 0.0, **fields: Any) -> RoundRecord:
    """Return a round of `newport` drives with spans, flash, link and energy; drives differ by up to a half.

    `fields` replace what is made up.
    """
    drive, host = PROFILES["newport"], PROFILES["xeon-4108"]
    shares = {name: 1.0 + 0.5 * (index % 4) / 4 for index, name in enumerate(names)}
    phases = {
        name: PhaseSeconds(forward=0.10 * share, backward=0.18 * share, update=0.03 * share, encode=0.01)
        for name, share in shares.items()
    }
    link = Link(host.link_bytes_per_second.value, host.link_latency_seconds.value)
    composed = compose([_activity(name, phases[name], drive) for name in names], link, 0.004)
    spans = {name: [span for span in composed.spans if span.device == name] for name in [*names, "host"]}
    devices = [
        device_round(
            name,
            round(960 * shares[name]),
            phases[name],
            flash_read_bytes=READ_BYTES,
            sent_bytes=WEIGHT_BYTES,
            received_bytes=WEIGHT_BYTES,
            peak_memory_bytes=200_000_000,
            energy_joules=_energy(drive, spans[name], composed.seconds),
        )
        for name in names
    ]
    samples = sum(part.samples for part in devices)
    defaults: dict[str, Any] = {
        "round": number,
        "accuracy": 1 - 0.9 * 0.7**number,
        "test_loss": 2.3 * 0.7**number,
        "train_loss": 2.2 * 0.65**number,
        "records_per_device_second": samples / sum(part.device_seconds.total for part in devices),
        "start_seconds": start_seconds,
        "array_seconds": composed.seconds,
        "spans": list(shift(composed.spans, start_seconds)),
        "energy_joules": {"host": host_energy(host, composed.seconds, 0.004, 0.004, 2 * WEIGHT_BYTES * len(names))},
    }
    return round_record(devices, **defaults | fields)


def array_rounds(count: int, names: Sequence[str], **fields: Any) -> list[RoundRecord]:
    """Return rounds one behind the other; see `array_round`."""
    rounds: list[RoundRecord] = []
    start = 0.0
    for number in range(1, count + 1):
        rounds.append(array_round(number, names, start, **fields))
        start += rounds[-1].array_seconds
    return rounds


def _activity(name: str, phases: PhaseSeconds, drive: Profile) -> Activity:
    return Activity(
        device=name,
        receive_bytes=WEIGHT_BYTES,
        read_bytes=READ_BYTES,
        read_operations=30,
        phases={phase: getattr(phases, phase) for phase in phases.__struct_fields__},
        send_bytes=WEIGHT_BYTES,
        flash_bytes_per_second=drive.flash_bytes_per_second.value,
        flash_latency_seconds=drive.flash_latency_seconds.value,
        link_bytes_per_second=drive.link_bytes_per_second.value,
        link_latency_seconds=drive.link_latency_seconds.value,
    )


def _energy(drive: Profile, spans: Sequence[Span], seconds: float) -> dict[str, float]:
    did = add_up(drive, spans)
    return device_energy(drive.power, seconds, did.busy_core_seconds, did.busy_seconds, did.read_bytes, did.link_bytes)


def write_run(
    folder: Path,
    records: Sequence[Record],
    devices: int = 3,
    array: Mapping[str, Any] | None = None,
    job: Mapping[str, Any] | None = None,
) -> Path:
    """Write a run directory, without a summary; `array` and `job` replace keys of the quickstart's."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [msgspec.json.encode(record) + b"\n" for record in records]
    (folder / "records.jsonl").write_bytes(b"".join(lines))
    groups = [{"profile": "newport", "count": devices, "name": "csd"}]
    defaults = {"name": "lab", "engine": "qemu", "host": {"profile": "xeon-4108"}, "devices": groups}
    (folder / "array.yaml").write_text(yaml.safe_dump(defaults | dict(array or {}), sort_keys=False))
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB | dict(job or {}), sort_keys=False))
    profiles = {name: asdict(PROFILES[name]) for name in ("newport", "xeon-4108")}
    facts = {f"csd-{index:02d}": {"torch": "2.9.1", "machine": "aarch64"} for index in range(devices)}
    versions = {"host": {"python": "3.11.2"}, "devices": facts, "profiles": profiles}
    (folder / "versions.json").write_bytes(msgspec.json.encode(versions))
    return folder


def service_figures(number: int = 1, **fields: Any) -> ServiceFigures:
    """Return what a drive did for its host in ten seconds; latencies grow with `number`, `fields` replace the rest."""
    defaults: dict[str, Any] = {
        "seconds": 10.0,
        "reads": 140_000,
        "writes": 60_000,
        "read_bytes": 140_000 * 4096,
        "write_bytes": 60_000 * 4096,
        "mean_seconds": 1.2e-4 * number,
        "p50_seconds": 1.0e-4 * number,
        "p99_seconds": 1.5e-3 * number,
        "p999_seconds": 2.5e-3 * number,
        "alone_p99_seconds": 0.9e-3 * number,
        "queue_depth": 2.4,
        "write_amplification": 1.5 + number / 10,
        "die_busy_share": 0.4,
        "training_share": 0.8,
    }
    return ServiceFigures(**defaults | fields)


def service_rounds(count: int, names: Sequence[str], **fields: Any) -> list[RoundRecord]:
    """Return `array_rounds` of drives that also served a host, the later the slower."""
    rounds = array_rounds(count, names)
    return [
        msgspec.structs.replace(
            record,
            devices=[
                msgspec.structs.replace(part, service=service_figures(record.round + index, **fields))
                for index, part in enumerate(record.devices)
            ],
        )
        for record in rounds
    ]
