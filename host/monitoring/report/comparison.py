"""Result of a comparison with the baseline; see `host.monitoring.report.compare_baseline`."""

from __future__ import annotations

from dataclasses import dataclass, field

from csd_emu.perfmodel.power import PUBLISHED, needed_drive_watts


@dataclass(frozen=True)
class Against:
    """The baseline if a host is worth `ratio` newport drives, and the run against it.

    Attributes:
        ratio: how many newport drives the host is worth.
        seconds: the baseline takes.
        compute_seconds: that its host computes.
        exposed_seconds: that its host waits for reads.
        speedup: `seconds` over the run's array seconds; below 1 the run is slower than the baseline.
        energy_joules: of host, chassis and idle drives.
        energy_factor: `energy_joules` over the run's; below 1 the run needs more. None if the run's is not known.
        break_even_drives: the least number of such drives with which the run would be as fast; None if no number is
            enough.
    """

    ratio: float
    seconds: float
    compute_seconds: float
    exposed_seconds: float
    speedup: float
    energy_joules: float
    energy_factor: float | None
    break_even_drives: int | None


@dataclass(frozen=True)
class PublishedCheck:
    """A published result, and the watts that it implies by the middle of the band.

    Attributes:
        source: who published it.
        speedup: over the baseline, host and drives together.
        energy_factor: less energy by this factor.
        power_ratio: what the two imply: power with computing drives over power without.
        needed_watts: that computing may add to each drive for that; negative if no drive could do it.
        assumed_watts: that the profile's drive adds.
    """

    source: str
    speedup: float
    energy_factor: float
    power_ratio: float
    needed_watts: float
    assumed_watts: float


def check_published(baseline_watts: float, drives: int, assumed_watts: float) -> list[PublishedCheck]:
    """Return what each published result leaves to each drive.

    Args:
        baseline_watts: of the server that trains without the drives' help.
        drives: that help.
        assumed_watts: that computing adds to each of them by its profile.
    """
    return [
        PublishedCheck(
            source=result.source,
            speedup=result.speedup,
            energy_factor=result.energy_factor,
            power_ratio=result.power_ratio,
            needed_watts=needed_drive_watts(result.speedup, result.energy_factor, baseline_watts, drives),
            assumed_watts=assumed_watts,
        )
        for result in PUBLISHED.values()
    ]


@dataclass(frozen=True)
class AssumedFigure:
    """A figure of a profile for which nothing published could be read."""

    profile: str
    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True)
class Comparison:
    """A run against the baseline.

    Attributes:
        clock: of the run's seconds.
        samples: records that both train on, repetitions counted; not those of late drives.
        drives: of the array.
        seconds: array seconds of the run.
        energy_joules: of the run, 0 if not known.
        link_bytes: of the run, over the host link.
        baseline_link_bytes: of a baseline that reads each record each time it trains on it.
        cached_link_bytes: of a baseline whose host keeps what it has read once.
        saved_share: 1 - link_bytes / baseline_link_bytes: below 0 if the run moved more.
        saved_share_cached: the same against `cached_link_bytes`.
        band: the baseline at the low, the middle and the high end of what a host is worth.
        published: what published results imply.
        assumed: figures on which time and energy rest and for which there is no source.
        reason: why there is no `band`, empty if there is one.
    """

    clock: str
    samples: int
    drives: int
    seconds: float
    energy_joules: float
    link_bytes: int
    baseline_link_bytes: int
    cached_link_bytes: int
    saved_share: float
    saved_share_cached: float
    band: list[Against] = field(default_factory=list)
    published: list[PublishedCheck] = field(default_factory=list)
    assumed: list[AssumedFigure] = field(default_factory=list)
    reason: str = ""
