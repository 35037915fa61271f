"""Time of three tests of another project, once there is a template."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from csd_emu.engines.qemu.qemu_engine import QemuEngine
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import bench_config, report
from firmware_agent.common.errors import CsdError, EnvironmentUnfit

TIMES = 3
_TESTS = """
JOB = {{"model": "digits_cnn", "data": {{"source": "digits"}}, "rounds": 1, "batch_size": 64, "seed": {seed}}}


def test_a_round_trains_on_all_records(csd_array):
    assert csd_array.run(JOB).summary.samples == 1437


def test_two_rounds_cost_twice_as_much_device_time(csd_array):
    result = csd_array.run(JOB, rounds=2)
    first, second = (part["records_per_device_second"] for part in result.rounds)
    assert abs(first / second - 1) < 0.02


def test_a_run_repeats_to_the_bit(csd_array):
    weights = [(csd_array.run(JOB).directory / "model.safetensors").read_bytes() for _ in range(2)]
    assert weights[0] == weights[1]
"""


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Run three tests of two drives each with pytest, three times; the template is there.

    Figure: `wall_seconds` of the whole command, from the start of Python to its end, the slowest of the three.
    """
    if importlib.util.find_spec("pytest") is None:
        raise EnvironmentUnfit("bench pytest_warm needs pytest; install it")
    with contextlib.closing(QemuEngine(bench_config("pytest-warm", 1), paths)) as engine:
        engine.prepare(progress)
    walls = []
    with tempfile.TemporaryDirectory(prefix="csd-bench-") as name:
        folder = Path(name)
        (folder / "test_drives.py").write_text(_TESTS.format(seed=seed), encoding="utf-8")
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        for number in range(TIMES):
            progress.stage(f"run three tests, time {number + 1} of {TIMES}")
            walls.append(_time_tests(folder))
    return report("pytest_warm", "wall", seed, {"wall_seconds": max(walls)}, {"wall_seconds": walls})


def _time_tests(folder: Path) -> float:
    """Return the wall seconds of the tests in `folder`.

    Raises:
        CsdError: they did not pass.
    """
    # No other plugins: what they cost is not ours to measure.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "host.app.pytest_plugin.plugin",
        "--csd-require",
        str(folder),
    ]
    ours = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ours}
    begin = time.monotonic()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    seconds = time.monotonic() - begin
    if done.returncode != 0 or "3 passed" not in done.stdout:
        raise CsdError(f"bench pytest_warm: the tests did not pass:\n{done.stdout}{done.stderr}")
    return seconds
