"""What a drive accepts: examples as they ship, SCAFFOLD against plain torch, and what a program of the user's costs."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import yaml
from safetensors.numpy import load_file
from torch import nn

from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import packaged_folder
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.drive.client_rounds import largest_difference, plain_scaffold, run_client_rounds
from csd_lab.bench.drive.flower_curve import MISSING, can_simulate, curve_differences
from csd_lab.bench.drive.in_place import gradient_difference, run_in_place
from csd_lab.bench.drive.modelled_error import modelled_errors
from csd_lab.bench.harness import (
    WATCHDOG_SECONDS,
    Bench,
    RunningDrives,
    array_of,
    bench_frame,
    measure,
    spread,
    temporary_folder,
)
from firmware_agent.common.frames.session_frames import Code, Job
from firmware_agent.common.shipped_code import ShippedCode, load_code
from host.app.prepare import RunRequest, prepare_run
from host.config.resolve import resolve_run
from host.policies.aggregation.scaffold import Scaffold
from host.training.round_exchange import prepare_device

EXAMPLES = ("language-model", "regression", "segmentation", "lora", "optimizer", "scaffold", "fedbn", "energy", "noise")
FLOWER = "flower"
"""The example that needs Flower, and is left out where it is not installed."""
# A loop as a user writes it.
HOOK = """def train(model, csd):
    optimizer = csd.optimizer()
    for batch in csd.loader:
        loss = csd.loss(batch)
        optimizer.zero_grad()
        with csd.phase("backward"):
            loss.backward()
        optimizer.step()
        loss.item()
"""
LOSS = """from torch.nn import functional
def loss(outputs, batch):
    return functional.cross_entropy(outputs, batch["label"])
"""
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "synthetic:1x8x8:10:1600"},
    "batch_size": 64,
    "client": "hook.py:train",
    "rounds": 6,
}
RUNS, CURVE_SEEDS = 3, 5


def bench_drive(bench: Bench, quick: bool = False) -> BenchReport:
    """Run the examples of tasks and algorithms, and measure what a client program costs, on one virtual machine.

    With `--quick` the examples on native drives and the arithmetic alone.

    Figures: `examples_passed`: share of the ten examples that train and lower their loss, on native drives (Flower's
    where Flower is installed); the tests run them on virtual machines too. `longest_example_lines`
    of Python. `scaffold_difference`: the larger of the built-in and the hand-written SCAFFOLD's differences to plain
    torch after five rounds on four unequal shards, over the largest weight, in float64. `lm_gradient_difference`: of
    one synchronous step of the language model over all its records on four native drives of two kinds, the gradient's
    largest difference to one process's, over the largest; float64. `in_place_record_bytes`,
    `in_place_gradient_difference`: of a step on records that lie on three native drives, see
    `csd_lab.bench.drive.in_place`. `flower_curve_difference`: of the weights of a Flower `ServerApp` after five rounds
    of FedAvg on ten native drives, the largest difference to those of Flower's own simulation with the same shards,
    batches and first weights, over the largest, float32; the worst of five seeds, of one with `--quick`; left out where
    the simulation is not installed. `flower_curve_noise`: the least by which two seeds' weights differ so in Flower's
    simulation, which the figure before must not pass. `hook_over_bare`: records per second of the guest's clock of a
    client program with a plain loop, over those of a bare torch loop in the same machine. `spread_hook`, `spread_lm`:
    (max - min) / mean of a drive's counted seconds over rounds of the same work, of the client program and of the
    language model.
    `ship_seconds`: wall seconds until a drive is ready, with a client program and a loss that travel, beyond those
    without. `modelled_over_counted_error`: of runs of the language model, the table and the segmentation at batch sizes
    that their calibration tables do not have, the largest relative difference of a drive's modelled seconds from those
    counted on a virtual machine; the tables are measured on another one.
    """
    figures, samples = dict[str, float](), dict[str, Any]()
    root = packaged_folder("host", "examples", "examples")
    with temporary_folder() as folder:
        names = (*EXAMPLES, FLOWER) if find_spec("flwr") else EXAMPLES
        passed = samples["examples"] = {name: _passes(root / name, folder / name, bench) for name in names}
        figures["examples_passed"] = sum(passed.values()) / len(passed)
        figures["longest_example_lines"] = float(max(_lines(root / name) for name in (*EXAMPLES, FLOWER)))
        figures["scaffold_difference"] = scaffold_difference(root / "scaffold" / "scaffold.py", bench.seed)
        figures["lm_gradient_difference"] = lm_gradient_difference(folder / "language-model")
        figures |= run_in_place(bench, folder / "in-place")
        samples["flower_curve"] = MISSING
        if can_simulate():
            measured, more = _measure_curve(bench, folder / "curve", 1 if quick else CURVE_SEEDS)
            figures |= measured
            samples |= more
        if not quick:
            measured, more = _measure_hook(bench, folder)
            figures |= measured
            samples |= more
            seconds = _round_seconds(bench, folder / "language-model")
            figures["spread_lm"], samples["lm_seconds"] = spread(seconds[1:]), seconds
            errors, samples["modelled"] = modelled_errors(bench, root, folder / "tables")
            figures["modelled_over_counted_error"] = max(map(abs, errors.values()))
            samples["modelled_errors"] = errors
    return bench.report("counted" if not quick else "wall", figures, samples, "native" if quick else "qemu")


def _measure_curve(bench: Bench, folder: Path, seeds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples of a Flower program here and in Flower's simulation."""
    bench.progress.stage("compare weights with those of Flower's simulation")
    differences, between_seeds = curve_differences(folder, range(bench.seed, bench.seed + seeds), _run)
    noise = {"flower_curve_noise": min(between_seeds)} if between_seeds else {}
    return {"flower_curve_difference": max(differences)} | noise, {
        "flower_curve": differences,
        "flower_seeds": between_seeds,
    }


def scaffold_difference(example: Path, seed: int) -> float:
    """Return how far both SCAFFOLDs are from plain torch; `example` is the hand-written one."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    generator = np.random.default_rng(seed)
    true = generator.standard_normal((6, 2))
    shards = []
    for number, size in enumerate((40, 24, 56, 9)):
        x = generator.standard_normal((size, 6)) + 0.3 * number
        shards.append({"x": x, "y": x @ true})
    config = {"batch_size": 8, "learning_rate": 0.02}
    plain = plain_scaffold(model, shards, config, 5)
    source = example.read_text(encoding="utf-8")
    by_hand = load_code("strategy", ShippedCode("scaffold.py:Scaffold", source))()
    halves: list[tuple[ShippedCode, Any]] = [
        (ShippedCode("scaffold"), Scaffold(parameters=list(plain))),
        (ShippedCode("scaffold.py:train", source), by_hand),
    ]
    return max(
        largest_difference(run_client_rounds(code, strategy, model, shards, config, 5), plain)
        for code, strategy in halves
    )


def lm_gradient_difference(folder: Path) -> float:
    """Return how far the gradient of four drives is from that of one process; `folder` has the example."""
    records = 320  # a fifth is held out, a quarter of the others is a drive's
    model = (folder / "language.py").read_text(encoding="utf-8").replace("return 256", f"return {records}")
    (folder / "language.py").write_text(model, encoding="utf-8")
    job = {
        **{"model": "language.py:Transformer", "data": {"source": "language.py:Sequences"}, "loss": "next_token"},
        **{"mode": "sync", "batch_size": records // 5, "rounds": 1, "sync": {"round_steps": 1}},
        **{"precision": "float64", "momentum": 0, "learning_rate": 1.0},
    }
    (folder / "one-step.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    kinds = [{"profile": profile, "count": 2} for profile in ("newport", "generic-a53")]
    array = {"name": "one-step", "engine": "native", "devices": kinds}
    (folder / "four.yaml").write_text(yaml.safe_dump(array), encoding="utf-8")
    prepared = prepare_run(resolve_run(folder / "one-step.yaml", folder / "four.yaml"))
    _run(folder, "one-step.yaml", "four.yaml", "one-step")
    (after,) = folder.glob("one-step/*/model.safetensors")
    return gradient_difference(prepared, prepared.dataset.fields, load_file(after))


def _lines(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.glob("*.py"))


def _passes(source: Path, folder: Path, bench: Bench) -> bool:
    """Return whether an example trains as it ships; it is copied to `folder`."""
    bench.progress.stage(f"train the example {source.name}")
    shutil.copytree(source, folder)
    if _run(folder, "job.yaml", "array.yaml", "runs"):
        return False
    (records,) = folder.glob("runs/*/records.jsonl")
    lines = (json.loads(line) for line in records.read_text(encoding="utf-8").splitlines())
    losses = [line["test_loss"] for line in lines if line.get("kind") == "round"]
    return bool(losses[-1] < losses[0])


def _run(folder: Path, job: str, array: str, runs: str) -> int:
    """Run a job in a folder as a user does, and return the exit code."""
    command = [str(Path(sys.executable).parent / "csd-emu"), "run", job, "--array", array, "--runs", runs]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


def _request(bench: Bench, folder: Path, changes: Mapping[str, Any]) -> RunRequest:
    """Return the run of the job in a folder, with changes, on one virtual machine."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text(encoding="utf-8")) | dict(changes)), encoding="utf-8")
    return prepare_run(replace(resolve_run(path, folder / "array.yaml"), config=array_of(bench.name, 1)))


def _round_seconds(bench: Bench, folder: Path) -> list[float]:
    """Return the counted seconds of a drive in each round of the job in a folder."""
    request = _request(bench, folder, {"rounds": JOB["rounds"], "epochs": 8})

    async def work(drives: RunningDrives) -> list[float]:
        return [seconds for _, seconds in await _train(bench, drives, request)]

    return bench.on_array(request.array, work)


async def _train(bench: Bench, drives: RunningDrives, request: RunRequest) -> list[tuple[int, float]]:
    """Return records and counted seconds of each round, without encoding."""
    bench.progress.stage(f"train {request.spec.name} on a virtual machine")
    rounds = []
    async with drives.training(request) as training:
        while not training.done:
            (part,) = (await training.run_round()).devices
            rounds.append((part.samples, part.stopwatch_seconds.total - part.stopwatch_seconds.encode))
    return rounds


def _measure_hook(bench: Bench, folder: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the figures of a client program on a virtual machine, and what they were taken from."""
    folder = folder / "hook"
    folder.mkdir()
    (folder / "hook.py").write_text(HOOK, encoding="utf-8")
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB), encoding="utf-8")
    (folder / "array.yaml").write_text(yaml.safe_dump({"name": "hook", "devices": [{"profile": "newport"}]}))
    request = _request(bench, folder, {})

    async def work(drives: RunningDrives) -> tuple[list[tuple[int, float]], list[float], list[float]]:
        rounds = await _train(bench, drives, request)
        (session,) = drives.sessions
        bench.progress.stage("run a bare loop in the same machine")
        bare = [await measure(session, bare=True) for _ in range(RUNS)]
        plain = bench_frame(bench.seed)
        shipped = _with_code(plain)
        waits = []
        for frame in [plain, shipped] * (1 + RUNS):
            begin = time.perf_counter()
            await prepare_device(session, frame, Deadline(WATCHDOG_SECONDS))
            waits.append(time.perf_counter() - begin)
        return rounds, [each.samples / each.elapsed_seconds for each in bare], waits[2:]

    rounds, bare, waits = bench.on_array(request.array, work)
    rates = [samples / seconds for samples, seconds in rounds[1:]]
    figures = {
        "hook_over_bare": statistics.median(rates) / statistics.median(bare),
        "spread_hook": spread([seconds for _, seconds in rounds[1:]]),
        "ship_seconds": statistics.median(waits[1::2]) - statistics.median(waits[::2]),
    }
    return figures, {"hook_records_per_second": rates, "bare_records_per_second": bare, "ready_seconds": waits}


def _with_code(frame: Job) -> Job:
    """Return the frame of the same job with a client program and a loss that travel."""
    return msgspec.structs.replace(frame, client=Code("hook.py:train", HOOK), loss=Code("loss.py:loss", LOSS))
