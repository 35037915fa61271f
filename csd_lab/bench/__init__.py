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

_EMULATION = ("repeatability", "startup", "slowdown", "memory", "image", "calibration", "throttles")
# Name -> its module, in which it is the function `bench_NAME` of a `harness.Bench` and of its own options.
BENCHES = {
    **dict.fromkeys(_EMULATION, "emulation"),
    "fidelity": "bench_fidelity",
    "threads": "bench_threads",
    "metrics": "monitoring.bench_metrics",
    **dict.fromkeys(("scrape", "page"), "monitoring.served_pages"),
    "kill": "endurance.killed_runs",
    "soak": "endurance.soak",
    "rounds": "training.noop_rounds",
    "federated": "federated.bench_federated",
    "gradients": "training.bench_gradients",
    **dict.fromkeys(("stannis", "hypertune"), "training.tuned_batches"),
    "stannis_world": "stannis.bench_stannis_world",
    "hypertune_sim": "training.bench_hypertune_sim",
    "hypertune_world": "training.bench_hypertune_world",
    "comm": "communication.comm_wall",
    "bytescheduler_world": "communication.bytescheduler.bytescheduler_world",
    "autobyte_world": "communication.autobyte.autobyte_world",
    "autobyte_wall": "communication.autobyte.autobyte_wall",
    "placement": "placement.placements",
    "placement_world": "placement.bench_placement_world",
    "planner": "planner.bench_planner",
    "planner_vms": "planner.planner_vms",
    "together": "joint_tuning.bench_joint_tuning",
    "tuner_factorial": "joint_tuning.bench_tuner_factorial",
    "tuners_on_drives": "joint_tuning.bench_tuners_on_drives",
    "scaleout": "scaleout.scaleout",
    "simulate": "scaleout.bench_simulate",
    "ring": "scaleout.ring_wall",
    **dict.fromkeys(("deploy", "deploy_wide"), "deployments"),
    **dict.fromkeys(("compose", "ci_gate", "pytest_warm"), "pipelines"),
    "api": "python_api.bench_api",
    "drive": "drive.bench_drive",
    "storage": "storage.bench_storage",
    "host_io": "storage.bench_host_io",
    "hypertune_under_io": "storage.bench_hypertune_io",
    "hostile": "security.hostile_runs",
    "overhead": "training.noop_rounds",
    "fuzz": "security.bench_fuzz",
    "sampled": "sampling.bench_sampled",
}


def list_benches() -> dict[str, str]:
    """Return name -> what it measures, without importing any."""
    folder, found = Path(__file__).parent, dict[str, str]()
    for module in set(BENCHES.values()):
        tree = ast.parse((folder / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        found |= {each.name: (ast.get_docstring(each) or "").partition("\n")[0] for each in functions}
    return {name: found[f"bench_{name}"] for name in BENCHES}


def run_bench(name: str, paths: Paths, progress: Progress, seed: int, **options: Any) -> BenchReport:
    """Run the bench called `name`, with `options` of its own, of which those that are None or False are left out.

    Raises:
        ConfigurationError: there is none, or it has no such option.
        EnvironmentUnfit: it needs libvirt, which is not there.
        CsdError: it could not be measured; nothing it started is left.
    """
    if name not in BENCHES:
        raise ConfigurationError(f"bench {name!r} is not known; choose one of: {', '.join(BENCHES)}")
    function = getattr(importlib.import_module(f"csd_lab.bench.{BENCHES[name]}"), f"bench_{name}")
    given = {key: value for key, value in options.items() if value}
    if unknown := set(given) - set(inspect.signature(function).parameters):
        raise ConfigurationError(f"bench {name} has no option --{min(unknown)}; leave it out")
    from csd_lab.bench.harness import Bench  # which imports all that a run does

    measured: BenchReport = function(Bench(name, paths, progress, seed), **given)
    return measured
