"""Figures of drives in service, over the rounds of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec.structs import asdict, astuple, replace

from csd_emu.perfmodel.storage.service_figures import ServiceFigures
from firmware_agent.common.health.drive_health import DriveHealth, IoCounters
from host.core.records import RoundRecord

# Commands and units of 512,000 bytes in a second, more than any drive serves; a faster counter is not believed.
_MOST_PER_SECOND = (10**7, 10**7, 10**5, 10**5)
# What the agent reads may be so old, so a short round may end with what was counted in all of them.
_STALE_SECONDS = 120.0


def measure_by_drive(rounds: Iterable[RoundRecord]) -> dict[str, list[float | None]]:
    """Return drive -> reads, writes, units read and units written in a wall second, by its own counters.

    Rates are over the time between rounds' ends at which a counter was known. Left out is the time in which a drive
    took the job again, or in which a counter went back or grew faster than a drive can count. None if no time is left.
    """
    last: dict[str, tuple[float, DriveHealth]] = {}
    grown: dict[str, list[list[float]]] = {}
    wall_seconds = 0.0
    for record in rounds:
        wall_seconds += record.wall_seconds
        for device, health in ((part.device, part.health) for part in record.devices if part.health is not None):
            began, before = last.get(device, (wall_seconds, health))
            last[device], seconds = (wall_seconds, health), wall_seconds - began
            sums = grown.setdefault(device, [[0, 0.0] for _ in _MOST_PER_SECOND])
            if (taken := _counted_before_job(health)) is None or taken != _counted_before_job(before):
                continue
            for total, growth, most in zip(sums, astuple(health.io.since(before.io)), _MOST_PER_SECOND, strict=True):
                if growth is not None and growth <= most * max(seconds, _STALE_SECONDS):
                    total[:] = total[0] + growth, total[1] + seconds
    return {
        name: [
            count / time if time > 0 and count <= most * time else None
            for most, (count, time) in zip(_MOST_PER_SECOND, sums, strict=True)
        ]
        for name, sums in grown.items()
    }


def _counted_before_job(health: DriveHealth) -> IoCounters | None:
    return None if health.io_of_job is None else health.io.since(health.io_of_job)


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
