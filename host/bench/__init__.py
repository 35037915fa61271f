"""`csd-emu bench NAME`: what the project promises, measured; figures come with their raw samples."""

from __future__ import annotations

from collections.abc import Callable

from csd_emu.paths import Paths
from csd_emu.progress import Progress
from firmware_agent.errors import ConfigurationError
from host.bench import calibration, image, memory, repeatability, resume, slowdown, startup, throttles
from host.outputs import BenchReport

BENCHES: dict[str, Callable[[Paths, Progress, int], BenchReport]] = {
    "repeatability": repeatability.run,
    "startup": startup.run,
    "slowdown": slowdown.run,
    "memory": memory.run,
    "image": image.run,
    "calibration": calibration.run,
    "throttles": throttles.run,
    "resume": resume.run,
}


def run_bench(name: str, paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Run the bench called `name`.

    Raises:
        ConfigurationError: there is none.
        CsdError: it could not be measured; nothing it started is left.
    """
    if name not in BENCHES:
        raise ConfigurationError(f"bench {name!r} is not known; choose one of: {', '.join(BENCHES)}")
    return BENCHES[name](paths, progress, seed)
