"""A run against the baseline "the host trains, the drives are plain storage", on the same number of records.

The host's compute is the drives' compute, as seconds of `newport` drives, over how many such drives a host is worth.
That is a band (docs/report.md), so the result is one too. `encode` is left out: the baseline packs no weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from csd_emu.profiles import Profile
from host.core.device_time import MEASURED_HOST, WALL
from host.core.run_stats import RunStats
from host.monitoring.report.comparison import AssumedFigure, Comparison
from host.monitoring.report.load_run import RunData
from host.monitoring.report.run_work import RunWork


def compare(run: RunData) -> Comparison:
    """Return the run against the baseline; without drive seconds or profiles only the bytes, and the reason."""
    totals = RunStats.of(run.rounds)
    reason = _reason(run, totals)
    cached = _bytes_read_once(run)
    drives = [profile for name in run.devices if (profile := run.drive_profile(name)) is not None]
    work, host, link = None, run.host, run.link()
    if not reason and host is not None and link is not None:
        profiles = {name: run.drive_profile(name) or drives[0] for name in run.devices}
        work = RunWork(run.rounds, profiles, host, link, run.events)
    band = work.band() if work is not None else []
    return Comparison(
        clock=totals.clock,
        samples=totals.samples,
        drives=len(run.devices),
        seconds=totals.array_seconds,
        energy_joules=totals.energy_joules,
        link_bytes=totals.link_bytes,
        baseline_link_bytes=totals.read_bytes,
        cached_link_bytes=cached,
        saved_share=saved_share(totals.link_bytes, totals.read_bytes),
        saved_share_cached=saved_share(totals.link_bytes, cached),
        band=band,
        published=work.check_published(band[1]) if work is not None else [],
        assumed=list_assumptions([*drives, host]) if work is not None and host is not None else [],
        reason=reason,
    )


def saved_share(ours: int, baseline: int) -> float:
    """Return the share of the baseline's bytes that did not cross the link, below 0 if ours are more, at most 1."""
    return 1.0 - ours / baseline if baseline else 0.0


def list_assumptions(profiles: Sequence[Profile]) -> list[AssumedFigure]:
    """Return the figures of these profiles that are assumed, each profile once."""
    return [
        AssumedFigure(profile.name, entry.figure, entry.value, entry.unit, entry.source)
        for profile in {profile.name: profile for profile in profiles}.values()
        for entry in profile.entries()
        if entry.assumed
    ]


def _reason(run: RunData, totals: RunStats) -> str:
    """Return why time and energy of the baseline cannot be told; empty if they can."""
    reasons = {
        "Nothing counted: every drive was late in every round, so all of their work was discarded.": (
            not totals.samples and any(record.devices for record in run.rounds)
        ),
        "No round was finished, so there is nothing to compare.": not totals.samples,
        "The run's seconds are wall seconds of processes on this machine. They say nothing of a drive, so neither do "
        "they of what a host would take; counted or modelled drives are needed.": (
            WALL in totals.clock and run.array.get("engine") != "remote"
        ),
        "The host's profile is not known or says nothing of its speed in drives.": (
            run.host is None or run.host.ratio is None
        ),
        "The host's seconds are those of its own calibration table. How fast it is alone is known in newport drives "
        "only, and that would be another host.": any(event.detail == MEASURED_HOST for event in run.events),
        "The records do not say what was read from flash, or how long the array took.": (
            not totals.read_bytes or not totals.array_seconds
        ),
        "The profile of a drive is not known.": (
            not run.devices or any(run.drive_profile(name) is None for name in run.devices)
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _bytes_read_once(run: RunData) -> int:
    """Return the bytes of the shards: of each drive the most that it read in one pass in time.

    In a synchronous run records move between devices from round to round, so that the most of a round stands for all
    of them; of rounds that are less than a pass that is too little, which is to the baseline's advantage.
    """
    epochs = run.job.get("epochs", 1)
    passes = epochs if isinstance(epochs, int) and epochs > 0 else 1
    if any(record.steps for record in run.rounds):
        return max(sum(part.flash_read_bytes for part in each.in_time) // passes for each in run.rounds)
    shards: dict[str, int] = {}
    for part in (part for record in run.rounds for part in record.in_time):
        shards[part.device] = max(shards.get(part.device, 0), part.flash_read_bytes // passes)
    return sum(shards.values())
