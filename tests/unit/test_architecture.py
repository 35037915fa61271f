"""The rules that keep the structure: imports point one way, the algorithms stay pure, nothing is ever unpickled."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The modules of the agent that everyone shares.
LEAVES = {
    "archive", "crossing", "cutting", "datafiles", "errors", "exchange", "files", "first_use", "folded_traceback",
    "handover", "heap", "identity", "imports", "layer_costs", "layer_names", "layer_seconds", "models", "pacing",
    "send_queue", "shard", "units", "weights", "wire"
}  # fmt: skip
# What each package may import of ours.
ALLOWED = {
    "firmware_agent": {"firmware_agent"},
    "csd_emu": {"csd_emu", "firmware_agent"},
    "host": {"host", "csd_emu", "firmware_agent"},
}
PURE = [
    "host/aggregate.py",
    "host/bench/hostile_behaviour.py",
    "host/bench/hostile_judge.py",
    "host/bench/planner_cases.py",
    "host/bench/planner_draws.py",
    "host/bench/planner_play.py",
    "host/bench/planner_vms_judge.py",
    "host/bench/planner_world.py",
    "host/communication/autobyte.py",
    "host/communication/base.py",
    "host/communication/choose.py",
    "host/communication/conditions.py",
    "host/communication/features.py",
    "host/communication/made_up.py",
    "host/communication/network.py",
    "host/communication/predictor.py",
    "host/communication/scenario.py",
    "host/communication/search.py",
    "host/communication/settings.py",
    "host/communication/weather.py",
    "host/gate/figures.py",
    "host/gate/junit.py",
    "host/gate/measure.py",
    "host/gate/report.py",
    "host/planner/batches.py",
    "host/planner/belief.py",
    "host/planner/bounds.py",
    "host/planner/classes.py",
    "host/planner/cluster.py",
    "host/planner/cost.py",
    "host/planner/curves.py",
    "host/planner/information.py",
    "host/planner/model.py",
    "host/planner/observations.py",
    "host/planner/pareto.py",
    "host/planner/planner.py",
    "host/planner/preference.py",
    "host/planner/ranking.py",
    "host/planner/reasons.py",
    "host/planner/rules.py",
    "host/planner/search.py",
    "host/planner/spikes.py",
    "host/planner/splits.py",
    "host/planner/work.py",
    "host/event_budget.py",
    "host/scanning.py",
    "host/screening.py",
    "host/sync/direction.py",
    "host/sync/epochs.py",
    "host/tuning/classes.py",
    "host/tuning/speed.py",
    "host/tuning/stannis.py",
    "host/partition.py",
    "host/report/comparison.py",
    "host/report/competing.py",
    "host/report/figures.py",
    "host/report/formats.py",
    "host/report/work.py",
    "host/reproduce/disturbance.py",
    "host/reproduce/figures.py",
    "host/reproduce/scaling.py",
    "host/simulation/baseline.py",
    "host/simulation/figures.py",
    "host/simulation/nodes.py",
    "host/simulation/outages.py",
    "host/simulation/run.py",
    "host/simulation/steps.py",
    "host/simulation/tree.py",
    "host/simulation/tree_figures.py",
    "host/simulation/tree_run.py",
    "host/simulation/tree_steps.py",
    "host/participation.py",
    "host/plugins/kinds.py",
    "host/plugins/options.py",
    "host/strategies/user.py",
    "host/tuning/fixed.py",
    "host/tuning/user.py",
    "host/sync/optimiser.py",
    "host/sync/reduce_exchange.py",
    "host/sync/reduction.py",
    "host/tuning/allocation.py",
    "host/tuning/baselines.py",
    "host/tuning/detector.py",
    "host/tuning/forecast.py",
    "host/tuning/hypertune.py",
    "host/tuning/retuner.py",
    "host/tuning/simulation.py",
    "host/tuning/traces.py",
    "host/strategies/base.py",
    "host/strategies/clipping.py",
    "host/strategies/coordinatewise.py",
    "host/strategies/direction.py",
    "host/strategies/fedadam.py",
    "host/strategies/fedavg.py",
    "host/servers/beats.py",
    "host/servers/code.py",
    "host/servers/frames.py",
    "host/servers/turns.py",
    "host/servers/worker_arguments.py",
    "host/strategies/fednova.py",
    "host/strategies/fedprox.py",
    "host/strategies/krum.py",
    "csd_emu/calibration/layers.py",
    "csd_emu/placement/amounts.py",
    "csd_emu/placement/barrier.py",
    "csd_emu/placement/costs.py",
    "csd_emu/placement/decide.py",
    "csd_emu/placement/decision.py",
    "csd_emu/placement/overlapped.py",
    "csd_emu/placement/table.py",
    "csd_emu/profiles/files.py",
    "csd_emu/profiles/profile.py",
    "csd_emu/allreduce.py",
    "csd_emu/baseline.py",
    "csd_emu/racks.py",
    "csd_emu/servers.py",
    "csd_emu/communication/analytic.py",
    "csd_emu/communication/blocks.py",
    "csd_emu/communication/carried.py",
    "csd_emu/communication/compose.py",
    "csd_emu/communication/costs.py",
    "csd_emu/communication/drive.py",
    "csd_emu/communication/layers.py",
    "csd_emu/communication/link.py",
    "csd_emu/communication/pipes.py",
    "csd_emu/communication/round_robin.py",
    "csd_emu/communication/simulate.py",
    "csd_emu/communication/simulation.py",
    "csd_emu/communication/slices.py",
    "csd_emu/communication/trace.py",
    "csd_emu/communication/turn.py",
    "csd_emu/fast_power.py",
    "csd_emu/fidelity.py",
    "csd_emu/fast_timeline.py",
    "csd_emu/host_node.py",
    "csd_emu/meter.py",
    "csd_emu/power.py",
    "csd_emu/rapl.py",
    "csd_emu/shaping/bucket.py",
    "csd_emu/shaping/pipe.py",
    "csd_emu/shaping/shape.py",
    "csd_emu/sharing.py",
    "csd_emu/timeline.py",
    "csd_emu/calibration/check.py",
    "csd_emu/calibration/fit.py",
    "csd_emu/calibration/key.py",
    "csd_emu/calibration/store.py",
    "csd_emu/calibration/table.py",
    "csd_emu/deadline.py",
    "csd_emu/hypervisors.py",
    "csd_emu/qemu/domain.py",
    "csd_emu/qemu/placing.py",
    "csd_emu/qemu/there.py",
    "csd_emu/qemu/transfer.py",
    "host/deploy/facts.py",
    "host/deploy/fitness.py",
    "host/page/curve.py",
    "host/page/drives.py",
    "host/page/history.py",
    "host/page/state.py",
    "host/page/timeline.py",
    "host/page/view.py",
    "host/metrics/counting.py",
    "host/metrics/exposition.py",
    "host/metrics/scrapers.py",
    "host/metrics/state.py",
    "host/metrics/store.py",
    "firmware_agent/datafiles/labelled.py",
    "firmware_agent/exchange.py",
    "firmware_agent/holding.py",
    "firmware_agent/send_queue.py",
    "firmware_agent/clock.py",
    "firmware_agent/units.py",
    "firmware_agent/wire.py",
]
IMPURE = {"grpc", "libvirt", "libvirt_qemu", "subprocess", "socket"}
UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
# torch.load and numpy.load unpickle unless they are told not to.
LOADERS = {("torch", "load"), ("torch", "save"), ("np", "load"), ("numpy", "load")}


def sources(*packages: str) -> list[Path]:
    found = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    assert found
    return found


@functools.cache
def imported(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, also inside functions and under TYPE_CHECKING."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield ".".join((*package[: len(package) + 1 - node.level], node.module or ""))


def identify(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", sources(*ALLOWED), ids=identify)
def test_imports_point_from_host_to_emulator_to_agent(path: Path) -> None:
    allowed = ALLOWED[path.relative_to(ROOT).parts[0]]
    ours = {name.split(".")[0] for name in imported(path)} & set(ALLOWED)
    assert ours <= allowed, f"{path} imports {sorted(ours - allowed)}"
    assert not any(name.split(".")[0] == "tests" for name in imported(path))


@pytest.mark.parametrize("path", sources("csd_emu", "host"), ids=identify)
def test_of_the_agent_only_its_leaf_modules_are_shared(path: Path) -> None:
    parts = [name.split(".") for name in imported(path)]
    if identify(path) == "host/bench/hostile_drive.py":
        return  # a drive's own process, which a bench starts: a whole agent with a hostile layer
    foreign = {part[1] for part in parts if part[0] == "firmware_agent" and len(part) > 1} - LEAVES
    assert not foreign, f"{path} imports {sorted(foreign)} of firmware_agent"


@pytest.mark.parametrize("name", PURE)
def test_the_pure_core_knows_no_transport_and_no_hypervisor(name: str) -> None:
    """Also not through a module of ours that it imports."""
    seen: set[Path] = set()
    todo = [ROOT / name]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for module in imported(path):
            assert module.split(".")[0] not in IMPURE, f"{name} reaches {module} through {path.relative_to(ROOT)}"
            todo += [file for file in module_files(module) if file.exists()]


def module_files(module: str) -> list[Path]:
    """The files that may hold an imported name of ours; package __init__ files are left out: they only collect."""
    parts = module.split(".")
    return [(ROOT / Path(*parts[:n])).with_suffix(".py") for n in range(2, len(parts) + 1) if parts[0] in ALLOWED]


@pytest.mark.parametrize(
    "path", sources(*ALLOWED, "images", "examples") if (ROOT / "images").exists() else [], ids=identify
)
def test_nothing_is_ever_unpickled(path: Path) -> None:
    assert not {name.split(".")[0] for name in imported(path)} & UNPICKLERS
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in LOADERS, f"{path}:{node.lineno}"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False, f"{path}:{node.value.lineno}"


@pytest.mark.parametrize("path", sources("csd_emu"), ids=identify)
def test_the_emulator_prints_nothing(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    assert not [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


def test_what_looks_after_arrays_starts_without_torch() -> None:
    """Its import takes more than a second, of each `csd-emu status`."""
    program = "import sys, host.arrays, host.injection; print([name for name in sys.modules if name == 'torch'])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_rules_see_what_they_forbid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / "firmware_agent" / "deep" / "x.py"
    file.parent.mkdir(parents=True)
    file.write_text("def f():\n    from host.fleet import Fleet\n    import csd_emu.paths\n    from ..a import b\n")
    assert imported(file) == ("host.fleet.Fleet", "csd_emu.paths", "firmware_agent.a")
