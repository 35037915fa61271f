"""`csd-emu bench NAME`: what the project promises, measured; figures come with their raw samples."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

from csd_emu.paths import Paths
from csd_emu.progress import Progress
from csd_emu.remedies import INSTALL_LIBVIRT_PYTHON
from firmware_agent.errors import ConfigurationError, EnvironmentUnfit
from host.outputs import BenchReport

# Each is a module here with a function `run`; imported when it is asked for, since most need libvirt.
BENCHES = (
    *("repeatability", "startup", "slowdown", "memory", "image", "calibration", "throttles", "metrics", "resume"),
    *("rounds", "gradients", "simulate", "stannis", "hypertune", "hypertune_sim", "compose", "scrape", "page"),
    *("ci_gate", "pytest_warm", "comm", "placement", "planner", "planner_vms", "scaleout"),
    *("deploy", "deploy_wide", "hostile", "overhead", "fuzz"),
)


def list_benches() -> dict[str, str]:
    """Return name -> what it measures, without importing any."""
    folder = Path(__file__).parent
    texts = {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in BENCHES}
    return {name: (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0] for name, text in texts.items()}


def run_bench(name: str, paths: Paths, progress: Progress, seed: int, **options: Any) -> BenchReport:
    """Run the bench called `name`, with `options` of its own, of which those that are None or False are left out.

    Raises:
        ConfigurationError: there is none, or it has no such option.
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
        raise EnvironmentUnfit(f"bench {name} needs libvirt-python; {INSTALL_LIBVIRT_PYTHON}") from error
    given = {key: value for key, value in options.items() if value}
    if unknown := set(given) - set(inspect.signature(module.run).parameters):
        raise ConfigurationError(f"bench {name} has no option --{min(unknown)}; leave it out")
    measured: BenchReport = module.run(paths, progress, seed, **given)
    return measured
