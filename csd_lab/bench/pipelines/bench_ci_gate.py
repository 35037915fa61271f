"""Sensitivity of the gate: an agent that became 2 % slower is seen, and nothing else."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import firmware_agent
from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines import make_engine
from csd_emu.engines.engine_protocol import last_words
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress, Silent
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import cpu_hogs, report
from firmware_agent.common.errors import CsdError
from host.app.gate.run_gate import Gate, run_gate
from host.app.prepare import RunRequest, prepare_run
from host.config.job_file import parse_job
from host.config.resolve import ResolvedRun
from host.core.interrupts import INTERRUPTS

RUNS = 20
SLOWDOWN = 0.02
HONEST, SLOWED = "honest", "slowed"
_RUNNER = "csd_lab.bench.pipelines.ci_gate_runs"
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


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Make a baseline, then run the gate 20 times with the agent as it is and 20 times with a slowed one, beside hogs.

    The slowdown is planted in the agent: a copy of its package, in which every phase of a step goes on for 2 % of its
    own time before the stopwatch is read, is what a process of its own finds as `firmware_agent`. So another image is
    built of it and another template booted, and everything else is as it would be for a change that someone made. Every
    run clones its drive anew. Runs of both kinds go on at the same time.

    Figures: `caught`, slowed runs that did not pass; `false_alarms`, honest ones that did not.
    """
    with tempfile.TemporaryDirectory(prefix="csd-bench-") as name:
        folder = Path(name)
        plant(folder / SLOWED)
        for kind, what in ((HONEST, "make the baseline"), (SLOWED, "make image and template of the slowed agent")):
            progress.stage(what)
            with _running(folder, kind, seed, "baseline" if kind == HONEST else "prepare") as runner:
                _read(runner, 1, folder / f"{kind}.log")
        hogs = os.cpu_count() or 1
        progress.stage(f"run the gate {RUNS} times with each agent beside {hogs} hogs")
        with cpu_hogs(hogs), _running(folder, HONEST, seed) as honest, _running(folder, SLOWED, seed) as slowed:
            samples = {
                kind: _read(runner, RUNS, folder / f"{kind}.log")
                for kind, runner in ((HONEST, honest), (SLOWED, slowed))
            }
    failed = {kind: sum(not sample["passed"] for sample in samples[kind]) for kind in samples}
    figures = {"caught": float(failed[SLOWED]), "false_alarms": float(failed[HONEST])}
    return report("ci_gate", "counted", seed, figures, samples)


def plant(folder: Path) -> None:
    """Copy the agent's package into `folder`, and slow it down there."""
    package = folder / "firmware_agent"
    shutil.copytree(Path(firmware_agent.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    with open(package / "clock.py", "a", encoding="utf-8") as stream:
        stream.write(_PLANT)


@contextlib.contextmanager
def _running(folder: Path, kind: str, seed: int, task: str = "compare") -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that runs the gate with one of the agents; it has ended when the block has."""
    ours = str(Path(__file__).parents[3])
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
        process.terminate()
        process.wait(_STOP_SECONDS)


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
    keys = {"name": f"bench-gate-{kind}", "engine": "qemu", "devices": [{"profile": "newport"}]}
    job, spec = parse_job(JOB | {"seed": seed}, "bench ci_gate", Path.cwd())
    return prepare_run(ResolvedRun(ArrayConfig.model_validate(keys), job, spec))


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


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
