"""Share of a drive's CPU seconds that watching a synchronous step takes."""

from __future__ import annotations

from csd_emu.engines.qemu.qemu_engine import QemuEngine
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.harness import WATCHDOG_SECONDS, prepare_sessions, with_array
from firmware_agent.common.frames.measure_frames import Measure, Measured
from host.fleet.lifecycle import StartedArray

_STEPS = 4


def measure_monitor_share(paths: Paths, progress: Progress, seed: int, batch_size: int) -> float:
    """Return the counted seconds of watching a step over those of the step itself, measured in one VM."""

    async def work(started: StartedArray, _: QemuEngine) -> float:
        session = (await prepare_sessions(started, seed))[0]
        progress.stage("what watching a step costs")
        await session.send(Measure(batch_size, 3600.0, steps=_STEPS))
        measured = await session.expect(Measured, Deadline(WATCHDOG_SECONDS))
        return measured.monitor_seconds / (measured.seconds.total / measured.steps)

    return with_array("monitor", 1, paths, progress, seed, work)
