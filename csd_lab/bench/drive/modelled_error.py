"""Modelled seconds against counted ones: a language model, a table and a segmentation, each with a loss of its own."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationStore
from csd_lab.bench.harness import PROFILE, Bench, RunningDrives, array_of
from host.app.calibration_measurement import calibrate
from host.app.missing_table import job_request
from host.app.prepare import RunRequest, prepare_run
from host.config.resolve import ResolvedRun, resolve_run
from host.core.device_time import TableModel, batch_counts, pass_seconds

TASKS = ("language-model", "regression", "segmentation")
# Batch sizes of the tables: those that `csd-emu run --calibrate` takes for a job of 32. Then those that are trained:
# between them and beyond.
TABLE_BATCHES, TRAINED_BATCHES = (1, 2, 5, 15, 16, 32), (9, 24, 48)


def modelled_errors(bench: Bench, examples: Path, tables: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Return "example, batch size" -> modelled over counted seconds, less 1; and each round's counted seconds.

    A table is measured on one virtual machine; then another one trains all rounds of the example as it ships, but at
    batch sizes that the table does not have. The first round of each run, in which the process takes its memory, is
    left out, as the warm-up is in a table.

    Args:
        bench: the measurement in progress.
        examples: folder that has them.
        tables: folder that the tables are kept in.
    """
    errors, samples = dict[str, float](), dict[str, Any]()
    for name in TASKS:
        resolved = replace(_resolve(examples / name), config=array_of(bench.name, 1))
        request, _ = job_request(resolved.job, resolved.spec, resolved.plugins, TABLE_BATCHES)
        store = CalibrationStore(tables).of_task(request.key.task)
        store.save(calibrate(request, bench.paths, bench.progress))
        model = TableModel(store.require(request.spec, request.input_shape), get_profile(PROFILE))
        rounds = _train(bench, [_request(resolved, size) for size in TRAINED_BATCHES])
        for size, counted in zip(TRAINED_BATCHES, rounds, strict=True):
            records, seconds = counted[0][0], [seconds for _, seconds in counted[1:]]
            modelled = pass_seconds(model, batch_counts(records, resolved.job.epochs, size)).total
            errors[f"{name}, {size}"] = modelled / statistics.fmean(seconds) - 1
            samples[f"{name}, {size}"] = [seconds for _, seconds in counted]
    return errors, samples


def _resolve(folder: Path) -> ResolvedRun:
    return resolve_run(folder / "job.yaml", folder / "array.yaml")


def _request(resolved: ResolvedRun, batch_size: int) -> RunRequest:
    return prepare_run(replace(resolved, job=resolved.job.model_copy(update={"batch_size": batch_size})))


def _train(bench: Bench, requests: Sequence[RunRequest]) -> list[list[tuple[int, float]]]:
    """Return the records, and the drive's seconds, of each round of each run, one after the other on one machine."""

    async def work(drives: RunningDrives) -> list[list[tuple[int, float]]]:
        found = []
        for request in requests:
            bench.progress.stage(f"train {request.spec.name} in batches of {request.job.batch_size}")
            rounds = []
            async with drives.training(request) as training:
                while not training.done:
                    (part,) = (await training.run_round()).devices
                    rounds.append((part.samples, get_profile(PROFILE).device_seconds(part.stopwatch_seconds).total))
            found.append(rounds)
        return found

    return bench.on_array(requests[0].array, work)
