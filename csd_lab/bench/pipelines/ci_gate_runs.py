"""Runs the gate again and again, with whichever `firmware_agent` this process finds; a part of bench `ci_gate`.

``python -m csd_lab.bench.pipelines.ci_gate_runs FOLDER KIND baseline|prepare|compare COUNT SEED`` prints a line of JSON
per run.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines import make_engine
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import CsdError
from host.app.gate.run_gate import Gate, run_gate
from host.app.prepare import prepare_run
from host.app.run_request import RunRequest
from host.config.job_file import parse_job
from host.config.resolve import ResolvedRun
from host.core.interrupts import INTERRUPTS

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
