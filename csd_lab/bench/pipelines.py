"""Benches of csd-emu in CI and in containers."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import firmware_agent
from csd_emu.engines import make_engine
from csd_emu.engines.engine_protocol import last_words
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, array_of, cpu_hogs, request_run, temporary_folder
from csd_lab.testkit.containers import FILE, Stack, image_bytes, wait_for
from csd_lab.testkit.prometheus import end_process, fetch
from firmware_agent.common.errors import CsdError, EnvironmentUnfit
from host.app.gate.run_gate import Gate, run_gate
from host.app.prepare import RunRequest
from host.cli.top_report import Readings
from host.core.interrupts import INTERRUPTS
from host.monitoring.metrics import metric_names as names

DRIVES = 4
_ROUND_SECONDS = 1800.0


def bench_compose(bench: Bench) -> BenchReport:
    """Cost of `docker-compose up`.

    Build our images from nothing, then bring up a stack of 4 drives and wait for its first round. Wall seconds.

    Figures: `build_minutes` without any layer of before; `first_round_seconds` from `up` with built images and empty
    volumes to the end of the first round of the quickstart; `image_megabytes` of our images, each with all its layers.

    Raises:
        EnvironmentUnfit: it is not run in a checkout, or there is no Docker engine.
    """
    if not Path(FILE).is_file():
        raise EnvironmentUnfit(f"{FILE} is not here; run this bench in the top folder of a checkout")
    with Stack(Path.cwd(), f"csd-bench-{secrets.token_hex(3)}", {"CSD_COUNT": str(DRIVES)}) as stack:
        bench.progress.stage("build the images from nothing")
        begin = time.monotonic()
        stack.build_from_nothing()
        build_seconds = time.monotonic() - begin
        bench.progress.stage(f"up, {DRIVES} drives, to the end of the first round")
        begin = time.monotonic()
        stack.up("host")
        up_seconds = time.monotonic() - begin
        wait_for("the first round", lambda: rounds_done(stack) >= 1, _ROUND_SECONDS)
        first_round_seconds = time.monotonic() - begin
        bench.progress.stage("")
    sizes = image_bytes()
    figures = {
        "build_minutes": build_seconds / 60,
        "first_round_seconds": first_round_seconds,
        "image_megabytes": sum(sizes.values()) / 1e6,
    }
    samples = {"up_seconds": up_seconds, "image_bytes": sizes}
    # Not `qemu`: the report would name this machine's QEMU, and the drives run that of their container.
    return bench.report("wall", figures, samples, engine="containers")


def rounds_done(stack: Stack) -> int:
    """Return how many rounds the host's metrics count; 0 while it does not answer."""
    text = fetch(f"{stack.page}/metrics")
    return int(Readings(text.decode()).sum(names.ROUND)) if text is not None else 0


RUNS = 20
SLOWDOWN = 0.02
HONEST, SLOWED = "honest", "slowed"
_RUNNER = "csd_lab.bench.pipelines"
_STOP_SECONDS = 120.0
# Goes to the end of the copied agent's clock.py: each phase of a step takes so much longer, by real instructions.
_PLANT = f"""

_lap = Stopwatch.lap


def _slow_lap(self, phase):
    now = self.now()
    end = now + {SLOWDOWN} * (now - self._mark)
    while self.now() < end:
        pass
    _lap(self, phase)


Stopwatch.lap = _slow_lap
"""


def bench_ci_gate(bench: Bench) -> BenchReport:
    """Sensitivity of the gate: an agent that became 2 % slower is seen, and nothing else.

    Make a baseline, then run the gate 20 times with the agent as it is and 20 times with a slowed one, beside hogs.

    The slowdown is planted in the agent: a copy of its package, in which every phase of a step goes on for 2 % of its
    own time before the stopwatch is read, is what a process of its own finds as `firmware_agent`. So another image is
    built of it and another template booted, and everything else is as it would be for a change that someone made. Every
    run clones its drive anew. Runs of both kinds go on at the same time.

    Figures: `caught`, slowed runs that did not pass; `false_alarms`, honest ones that did not.
    """
    seed = bench.seed
    with temporary_folder() as folder:
        plant(folder / SLOWED)
        for kind, what in ((HONEST, "make the baseline"), (SLOWED, "make image and template of the slowed agent")):
            bench.progress.stage(what)
            with _running(folder, kind, seed, "baseline" if kind == HONEST else "prepare") as runner:
                _read(runner, 1, folder / f"{kind}.log")
        hogs = os.cpu_count() or 1
        bench.progress.stage(f"run the gate {RUNS} times with each agent beside {hogs} hogs")
        with cpu_hogs(hogs), _running(folder, HONEST, seed) as honest, _running(folder, SLOWED, seed) as slowed:
            samples = {
                kind: _read(runner, RUNS, folder / f"{kind}.log")
                for kind, runner in ((HONEST, honest), (SLOWED, slowed))
            }
    failed = {kind: sum(not sample["passed"] for sample in samples[kind]) for kind in samples}
    figures = {"caught": float(failed[SLOWED]), "false_alarms": float(failed[HONEST])}
    return bench.report("counted", figures, samples)


def plant(folder: Path) -> None:
    """Copy the agent's package into `folder`, and slow it down there."""
    package = folder / "firmware_agent"
    shutil.copytree(Path(firmware_agent.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    with open(package / "clock.py", "a", encoding="utf-8") as stream:
        stream.write(_PLANT)


@contextlib.contextmanager
def _running(folder: Path, kind: str, seed: int, task: str = "compare") -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that runs the gate with one of the agents; it has ended when the block has."""
    ours = str(Path(__file__).parents[2])
    path = [str(folder / SLOWED), ours] if kind == SLOWED else [ours]
    command = [sys.executable, "-P", "-m", _RUNNER, str(folder), kind, task, str(RUNS), str(seed)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    with open(folder / f"{kind}.log", "ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=folder
        )
    try:
        yield process
    finally:
        end_process(process, _STOP_SECONDS)


def _read(runner: subprocess.Popen[bytes], count: int, log: Path) -> list[dict[str, Any]]:
    """Return what a runner says, one object per run.

    Raises:
        CsdError: it ended before.
    """
    lines = [json.loads(line) for line in itertools.islice(runner.stdout or (), count)]
    if len(lines) < count or any("error" in line for line in lines):
        said = next((line["error"] for line in lines if "error" in line), last_words(log))
        raise CsdError(f"bench ci_gate: a runner did {len(lines)} of {count} runs; its last words:\n{said}")
    return lines


JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits"},
    "mode": "sync",
    "sync": {"round_steps": 2},
    "rounds": 7,
    "batch_size": 64,
    "checkpoint": {"every": 0},
}


def make_request(kind: str, seed: int) -> RunRequest:
    """Return the run: seven rounds of two steps on one drive."""
    return request_run(array_of(f"gate-{kind}", 1), JOB | {"seed": seed})


def do(folder: Path, kind: str, task: str, seed: int) -> dict[str, Any]:
    """Do one run, or what comes before all runs, and return what came of it."""
    request, paths = make_request(kind, seed), Paths.default()
    if task == "prepare":
        with contextlib.closing(make_engine(request.config, paths)) as engine:
            engine.prepare(Silent())
        return {}
    gate = Gate(folder / "baseline.json", write=task == "baseline")
    report = run_gate(request, gate, paths, folder / f"runs-{kind}", Silent())
    changes = {compared.figure: compared.change for compared in report.figures}
    return {"passed": report.passed, "changes": changes, "wall_seconds": report.summary.wall_seconds}


def main(folder: Path, kind: str, task: str, count: int, seed: int) -> None:
    """Do it, `count` times if it is to compare, and print what came of each; an error is printed, too."""
    with INTERRUPTS.installed():
        try:
            for _ in range(count if task == "compare" else 1):
                print(json.dumps(do(folder, kind, task, seed)), flush=True)
        except CsdError as error:
            print(json.dumps({"error": str(error)}), flush=True)
        except KeyboardInterrupt:  # the bench is over, and the array has ended
            return


TIMES = 3
_TESTS = """
JOB = {{"model": "digits_cnn", "data": {{"source": "digits"}}, "rounds": 1, "batch_size": 64, "seed": {seed}}}


def test_a_round_trains_on_all_records(csd_array):
    assert csd_array.train(JOB).summary.samples == 1437


def test_two_rounds_cost_twice_as_much_device_time(csd_array):
    result = csd_array.train(JOB, rounds=2)
    first, second = (part.records_per_device_second for part in result.data.rounds)
    assert abs(first / second - 1) < 0.02


def test_a_run_repeats_to_the_bit(csd_array):
    weights = [(csd_array.train(JOB).directory / "model.safetensors").read_bytes() for _ in range(2)]
    assert weights[0] == weights[1]
"""


def bench_pytest_warm(bench: Bench) -> BenchReport:
    """Time of three tests of another project, once there is a template.

    Run three tests of two drives each with pytest, three times; the template is there.

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
    ours = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ours}
    begin = time.monotonic()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    seconds = time.monotonic() - begin
    if done.returncode != 0 or "3 passed" not in done.stdout:
        raise CsdError(f"bench pytest_warm: the tests did not pass:\n{done.stdout}{done.stderr}")
    return seconds


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
