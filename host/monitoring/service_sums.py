"""Figures of drives in service, over the rounds of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec.structs import asdict, replace

from csd_emu.perfmodel.storage.service_figures import ServiceFigures
from host.core.records import RoundRecord


def sum_by_drive(rounds: Iterable[RoundRecord]) -> dict[str, ServiceFigures]:
    """Return drive -> `sum_services` of its rounds, for the drives that served a host."""
    found: dict[str, list[ServiceFigures]] = {}
    for record in rounds:
        for part in record.devices:
            if part.service is not None:
                found.setdefault(part.device, []).append(part.service)
    return {device: sum_services(figures) for device, figures in found.items()}


def sum_services(figures: Sequence[ServiceFigures]) -> ServiceFigures:
    """Return a drive's figures over several rounds, at least one, in order.

    Counts and seconds add up; means weigh by commands or by seconds. Percentiles do not add up: they are those of the
    round with the highest 99th. The 99th percentiles of single seconds are left out.
    """

    def weigh(name: str, weights: Sequence[float]) -> float:
        total = math.fsum(weights)
        parts = [getattr(each, name) * weight for each, weight in zip(figures, weights, strict=True)]
        return math.fsum(parts) / total if total else float(getattr(figures[-1], name))

    seconds = [each.seconds for each in figures]
    counts = ("reads", "writes", "read_bytes", "write_bytes", "failed_writes", "over_limit_seconds")
    return replace(
        max(figures, key=lambda each: each.p99_seconds),
        **{name: sum(getattr(each, name) for each in figures) for name in counts},
        **{name: weigh(name, seconds) for name in ("queue_depth", "die_busy_share", "training_share")},
        mean_seconds=weigh("mean_seconds", [each.reads + each.writes for each in figures]),
        seconds=math.fsum(seconds),
        waited_seconds=math.fsum(each.waited_seconds for each in figures),
        write_amplification=figures[-1].write_amplification,
        second_p99_seconds=[],
    )


def commands_per_second(figures: ServiceFigures) -> float:
    """Return the commands of the host that ended in a second; 0 of no time."""
    return (figures.reads + figures.writes) / figures.seconds if figures.seconds else 0.0


def bytes_per_second(figures: ServiceFigures) -> float:
    """Return what the host read and wrote in a second; 0 of no time."""
    return (figures.read_bytes + figures.write_bytes) / figures.seconds if figures.seconds else 0.0


def list_figures(figures: ServiceFigures | None) -> dict[str, float]:
    """Return name -> number of all figures that are one; empty of None."""
    known = {} if figures is None else asdict(figures)
    return {name: value for name, value in known.items() if not isinstance(value, list)}
