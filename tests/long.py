"""Which long tests a change must pass: a third of them, and those of what changed.

`make test-third` (in `.ci/run`) runs them, `make test-all` all. Files are the unit, for their tests share what is slow
to set up.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]
THIRDS = 3
VIRTUAL_MACHINES = "tests/vm/"
# Of a file that is not in SECONDS.
USUAL_SECONDS = 60.0
# Wall seconds of each file's long tests on two free cores, estimated from processor time on a busy machine: how thirds
# are made equal, and what begins first. A change that adds a file adds it here: `make test-third` says at its end what
# each file took, and which have no figure.
SECONDS: dict[str, float] = {
    "tests/contract/test_drive_install.py": 70,
    "tests/contract/test_engine_contract.py": 55,
    "tests/integration/test_bench_drive.py": 25,
    "tests/integration/test_bench_hostile.py": 15,
    "tests/integration/test_command_keys.py": 20,
    "tests/integration/test_communication_run.py": 140,
    "tests/integration/test_interrupt.py": 60,
    "tests/integration/test_live_page.py": 55,
    "tests/integration/test_lowest_versions.py": 35,
    "tests/integration/test_observed_run.py": 55,
    "tests/integration/test_placement_run.py": 240,
    "tests/integration/test_planned_run.py": 140,
    "tests/integration/test_plugins.py": 45,
    "tests/integration/test_prometheus_rules.py": 35,
    "tests/integration/test_pytest_plugin.py": 200,
    "tests/integration/test_report.py": 5,
    "tests/integration/test_resume.py": 130,
    "tests/integration/test_sampled_run.py": 55,
    "tests/integration/test_servers.py": 275,
    "tests/integration/test_shaped_link.py": 20,
    "tests/integration/test_strangers.py": 10,
    "tests/integration/test_sync_run.py": 90,
    "tests/unit/csd_lab/bench/joint_tuning/test_joint_tuning.py": 40,
    "tests/vm/test_deploy_faults.py": 570,
    "tests/vm/test_image.py": 85,
    "tests/vm/test_vm_board_fidelity.py": 240,
    "tests/vm/test_vm_clocks.py": 90,
    "tests/vm/test_vm_examples.py": 355,
    "tests/vm/test_vm_faults.py": 55,
    "tests/vm/test_vm_packages.py": 300,
    "tests/vm/test_vm_in_place.py": 20,
}
# What begins so is tested by files of these names. The longest beginning counts; a test's own file always does.
OF_PACKAGES: dict[str, tuple[str, ...]] = {
    "csd_emu/": ("test_native_run", "test_sync_run", "test_vm_run"),
    "csd_emu/cycles/": ("test_vm_calibrate",),
    "csd_emu/profiles/calibration/": ("test_vm_calibrate",),
    "csd_emu/perfmodel/": ("test_native_run", "test_sync_run", "test_communication_run"),
    "csd_emu/perfmodel/overlap/": ("test_communication_run", "test_comm_bench", "test_comm_*"),
    "csd_emu/engines/": ("test_engine_contract", "test_native_run", "test_vm_run", "test_vm_faults", "test_inject"),
    "csd_emu/image/": ("test_image", "test_vm_packages", "test_vm_run", "test_wheel"),
    "csd_emu/perfmodel/split/": ("test_placement_run", "test_vm_placement"),
    "csd_emu/engines/qemu/": ("test_engine_contract", "test_vm_*"),
    "csd_emu/engines/remote/": ("test_drive_install", "test_remote_*", "test_vm_hypervisors"),
    "csd_emu/engines/shaping/": ("test_shaped_link", "test_vm_throttles"),
    "docs/": ("test_documentation",),
    "examples/": ("test_documentation", "test_plugins", "test_pipelines", "test_drive_examples", "test_vm_examples"),
    "examples/ci/": ("test_pipelines",),
    "firmware_agent/": ("test_native_run", "test_sync_run", "test_resume", "test_vm_run", "test_vm_sync*"),
    "firmware_agent/faults/": ("test_inject", "test_vm_faults", "test_vm_throttles"),
    "firmware_agent/training/": ("test_native_run", "test_sync_run", "test_communication_run", "test_vm_sync*"),
    "host/": ("test_native_run", "test_sync_run", "test_resume", "test_interrupt", "test_inject", "test_up_down"),
    "csd_lab/bench/": ("test_bench_*", "test_comm_bench"),
    "csd_lab/bench/joint_tuning/": ("test_joint_tuning", "test_simulated_training"),
    "host/policies/transfer/": ("test_communication_run", "test_comm_bench", "test_comm_*"),
    "host/deploy/": ("test_drive_install", "test_deploy*", "test_remote_*"),
    "host/app/gate/": ("test_ci_run", "test_pipelines"),
    "host/monitoring/metrics/": ("test_observed_run", "test_prometheus_*", "test_vm_metrics"),
    "host/monitoring/charts/": ("test_live_page", "test_report*"),
    "host/monitoring/page/": ("test_live_page",),
    "host/training/split/": ("test_placement_run", "test_cutting", "test_vm_placement"),
    "host/policies/selection/": ("test_planned_run", "test_vm_planner"),
    "host/policies/metrics/": ("test_own_task", "test_native_run"),
    "host/policies/schedules/": ("test_own_optimizer", "test_native_run"),
    "firmware_agent/common/clients/": ("test_own_client", "test_vm_examples", "test_vm_packages"),
    "firmware_agent/common/optimisers/": ("test_own_optimizer",),
    "host/training/rounds/": ("test_own_client", "test_native_run"),
    "host/core/readers/": ("test_own_data",),
    "csd_lab/bench/drive/": ("test_drive_examples",),
    "firmware_agent/common/losses/": ("test_own_task", "test_native_run", "test_vm_sync*"),
    "firmware_agent/common/datafiles/": ("test_own_task", "test_remote_*"),
    "host/policies/split/": ("test_placement_run", "test_cutting", "test_vm_placement"),
    "host/config/plugins/": ("test_plugins",),
    "host/fleet/": ("test_strangers", "test_native_run"),
    "host/monitoring/metrics/web_server.py": ("test_strangers", "test_observed_run", "test_prometheus_*"),
    "host/training/screening.py": ("test_bench_hostile",),
    "host/app/python_api/": ("test_python_interface", "test_pytest_plugin"),
    "host/monitoring/runs/": ("test_python_interface",),
    "host/monitoring/trackers/": ("test_trackers",),
    "csd_lab/sweep/": ("test_python_interface", "test_command_keys"),
    "host/app/pytest_plugin/": ("test_pytest_plugin", "test_vm_pytest_plugin"),
    "csd_lab/clocks/": ("test_vm_clocks",),
    "csd_lab/cli/": ("test_simulate", "test_completion"),
    "csd_lab/fidelity/": ("test_remote_*",),
    "csd_lab/tune/": ("test_documentation",),
    "csd_lab/power/": ("test_documentation",),
    "csd_lab/generate/": ("test_documentation", "test_prometheus_*"),
    "host/monitoring/report/": ("test_report*",),
    "csd_lab/reproduce/": ("test_documentation",),
    "host/training/selection/": ("test_planned_run", "test_vm_planner"),
    "host/training/multi_server/": ("test_servers*", "test_prometheus_servers"),
    "csd_lab/simulate/": ("test_simulate",),
    "csd_lab/testkit/": ("test_deploy_*",),
    "host/app/stack/": ("test_stay",),
    "host/policies/aggregation/": ("test_plugins", "test_native_run"),
    "host/training/sampling/": ("test_sampled_run", "test_vm_clocks"),
    "host/training/sync/": ("test_sync_run", "test_communication_run", "test_vm_sync*", "test_servers*"),
    "host/policies/batching/": ("test_sync_run", "test_comm_*"),
    "images/arm/": ("test_image", "test_vm_run"),
    "images/drive/": ("test_drive_install", "test_deploy*"),
    "images/grafana/": ("test_observed_run", "test_prometheus_*"),
    "images/prometheus/": ("test_observed_run", "test_prometheus_*"),
    "images/targets/": ("test_deploy_*",),
    "pyproject.toml": ("test_wheel",),
}


@dataclass(frozen=True)
class Choice:
    """The long tests of one change.

    Attributes:
        turn: which third, from 0.
        files: of tests, those first that should not be left out when time runs short.
        changed: of them, those of what changed.
        unknown: of them, those without recorded seconds.
    """

    turn: int
    files: tuple[str, ...]
    changed: frozenset[str]
    unknown: frozenset[str]

    def describe(self) -> str:
        """Return it in one line."""
        others = f", beside them {len(self.changed)} of what changed" if self.changed else ""
        unknown = f"; without a figure in tests/long.py: {', '.join(sorted(self.unknown))}" if self.unknown else ""
        return f"long tests: third {self.turn + 1} of {THIRDS}{others}: {len(self.files)} files{unknown}"


def choose(files: Iterable[str], seconds: Mapping[str, float], turn: int, changed: Collection[str]) -> Choice:
    """Choose of all `files` with long tests, for the third `turn` and the paths that changed."""
    everything = sorted(set(files))
    third = set(split(everything, seconds)[turn])
    touched = {path for path in everything if any(concerns(each, path) for each in changed)}

    def order(path: str) -> tuple[int, float, str]:
        rank = 0 if path in third & touched else 1 if path in touched else 2
        return rank, -seconds.get(path, USUAL_SECONDS), path

    chosen = sorted(third | touched, key=order)
    return Choice(turn, tuple(chosen), frozenset(touched), frozenset(set(chosen) - set(seconds)))


def split(files: Sequence[str], seconds: Mapping[str, float]) -> list[list[str]]:
    """Split into thirds of about the same seconds; those on virtual machines, which run one by one, for themselves."""
    thirds: list[list[str]] = [[] for _ in range(THIRDS)]
    for kind in (True, False):
        loads = [0.0] * THIRDS
        own = [path for path in files if path.startswith(VIRTUAL_MACHINES) is kind]
        for path in sorted(own, key=lambda path: (-seconds.get(path, USUAL_SECONDS), path)):
            place = loads.index(min(loads))
            thirds[place].append(path)
            loads[place] += seconds.get(path, USUAL_SECONDS)
    return thirds


def concerns(changed: str, test: str) -> bool:
    """Return whether a test file is to be run because a path changed."""
    if changed == test:
        return True
    beginning = max((each for each in OF_PACKAGES if changed.startswith(each)), key=len, default=None)
    return beginning is not None and any(fnmatchcase(Path(test).stem, name) for name in OF_PACKAGES[beginning])


def git(*arguments: str) -> str:
    """Return what git says in this repository; nothing where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def turn_of_commit() -> int:
    """Return the third of the commit that is checked out: its number, so that three in a row run all."""
    if git("rev-parse", "--is-shallow-repository") == "true":  # it would always be number 1
        return int(git("rev-parse", "HEAD"), 16) % THIRDS
    return int(git("rev-list", "--count", "HEAD") or "0") % THIRDS


def changed_paths(since: str | None) -> list[str]:
    """Return the paths that changed since a commit; by default since the branch left origin's, or the commit before."""
    head = git("rev-parse", "HEAD")
    base = since or git("merge-base", "HEAD", "origin/HEAD") or git("merge-base", "HEAD", "origin/main")
    if not base or base == head:
        base = git("rev-parse", "HEAD~1")
    return git("diff", "--name-only", base).splitlines() if base else []
