"""Drives that serve their host while they train: what that makes of a step, or of a federated round.

What drives read takes as much longer than their profiles say as the flash under load takes than the idle one. The
host's data crosses the link beside the messages, which keep at least half of it, and the DRAM of the drives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from csd_emu.perfmodel.flash.flash_queues import Columns
from csd_emu.perfmodel.sharing import Link
from csd_emu.perfmodel.storage.array_storage import ArrayStorage
from csd_emu.perfmodel.storage.service_figures import ServiceFigures
from csd_emu.perfmodel.timeline import RECEIVE, Activity, compose
from csd_emu.profiles import Profile, Sourced
from csd_emu.profiles.flash_geometry import SECOND
from firmware_agent.common.errors import DeviceFailed

DRAM_PASSES = Sourced(2.0, "assumed: a drive's controller buffers what it moves in DRAM, written once and read once")


class DriveService:
    """The drives of an array in service.

    Attributes:
        storage: of all drives.
        waits: drive -> seconds that its reads of the last step took beyond those of a drive that serves nobody.
    """

    def __init__(
        self,
        storage: ArrayStorage,
        profiles: Mapping[str, Profile],
        host: Profile,
        stops_when_full: bool = False,
    ) -> None:
        """Begin at the array's time 0.

        Args:
            storage: see above.
            profiles: drive -> its profile.
            host: the server's.
            stops_when_full: whether the run ends when a write has failed.
        """
        self.storage, self._profiles, self._host, self._stops = storage, profiles, host, stops_when_full
        self.waits: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self._full: set[str] = set()
        # Drive -> when its last reads end, which may be beyond the step's end if that did not wait for them.
        self._read_until: dict[str, float] = {}
        self._step_seconds = 1.0

    def begin_step(self, number: int) -> dict[str, float]:
        """Begin a step, or a round; return drive -> bytes a second that the host moves through its DRAM meanwhile."""
        self.storage.begin_step(number)
        self._rates = {
            device: self.storage.host_bytes_per_second(device, self._step_seconds) for device in self.storage.drives
        }
        return {device: DRAM_PASSES.value * rate for device, rate in self._rates.items()}

    def load(
        self,
        activities: Sequence[Activity],
        link: Link,
        now_seconds: float,
        growths: Mapping[str, float],
        overlapped: bool,
    ) -> tuple[list[Activity], Link]:
        """Return what drives do in a step, and the link, beside what the host asks; their reads are served.

        Args:
            activities: what they would do; computing has been slowed down already.
            link: the host's side, without other data.
            now_seconds: when the step begins, in the array's time.
            growths: drive -> what its computing was slowed down by.
            overlapped: whether a drive reads before it receives anything.
        """
        if not self.storage.drives:
            return list(activities), link
        nvme = self._host.nvme_bytes_per_second.value
        link = replace(link, bytes_per_second=_beside(link.bytes_per_second, nvme, sum(self._rates.values())))
        shared = [self._on_link(part) for part in activities]
        spans = () if overlapped else compose(shared, link).spans
        received = {span.device: span.end_seconds for span in spans if span.phase == RECEIVE}
        self.waits = {}
        for place, part in enumerate(shared):
            if part.device in self.storage.drives and part.read_bytes:
                begin = now_seconds + received.get(part.device, 0.0)
                shared[place] = self._read(part, begin, growths.get(part.device, 1.0))
        return shared, link

    def _on_link(self, part: Activity) -> Activity:
        if part.device not in self.storage.drives:
            return part
        nvme = self._profiles[part.device].nvme_bytes_per_second.value
        rate = _beside(part.link_bytes_per_second, nvme, self._rates.get(part.device, 0.0))
        return replace(part, link_bytes_per_second=rate)

    def _read(self, part: Activity, begin_seconds: float, growth: float) -> Activity:
        reads = max(1, part.read_operations)
        size, compute, storage = part.read_bytes, part.compute_seconds, self.storage
        begin = max(begin_seconds, self._read_until.get(part.device, 0.0))
        took = storage.read(part.device, begin, size, reads, compute)
        self._read_until[part.device] = storage.drives[part.device].now_ns / SECOND
        wait = self.waits[part.device] = max(0.0, took - storage.alone_seconds(part.device, size, reads))
        alone, reading = compute / growth + part.read_seconds, part.read_seconds + wait
        storage.drives[part.device].note_training(alone, reading + compute)
        latency = part.flash_latency_seconds + wait / reads
        return replace(part, flash_latency_seconds=latency, read_operations=reads)

    def write(self, sizes: Mapping[str, int], now_seconds: float) -> list[str]:
        """Have drives write so many bytes; return those that had no room for some of it, beside what went on."""
        failed = [device for device, size in sizes.items() if self.storage.write(device, now_seconds, size)[1]]
        self._full.update(failed)
        return failed

    def end(self, step_seconds: float, now_seconds: float) -> None:
        """End a step that took so long."""
        self._step_seconds = step_seconds or self._step_seconds
        self.storage.end(now_seconds)

    def take_figures(self, device: str) -> ServiceFigures | None:
        """Return a drive's figures since they were taken last; None of what serves nobody."""
        if device not in self.storage.drives:
            return None
        figures = self.storage.drives[device].take_figures()
        self._full.update([device] * bool(figures.failed_writes))
        return figures

    def check_full(self) -> None:
        """Return if no write has failed, or that ends no run.

        Raises:
            DeviceFailed: one has.
        """
        if self._stops and self._full:
            raise DeviceFailed(
                f"{', '.join(sorted(self._full))}: the flash is full, and writes failed; what it holds is intact: make "
                "host_io.namespace smaller, have the host write less, or set on_full: continue"
            )

    def state(self) -> Columns:
        """Return all that changes, for `restore`, but what figures were not taken of."""
        state = self.storage.state()
        seconds = [self._step_seconds, *(self._read_until.get(device, 0.0) for device in self.storage.drives)]
        return state | {"seconds": np.array(seconds)} if state else {}

    def restore(self, state: Columns) -> None:
        """Go on from where the same drives were.

        Raises:
            DataError: the state is of others.
        """
        if self.storage.drives:
            self.storage.restore(state)
            self._step_seconds, *until = state["seconds"].tolist()
            self._read_until = dict(zip(self.storage.drives, until, strict=True))


def _beside(rate: float, nvme: float, host_rate: float) -> float:
    """Return what messages have of a link of `nvme` bytes a second that the host's data cross at `host_rate`."""
    return min(rate, max(nvme - host_rate, nvme / 2))
