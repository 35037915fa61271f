"""From a run's history and its drives' states to what the page shows. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from csd_emu.util.node_names import HOST
from host.core.run_stats import DeviceStats
from host.monitoring.page.curve import Point
from host.monitoring.page.drive_history import DriveLog
from host.monitoring.page.page_state import VERSION, DriveNow, PageState, RunNow, SeriesNow
from host.monitoring.page.page_timeline import make_timeline
from host.monitoring.page.run_history import HistorySnapshot, RunPlan, finite

MOST_BATCH_CURVES = 4


@dataclass(frozen=True)
class Presence:
    """Whether a drive is there, and what it has said of itself; see `describe_presences`."""

    state: str
    kind: str = ""
    profile: str = ""
    clock: str = ""


def make_state(
    plan: RunPlan, now: HistorySnapshot, presences: Mapping[str, Presence], instance: str, program: str
) -> PageState:
    """Return all that the page shows; `program` is the version of csd-emu."""
    batches, hidden = _batches(now.drives, now.totals.array_seconds)
    return PageState(
        version=VERSION,
        instance=instance,
        revision=now.revision,
        run=RunNow(
            array=plan.array,
            engine=plan.engine,
            model=plan.model,
            mode=plan.mode,
            phase=now.phase,
            clock=now.clock,
            rounds=plan.rounds,
            target_accuracy=plan.target_accuracy,
            run_directory=now.run_directory,
            program=program,
            changed_unix_seconds=now.changed_unix_seconds,
        ),
        totals=now.totals,
        states=dict(Counter(presence.state for presence in presences.values())),
        drives=[_drive(name, presence, now) for name, presence in presences.items()],
        failures=list(now.failures),
        events=list(reversed(now.events)),
        rounds=list(reversed(now.rounds)),
        series={name: _series(points) for name, points in now.curves.items() if points},
        batches=batches,
        hidden_batches=hidden,
        timeline=make_timeline(now.last, now.drives),
    )


def _drive(name: str, presence: Presence, now: HistorySnapshot) -> DriveNow:
    log, sums = now.drives.get(name, DriveLog()), now.stats.devices.get(name, DeviceStats())
    return DriveNow(
        name=name,
        kind=presence.kind,
        profile=presence.profile,
        state=presence.state,
        clock=log.clock or presence.clock,
        rounds=sums.rounds - sums.stragglers,
        records=sums.samples,
        records_per_device_second=_short(log.records_per_device_second),
        compute_seconds=_short(now.stats.device_seconds.get(name)) or 0.0,
        batch_size=log.batch_size,
        watts=_short(log.watts),
        joules=_short(math.fsum(now.stats.node_joules.get(name, {}).values())) or 0.0,
        slowdown=_short(log.slowdown),
        straggler=log.straggler,
    )


def _short(value: float | None) -> float | None:
    """Return six digits of `value`: a thousand drives are sent at once."""
    return None if value is None or finite(value) is None else float(f"{value:.6g}")


def _series(points: Sequence[Point]) -> SeriesNow:
    return SeriesNow([_short(x) or 0.0 for x, _ in points], [_short(y) for _, y in points])


def _batches(drives: Mapping[str, DriveLog], end_seconds: float) -> tuple[dict[str, SeriesNow], int]:
    """Return the batches of the drives that changed most often, up to the end, and how many others have some.

    The host's own would make those of all drives look alike.
    """
    known = [name for name, log in drives.items() if log.batches and name != HOST]
    several = len(known) > MOST_BATCH_CURVES
    chosen = [name for name in known if len(drives[name].batches) > several]
    chosen = sorted(chosen, key=lambda name: -len(drives[name].batches))[:MOST_BATCH_CURVES]
    curves = {}
    for name in (name for name in known if name in chosen):
        points = [(x, float(y)) for x, y in drives[name].batches]
        curves[name] = _series([*points, (max(end_seconds, points[-1][0]), points[-1][1])])
    return curves, len(known) - len(chosen)
