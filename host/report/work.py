"""What a run did, and what the same work takes on the host, or on another number of drives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from csd_emu.baseline import Baseline, Storage, train_on_host
from csd_emu.power import PUBLISHED, busy_core_seconds, device_energy, host_energy, needed_drive_watts
from csd_emu.profiles import PROFILES, Profile
from csd_emu.timeline import HOST, Activity, Link, compose
from firmware_agent.wire import PhaseSeconds
from host.records import DeviceRound, RoundRecord
from host.report.comparison import Against, PublishedCheck
from host.report.figures import total_run

REFERENCE = "newport"
# The baseline packs no weights.
NOT_IN_BASELINE = frozenset({"encode"})
MOST_DRIVES = 1024


def newport_seconds(part: DeviceRound, profile: Profile) -> dict[str, float]:
    """Return a drive's compute as seconds of a `newport` drive, phase by phase, without what the baseline lacks."""
    reference = PROFILES[REFERENCE]
    return {
        phase: getattr(part.device_seconds, phase) / profile.scale(phase) * reference.scale(phase)
        for phase in PhaseSeconds.__struct_fields__
        if phase not in NOT_IN_BASELINE
    }


class Work:
    """What a run did, and what it would take the host to do it."""

    def __init__(
        self, rounds: Sequence[RoundRecord], profiles: Mapping[str, Profile], host: Profile, link: Link
    ) -> None:
        """Add up the rounds.

        Args:
            rounds: at least one, with records trained on and bytes read.
            profiles: drive -> profile, for each drive of the array; at least one.
            host: its profile, with a ratio.
            link: the host's side of the link.
        """
        self._host, self._link, self._drives = host, link, list(profiles.values())
        self._totals, self._rounds = total_run(rounds), len(rounds)
        parts = [part for record in rounds for part in record.devices]
        self._parts, self._batch_size = len(parts), max(part.batch_size for part in parts)
        newport = [newport_seconds(part, profiles.get(part.device, self._drives[0])) for part in parts]
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
        joules = self.baseline_joules(base, self._host_phases(ratio))
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

    def baseline(self, ratio: float, drives: int) -> Baseline:
        """Return how long the host takes for the same records, spread over so many plain drives."""
        totals = self._totals
        storage = Storage(
            drives=drives,
            drive_bytes_per_second=min(
                min(drive.flash_bytes_per_second.value, drive.nvme_bytes_per_second.value) for drive in self._drives
            ),
            host_bytes_per_second=self._host.nvme_bytes_per_second.value,
            latency_seconds=max(drive.flash_latency_seconds.value for drive in self._drives),
        )
        record_bytes = max(1, round(totals.read_bytes / totals.samples))
        return train_on_host(totals.samples, record_bytes, self._batch_size, self._host_phases(ratio), storage)

    def baseline_joules(self, base: Baseline, phases: Mapping[str, float]) -> float:
        """Return the energy of the baseline: host, chassis, idle drives, flash and link by their bytes."""
        host = host_energy(
            self._host, base.seconds, busy_core_seconds(self._host, phases), base.compute_seconds, base.bytes
        )
        share = base.bytes / len(self._drives)
        drives = [device_energy(drive.power, base.seconds, 0, 0, share, share) for drive in self._drives]
        return sum(host.values()) + sum(sum(parts.values()) for parts in drives)

    def break_even_drives(self, ratio: float) -> int | None:
        """Return the least number of drives, of the array's mean kind and with equal shares, that is fast enough.

        More drives shorten the compute of each, but every drive exchanges all weights over the host's link: seconds
        fall and then rise again, so no number may be enough.
        """
        failed = 0
        for drives in _grid():
            if self.predict_seconds(drives) <= self.baseline(ratio, drives).seconds:
                return self._first(ratio, failed + 1, drives)
            failed = drives
        return None

    def predict_seconds(self, drives: int) -> float:
        """Return the run's array seconds with so many equal drives that share its records equally."""
        kind, count, rounds = self._drives[0], self._parts, self._rounds
        # Records are shared out, but each drive packs all weights, however few records it has.
        phases = {
            phase: seconds / (count if phase in NOT_IN_BASELINE else rounds * drives)
            for phase, seconds in self._seconds.items()
        }
        activity = Activity(
            device="",
            receive_bytes=self._totals.sent_bytes // count,
            read_bytes=self._totals.read_bytes // (rounds * drives),
            read_operations=1,
            phases=phases,
            send_bytes=self._totals.received_bytes // count,
            flash_bytes_per_second=kind.flash_bytes_per_second.value,
            flash_latency_seconds=kind.flash_latency_seconds.value,
            link_bytes_per_second=kind.link_bytes_per_second.value,
            link_latency_seconds=kind.link_latency_seconds.value,
        )
        # Equal drives on a shared link end together: one with an equal part of the link is all of them.
        share_of_link = self._link.bytes_per_second / drives if self._link.shared else self._link.bytes_per_second
        link = Link(share_of_link, self._link.latency_seconds, shared=False)
        return rounds * compose([activity], link, self._host_seconds).seconds

    def check_published(self, middle: Against) -> list[PublishedCheck]:
        """Return the watts that published results leave to each drive, beside those of the profile."""
        watts = middle.energy_joules / middle.seconds
        added = [
            drive.power.core_watts.value * drive.cores.value + drive.power.dram_watts.value for drive in self._drives
        ]
        return [
            PublishedCheck(
                source=result.source,
                speedup=result.speedup,
                energy_factor=result.energy_factor,
                power_ratio=result.power_ratio,
                needed_watts=needed_drive_watts(result.speedup, result.energy_factor, watts, len(self._drives)),
                assumed_watts=math.fsum(added) / len(added),
            )
            for result in PUBLISHED.values()
        ]

    def _host_phases(self, ratio: float) -> dict[str, float]:
        return {phase: seconds / ratio for phase, seconds in self._newport.items()}

    def _first(self, ratio: float, low: int, high: int) -> int:
        """Return the least number in low..high that is fast enough; `high` is."""
        while low < high:
            middle = (low + high) // 2
            if self.predict_seconds(middle) <= self.baseline(ratio, middle).seconds:
                high = middle
            else:
                low = middle + 1
        return low


def _grid() -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12... up to `MOST_DRIVES`."""
    return sorted({size for power in range(11) for size in (2**power, 3 * 2**power) if size <= MOST_DRIVES})
