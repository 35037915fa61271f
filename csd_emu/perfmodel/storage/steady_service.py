"""What a drive's host costs its training for as long as loads last: tried on the drive's own flash, before a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from csd_emu.perfmodel.flash.flash_parameters import SECOND
from csd_emu.perfmodel.sharing import Link
from csd_emu.perfmodel.storage.drive_service import DriveService
from csd_emu.perfmodel.timeline import Activity

WARM_UP_SECONDS = 1.0
"""In which queues, loads with a queue depth and whatever protects the host settle before anything is tried."""
_GAP_SECONDS, _GOLDEN = 1e-3, 0.6180339887
# A piece of work is tried so often that it reads about so many bytes, within these numbers of times.
_TRIED_BYTES, _TIMES = 1 << 25, (4, 48)


@dataclass(frozen=True)
class ServedWork:
    """Work of a drive beside its host.

    Attributes:
        wait_seconds: that its reads take beyond those of a drive that serves nobody, on average.
        link_bytes_per_second: that messages have of the drive's own side of the link.
        host_link: what they have of the host's side.
    """

    wait_seconds: float
    link_bytes_per_second: float
    host_link: Link


class SteadyService:
    """Drives whose loads last.

    Attributes:
        service: the drives; nothing else may use them.
        traffic: drive -> bytes a second that its host moves through its DRAM.
    """

    def __init__(self, service: DriveService) -> None:
        """Take drives at time 0, none of whose loads begins late or ends, and let them settle."""
        self.service = service
        service.begin_step(0)
        service.storage.end(WARM_UP_SECONDS)
        self.traffic = service.begin_step(0)

    def try_work(self, part: Activity, link: Link) -> ServedWork:
        """Return what becomes of a piece of work, tried at irregular moments of the loads.

        Args:
            part: of a drive that nobody else uses.
            link: the host's side, without other data.
        """
        drive, waits, loaded, beside = self.service.storage.drives[part.device], [], part, link
        for place in range(int(np.clip(_TRIED_BYTES // max(1, part.read_bytes), *_TIMES))):
            begin = drive.now_ns / SECOND + _GAP_SECONDS * (1 + place * _GOLDEN % 1)
            (loaded,), beside = self.service.load([part], link, begin, {}, True)
            waits.append(loaded.read_seconds - part.read_seconds)
        return ServedWork(float(np.mean(waits)), loaded.link_bytes_per_second, beside)
