"""Host I/O beside training on drives: what modelling it costs a run, and whether its latencies depend on the drives."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from csd_emu.perfmodel.storage.drive_service import DriveService
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, RunningDrives, array_of, request_run
from host.config.job_file import DEFAULT_DATA
from host.core.records import RoundRecord

IOPS, READ_SHARE, EPOCHS = 20_000, 0.7, 4
_SERVING = "begin_step", "load", "write", "end", "take_figures"


def bench_host_io(bench: Bench, quick: bool = False) -> BenchReport:
    """Train on virtual machines whose host asks 20,000 commands of 4 KiB a second of each, 70 % of them reads.

    With `--quick` two drives of eight, and two rounds of four.

    Figures: `model_cost`: share of the rounds' wall seconds that goes to the model of the drives in service, both
    policies (the larger). `same_to_the_bit`: 1 if each whole second's 99th percentile of latency is the same on
    virtual machines and on native drives, as long as both run; else 0. Records are in the drives' memory after the
    first step, so that both engines ask the same of the flash, whenever they do it.
    """
    drives, rounds = (2, 2) if quick else (8, 4)
    shares, wall, seconds = {}, {}, dict[str, list[Any]]()
    for policy, engine in (("fair", "qemu"), ("host_first", "qemu"), ("host_first", "native")):
        job = _job(policy, bench.seed, rounds)
        config = array_of("host-io", drives, engine, clock="modelled" if engine == "native" else "auto")
        request = request_run(config, job)

        async def train(running: RunningDrives, request: Any = request) -> tuple[list[RoundRecord], float, float]:
            with _timed() as spent:
                begin = time.perf_counter()
                async with running.training(request) as training:
                    records = [await training.run_round() for _ in range(rounds)]
                return records, spent[0], time.perf_counter() - begin

        records, serving, whole = bench.on_array(config, train)
        shares[f"{engine}, {policy}"], wall[f"{engine}, {policy}"] = serving / whole, whole
        seconds[f"{engine}, {policy}"] = [
            [p99 for record in records for p99 in record.devices[place].service.second_p99_seconds]  # type: ignore[union-attr]
            for place in range(drives)
        ]
    both = zip(seconds["qemu, host_first"], seconds["native, host_first"], strict=True)
    pairs = [pair for machine, native in both for pair in zip(machine, native, strict=False)]
    figures = {
        "model_cost": max(share for name, share in shares.items() if name.startswith("qemu")),
        "same_to_the_bit": float(len(pairs) >= drives and all(a == b for a, b in pairs)),
    }
    return bench.report("wall", figures, {"shares": shares, "wall_seconds": wall, "second_p99_seconds": seconds})


def _job(policy: str, seed: int, rounds: int) -> dict[str, Any]:
    """Return the keys of a federated job on the quickstart's data."""
    load = {"iops": IOPS, "read_share": READ_SHARE}
    job = {"model": "digits_cnn", "data": DEFAULT_DATA.model_dump(), "seed": seed, "rounds": rounds, "epochs": EPOCHS}
    return job | {"host_io": {"policy": policy, "loads": [load]}}


@contextmanager
def _timed() -> Iterator[list[float]]:
    """Give the wall seconds, in a list of one, that drives in service take inside the block."""
    spent, kept = [0.0], {name: getattr(DriveService, name) for name in _SERVING}

    def watched(work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def wrapper(*arguments: Any) -> Any:
            begin = time.perf_counter()
            try:
                return work(*arguments)
            finally:
                spent[0] += time.perf_counter() - begin

        return wrapper

    for name, work in kept.items():
        setattr(DriveService, name, watched(work))
    try:
        yield spent
    finally:
        for name, work in kept.items():
            setattr(DriveService, name, work)
