"""Time of three tests of another project, once there is a template."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

from csd_emu.engines import make_engine
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, array_of, temporary_folder
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


def run(bench: Bench) -> BenchReport:
    """Run three tests of two drives each with pytest, three times; the template is there.

    Figure: `wall_seconds` of the whole command, from the start of Python to its end, the slowest of the three.
    """
    if importlib.util.find_spec("pytest") is None:
        raise EnvironmentUnfit("bench pytest_warm needs pytest; install it")
    with contextlib.closing(make_engine(array_of("pytest-warm", 1), bench.paths)) as engine:
        engine.prepare(bench.progress)
    walls = []
    with temporary_folder() as folder:
        (folder / "test_drives.py").write_text(_TESTS.format(seed=bench.seed), encoding="utf-8")
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        for number in range(TIMES):
            bench.progress.stage(f"run three tests, time {number + 1} of {TIMES}")
            walls.append(_time_tests(folder))
    return bench.report("wall", {"wall_seconds": max(walls)}, {"wall_seconds": walls})


def _time_tests(folder: Path) -> float:
    """Return the wall seconds of the tests in `folder`.

    Raises:
        CsdError: they did not pass.
    """
    # No other plugins: what they cost is not ours to measure.
    options = ["-q", "-p", "host.app.pytest_plugin.plugin", "--csd-require"]
    command = [sys.executable, "-m", "pytest", *options, str(folder)]
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
