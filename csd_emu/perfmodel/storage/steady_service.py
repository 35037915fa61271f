"""What a drive's host costs its training for as long as loads last: tried on the drive's own flash, before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from csd_emu.perfmodel.flash.flash_parameters import SECOND
from csd_emu.perfmodel.sharing import Floats, Link
from csd_emu.perfmodel.storage.drive_service import DriveService
from csd_emu.perfmodel.timeline import Activity

WARM_UP_SECONDS = 0.05
"""In which queues, and loads with a queue depth, settle before anything is tried."""
_GAP_SECONDS, _GOLDEN = 1e-3, 0.6180339887
# Work is tried so often that the largest reads about so many bytes, within these numbers of times.
_TRIED_BYTES, _TIMES = 1 << 25, (4, 32)


@dataclass(frozen=True)
class ServedWork:
    """Work of a drive beside its host.

    Attributes:
        wait_seconds: (pieces,) that the reads of each take beyond those of a drive that serves nobody, on average, and
            no less than those of a smaller one.
        link_bytes_per_second: that messages have of the drive's own side of the link.
        host_link: what they have of the host's side.
    """

    wait_seconds: Floats
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

    def try_work(self, parts: Sequence[Activity], link: Link) -> ServedWork:
        """Return what becomes of pieces of work, each tried at irregular moments of the loads.

        Args:
            parts: of one drive, which nobody else uses; each reads more than the one before.
            link: the host's side, without other data.
        """
        drive, loaded, beside = self.service.storage.drives[parts[0].device], parts[0], link
        times = int(np.clip(_TRIED_BYTES // parts[-1].read_bytes, *_TIMES))
        waits = np.zeros((times, len(parts)))
        for place, part in product(range(times), range(len(parts))):
            begin = drive.now_ns / SECOND + _GAP_SECONDS * (1 + (place + part) * _GOLDEN % 1)
            (loaded,), beside = self.service.load([parts[part]], link, begin, {}, True)
            waits[place, part] = loaded.read_seconds - parts[part].read_seconds
        return ServedWork(rising(waits.mean(axis=0)), loaded.link_bytes_per_second, beside)


def rising(values: Floats) -> Floats:
    """Return the values, (n,), that never fall and are nearest to these in the sum of squares (isotonic regression).

    Each is the largest, over where a stretch around it may begin, of the least mean of such a stretch: for small n.
    """
    count = len(values)
    return np.array(
        [
            max(min(values[begin:end].mean() for end in range(place + 1, count + 1)) for begin in range(place + 1))
            for place in range(count)
        ]
    )
