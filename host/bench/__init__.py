"""`csd-emu bench NAME`: what the project promises, measured; figures come with their raw samples."""

from __future__ import annotations

import importlib

from csd_emu.paths import Paths
from csd_emu.progress import Progress
from firmware_agent.errors import ConfigurationError, EnvironmentUnfit
from host.outputs import BenchReport

# Each is a module here with a function `run`; imported when it is asked for, since most need libvirt.
BENCHES = (
    *("repeatability", "startup", "slowdown", "memory", "image", "calibration", "throttles", "metrics", "resume"),
    *("rounds", "gradients", "simulate", "stannis", "hypertune", "hypertune_sim", "compose", "scrape", "page"),
    "deploy_wide",
)


def run_bench(name: str, paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Run the bench called `name`.

    Raises:
        ConfigurationError: there is none.
        EnvironmentUnfit: it needs libvirt, which is not there.
        CsdError: it could not be measured; nothing it started is left.
    """
    if name not in BENCHES:
        raise ConfigurationError(f"bench {name!r} is not known; choose one of: {', '.join(BENCHES)}")
    try:
        module = importlib.import_module(f"host.bench.{name}")
    except ModuleNotFoundError as error:
        if error.name not in ("libvirt", "libvirt_qemu"):
            raise
        raise EnvironmentUnfit(f"bench {name} needs libvirt-python; run scripts/setup-python qemu") from error
    measured: BenchReport = module.run(paths, progress, seed)
    return measured
