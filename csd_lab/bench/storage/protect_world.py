"""World of the bench of `protect`: one drive in service, its host's load, and a training that streams its records."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.flash.flash_ceilings import flash_ceiling
from csd_emu.perfmodel.flash.flash_drive import HOST_FIRST, FlashDrive
from csd_emu.perfmodel.flash.page_mapping import PageMapping
from csd_emu.perfmodel.host_load import DIURNAL, HostLoad
from csd_emu.perfmodel.storage.load_source import ScheduledLoad
from csd_emu.perfmodel.storage.read_throttle import ReadThrottle
from csd_emu.perfmodel.storage.served_drive import ServedDrive
from csd_emu.profiles.flash_geometry import SECOND, FlashParameters

PROTECT_KINDS = ("steady", "bursts", "diurnal", "sequential", "writes")
# Of a drive of 64 dies there are four, so that a run takes seconds; a page is 16 times larger, so that one command of
# the engine keeps half of the dies busy, as there.
SCALE = 16


@dataclass(frozen=True)
class StreamedTraining:
    """What an engine reads: so many bytes, then it computes for so long, over and over; at most so many a second."""

    read_bytes: int
    compute_ns: int
    most_bytes_per_second: float


@dataclass(frozen=True)
class ServiceOutcome:
    """What came of a run.

    Attributes:
        p99_seconds: (seconds,) 99th percentile of the host's commands that ended in each second, 0 without any.
        trained_bytes: read by the engine.
    """

    p99_seconds: npt.NDArray[np.float64]
    trained_bytes: float


@dataclass(frozen=True)
class ProtectCase:
    """A drive with a load and a training.

    Attributes:
        kind, policy, seed, seconds: of the case.
        flash, mapping: of the drive.
        load: what the host asks.
        training: what the engine asks.
    """

    kind: str
    policy: str
    seed: int
    seconds: int
    flash: FlashParameters
    mapping: PageMapping
    load: HostLoad
    training: StreamedTraining

    def serve(self, throttle: ReadThrottle | None, trains: bool = True) -> ServiceOutcome:
        """Serve host and engine, which a throttle slows down, or the host alone."""
        flash = FlashDrive(self.flash, self.policy, mapping=copy.deepcopy(self.mapping))
        training, until = self.training, self.seconds * SECOND
        drive = ServedDrive(flash, [ScheduledLoad(self.load)], training.most_bytes_per_second, throttle)
        drive.begin_step(0)
        now, trained = 0, 0.0
        while trains and now < until:
            end = drive.read(now, training.read_bytes)
            trained += training.read_bytes * min(1.0, (until - now) / (end - now))
            now = end + training.compute_ns
        drive.advance(until)
        return ServiceOutcome(np.array(drive.take_figures().second_p99_seconds[: self.seconds]), trained)


def draw_protect_case(kind: str, policy: str, seed: int, seconds: int) -> tuple[ProtectCase, float]:
    """Draw a case, and where its limit lies between host alone (0) and training unthrottled (1), in logarithms."""
    draw = np.random.default_rng([seed, PROTECT_KINDS.index(kind), policy == HOST_FIRST])
    flash = FlashParameters(
        channels=1,
        dies_per_channel=4,
        blocks_per_plane=64,
        pages_per_block=64,
        over_provisioning=0.28,
        page_bytes=4096 * SCALE,
        channel_bytes_per_second=1_400_000_000 * SCALE,
        link_bytes_per_second=3_938_000_000 * SCALE,
    )
    pages, writes = 16 if kind == "sequential" else 1, kind == "writes"
    read_share = draw.uniform(0.6, 0.9) if writes else 1.0
    shape: tuple[int, ...] = (1,)
    period = SECOND
    if kind == "bursts":
        shape, period = (1, *[0] * int(draw.integers(1, 5))), int(draw.uniform(2, 12) * SECOND)
    elif kind == "diurnal":
        shape, period = DIURNAL, int(draw.uniform(15, 30) * SECOND)
    highest = draw.uniform(0.15, 0.5) * flash_ceiling(flash, read_share, pages, 1.5 if writes else 1.0).iops
    load = HostLoad(
        pages * flash.page_bytes,
        flash.namespace_pages,
        read_share,
        kind == "sequential",
        iops=highest * sum(shape) / len(shape) / max(shape),
        shape=shape,
        period_ns=period,
        seed=seed,
    )
    most = draw.uniform(0.6, 1.3) * flash_ceiling(flash).bytes_per_second
    read = int(SCALE * np.exp(draw.uniform(np.log(1e6), np.log(32e6))))
    training = StreamedTraining(read, int(read / most * draw.uniform(0.2, 2) * SECOND), most)
    mapping = PageMapping(flash)
    if writes:
        mapping.age(seed)
    return ProtectCase(kind, policy, seed, seconds, flash, mapping, load, training), draw.uniform(0.3, 0.7)
