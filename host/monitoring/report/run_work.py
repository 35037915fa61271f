"""Work of a run, and its time on the host, or on another number of drives."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from csd_emu.perfmodel.host_node import storage_of
from csd_emu.perfmodel.host_only import HostOnlyBaseline, baseline_joules, train_on_host
from csd_emu.perfmodel.timeline import Activity, Link, compose
from csd_emu.profiles import PROFILES, Profile
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import DeviceRound, EventRecord, RoundRecord
from host.core.run_stats import RunStats
from host.monitoring.report.comparison import Against, PublishedCheck, check_published
from host.monitoring.report.competing import stand_ins, undisturbed_share

REFERENCE = "newport"
# The baseline packs no weights.
NOT_IN_BASELINE = frozenset({"encode"})
MOST_DRIVES = 1024
# 1, 2, 3, 4, 6, 8, 12... up to these.
_GRID = sorted({size for power in range(11) for size in (2**power, 3 * 2**power) if size <= MOST_DRIVES})


def newport_seconds(part: DeviceRound, profile: Profile) -> dict[str, float]:
    """Return a device's compute as seconds of a `newport` drive, phase by phase, without what the baseline lacks.

    A host that trains beside the drives is modelled as so many `newport` drives as the middle of its ratio says.
    """
    reference, middle = PROFILES[REFERENCE], profile.ratio.middle.value if profile.ratio is not None else 0.0
    return {
        phase: getattr(part.device_seconds, phase) * (middle or reference.scale(phase) / profile.scale(phase))
        for phase in PhaseSeconds.__struct_fields__
        if phase not in NOT_IN_BASELINE
    }


class RunWork:
    """What a run did, and what it would take the host to do it."""

    def __init__(
        self,
        rounds: Sequence[RoundRecord],
        profiles: Mapping[str, Profile],
        host: Profile,
        link: Link,
        events: Sequence[EventRecord] = (),
    ) -> None:
        """Add up the rounds. What late drives did is discarded work: only its link bytes and energy count.

        Args:
            rounds: at least one, with records trained on in time and bytes read.
            profiles: drive -> profile, for each drive of the array; at least one.
            host: its profile, with a ratio.
            link: the host's side of the link.
            events: of the run; they say which drives a competing task slowed down.
        """
        self._host, self._link, self._drives = host, link, list(profiles.values())
        self._totals = RunStats.of(rounds)
        parts = [part for record in rounds for part in record.in_time]
        self._parts, self._batch_size = len(parts), max(part.batch_size for part in parts)
        self._steps, self._exchanges = sum(part.steps for part in parts), sum(len(record.devices) for record in rounds)
        self._steps_shared = any(record.steps for record in rounds)
        newport = list(_baseline_compute(rounds, {HOST: host, **profiles}, self._drives[0], events))
        self._newport = {phase: math.fsum(each[phase] for each in newport) for phase in newport[0]}
        self._seconds = {
            phase: math.fsum(getattr(part.device_seconds, phase) for part in parts)
            for phase in PhaseSeconds.__struct_fields__
        }
        own = [span.seconds for record in rounds for span in record.spans if span.device == HOST]
        self._host_seconds = math.fsum(own) / len(rounds)

    def band(self) -> list[Against]:
        """Return the run against a slow, a middling and a fast host: a host worth few, some, many drives."""
        ratio = self._host.ratio
        return [self.against(end.value) for end in (ratio.low, ratio.middle, ratio.high)] if ratio else []

    def against(self, ratio: float) -> Against:
        """Return the run against a host worth `ratio` newport drives."""
        base = self.baseline(ratio, len(self._drives))
        joules = baseline_joules(base, self._host, self._drives, self._host_phases(ratio))
        ours = self._totals
        return Against(
            ratio=ratio,
            seconds=base.seconds,
            compute_seconds=base.compute_seconds,
            exposed_seconds=base.exposed_seconds,
            speedup=base.seconds / ours.array_seconds,
            energy_joules=joules,
            energy_factor=joules / ours.energy_joules if ours.energy_joules else None,
            break_even_drives=self.break_even_drives(ratio),
        )

    def baseline(self, ratio: float, drives: int) -> HostOnlyBaseline:
        """Return how long the host takes for the same records, spread over so many plain drives."""
        totals = self._totals
        storage = replace(storage_of(self._host, self._drives), drives=drives)
        record_bytes = max(1, round(totals.read_bytes / totals.samples))
        return train_on_host(totals.samples, record_bytes, self._batch_size, self._host_phases(ratio), storage)

    def break_even_drives(self, ratio: float) -> int | None:
        """Return the least number of drives, of the array's mean kind and with equal shares, that is fast enough.

        None of a synchronous run: its shares are unequal on purpose (`csd-emu simulate` tells).

        More drives shorten the compute of each, but every drive exchanges all weights over the host's link: seconds
        fall and then rise again, so no number may be enough.
        """
        if self._steps_shared:
            return None

        def fast_enough(drives: int) -> bool:
            return self.predict_seconds(drives) <= self.baseline(ratio, drives).seconds

        failed = 0
        for drives in _GRID:
            if fast_enough(drives):
                between = range(failed + 1, drives)
                return between.start + bisect_left(between, True, key=fast_enough)
            failed = drives
        return None

    def predict_seconds(self, drives: int) -> float:
        """Return the run's array seconds with so many equal drives that share its records equally."""
        kinds, exchanges, shares = self._drives, self._exchanges, self._totals.rounds * drives
        # Records are shared out, but each drive packs all weights, however few records it has.
        phases = {
            phase: seconds / (self._parts if phase in NOT_IN_BASELINE else shares)
            for phase, seconds in self._seconds.items()
        }
        activity = Activity(
            device="",
            receive_bytes=self._totals.sent_bytes // exchanges,
            read_bytes=self._totals.read_bytes // shares,
            read_operations=max(1, math.ceil(self._steps / shares)),
            phases=phases,
            send_bytes=self._totals.received_bytes // exchanges,
            # As many bytes over each: the mean of the times, like that of compute.
            flash_bytes_per_second=statistics.harmonic_mean([kind.flash_bytes_per_second.value for kind in kinds]),
            flash_latency_seconds=statistics.fmean(kind.flash_latency_seconds.value for kind in kinds),
            link_bytes_per_second=statistics.harmonic_mean([kind.link_bytes_per_second.value for kind in kinds]),
            link_latency_seconds=statistics.fmean(kind.link_latency_seconds.value for kind in kinds),
        )
        # Equal drives on a shared link end together: one with an equal part of the link is all of them.
        share_of_link = self._link.bytes_per_second / drives if self._link.shared else self._link.bytes_per_second
        link = Link(share_of_link, self._link.latency_seconds, shared=False)
        return self._totals.rounds * compose([activity], link, self._host_seconds).seconds

    def check_published(self, middle: Against) -> list[PublishedCheck]:
        """Return the watts that published results leave to each drive, beside those of the profile."""
        added = [
            drive.power.core_watts.value * drive.cores.value + drive.power.dram_watts.value for drive in self._drives
        ]
        return check_published(middle.energy_joules / middle.seconds, len(self._drives), math.fsum(added) / len(added))

    def _host_phases(self, ratio: float) -> dict[str, float]:
        return {phase: seconds / ratio for phase, seconds in self._newport.items()}


def _baseline_compute(
    rounds: Sequence[RoundRecord], profiles: Mapping[str, Profile], other: Profile, events: Sequence[EventRecord]
) -> Iterator[dict[str, float]]:
    """Yield `newport_seconds` of each part that came in time, without competing tasks where the run can tell."""
    found = stand_ins(rounds, events, {device: profile.name for device, profile in profiles.items()})
    for record in rounds:
        for part in record.in_time:
            like = found.get((record.round, part.device)) or part
            scale = part.samples / like.samples if like is not part else 1.0
            scale *= undisturbed_share(record, part.device)
            mine = newport_seconds(like, profiles.get(part.device, other))
            yield {phase: each * scale for phase, each in mine.items()}
