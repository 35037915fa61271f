"""`csd-emu bench NAME`: what the project promises, measured; figures come with their raw samples."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from firmware_agent.common.errors import ConfigurationError

# Folder -> its benches, each a module `bench_NAME` with a function `run` of a `harness.Bench` and its own options;
# imported when it is asked for.
_FOLDERS = {
    "emulation": ("repeatability", "startup", "slowdown", "memory", "image", "calibration", "throttles"),
    "monitoring": ("metrics", "scrape", "page"),
    "endurance": ("kill", "soak"),
    "training": ("rounds", "gradients", "stannis", "hypertune", "hypertune_sim"),
    "communication": ("comm",),
    "placement": ("placement",),
    "planner": ("planner", "planner_vms"),
    "scaleout": ("scaleout", "simulate"),
    "deploy": ("deploy", "deploy_wide"),
    "pipelines": ("compose", "ci_gate", "pytest_warm"),
    "security": ("hostile", "overhead", "fuzz"),
}
BENCHES = {name: f"{folder}/bench_{name}" for folder, names in _FOLDERS.items() for name in names}


def list_benches() -> dict[str, str]:
    """Return name -> what it measures, without importing any."""
    folder = Path(__file__).parent
    texts = {name: (folder / f"{path}.py").read_text(encoding="utf-8") for name, path in BENCHES.items()}
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
    module = importlib.import_module(f"csd_lab.bench.{BENCHES[name]}".replace("/", "."))
    given = {key: value for key, value in options.items() if value}
    if unknown := set(given) - set(inspect.signature(module.run).parameters):
        raise ConfigurationError(f"bench {name} has no option --{min(unknown)}; leave it out")
    from csd_lab.bench.harness import Bench  # which imports all that a run does

    measured: BenchReport = module.run(Bench(name, paths, progress, seed), **given)
    return measured
