"""The host's side of `scaleout_fleet`: a process that listens for drives and does no-op rounds."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

import host.app.run_job  # noqa: F401  # so that this process holds in memory what a real run's does
from csd_emu.util.deadline import Deadline
from csd_lab.bench.harness import bench_config, bench_job
from csd_lab.bench.scaleout.fleet_job import KEYS_FOLDER, MANIFEST, HostReport, HostTask, read_task
from firmware_agent.common.errors import BootTimeout, CsdError, ProtocolError
from firmware_agent.common.models import ModelSpec
from firmware_agent.common.slices import Array
from host.app.run_job import rare_collections
from host.core.evaluation import Structure
from host.fleet.admission import ExpectedDevice
from host.fleet.certificates import HostKeys
from host.fleet.fleet import Fleet
from host.training.accounting import make_accountant
from host.training.federated import FederatedTraining
from host.training.round_exchange import RoundExchange, job_frame

TENSOR = "values"


async def serve(task: HostTask, keys: HostKeys) -> HostReport:
    """Listen until all drives are there, do the rounds, and say how long they took.

    Raises:
        BootTimeout: a drive did not dial in until the deadline.
        ProtocolError: a drive was lost, or weights came back otherwise than they went out.
    """
    deadline, before_bytes = Deadline(task.deadline_seconds), resident_bytes()
    async with Fleet({device: ExpectedDevice(1, MANIFEST) for device in task.devices}, keys, task.port) as fleet:
        begin = time.monotonic()
        await _all_joined(fleet, task.devices, deadline)
        joined_seconds, joined_bytes = time.monotonic() - begin, resident_bytes()
        rounds = FleetNoopRounds(task, fleet)
        for _ in range(task.warm_up):
            await rounds.seconds()
        processor = time.process_time()
        round_seconds = [await rounds.seconds() for _ in range(task.rounds)]
        processor_seconds, after_bytes = (time.process_time() - processor) / task.rounds, resident_bytes()
        return HostReport(
            joined_seconds=joined_seconds,
            round_seconds=round_seconds,
            processor_seconds=processor_seconds,
            before_bytes=before_bytes,
            joined_bytes=joined_bytes,
            after_bytes=after_bytes,
            # The kernel counts both by batches of pages: one can be a little behind the other.
            peak_bytes=max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, after_bytes),
        )


async def _all_joined(fleet: Fleet, devices: list[str], deadline: Deadline) -> None:
    try:
        async with asyncio.timeout(deadline.left_seconds):
            await asyncio.gather(*(fleet.joined(device) for device in devices))
    except TimeoutError:
        there = len(fleet.sessions())
        raise BootTimeout(
            f"bench scaleout: {there} of {len(devices)} stub agents dialled in within {deadline.seconds:.0f} s; run it "
            "again on a less busy machine"
        ) from None


class FleetNoopRounds:
    """Federated rounds of no epoch: one tensor goes out, comes back as it went, and is averaged."""

    def __init__(self, task: HostTask, fleet: Fleet) -> None:
        """Prepare; the first round has the drives prepare for the job too."""
        job = bench_job(task.seed).model_copy(update={"epochs": 0, "watchdog": task.deadline_seconds})
        frame = job_frame(job, ModelSpec("flat.py:Flat", "", {"elements": task.elements}), 1.0)
        self._start = np.random.default_rng(task.seed).standard_normal(task.elements, np.float32)
        exchange = RoundExchange(job, frame, fleet, lambda: (), lambda *_: None)
        accountant = make_accountant(bench_config("scaleout", len(task.devices), "native"))
        judge = _Unjudged(self._start)
        self._training = FederatedTraining(job, task.devices, exchange, accountant, judge, lambda *_: None)

    async def seconds(self) -> float:
        """Return wall seconds of one round, from its beginning to the mean being there and accounted for.

        Raises:
            ProtocolError: a drive is missing, or the weights are not those that went out.
        """
        record = await self._training.run_round()
        # Shares are as good as equal in float64, so the mean is the same float32.
        if record.lost or not np.array_equal(self._training.weights[TENSOR], self._start):
            raise ProtocolError(f"round {record.round} without training changed the weights, or lost {record.lost}")
        return record.wall_seconds


class _Unjudged:
    """A `host.core.evaluation.WeightsJudge` that takes no time."""

    def __init__(self, values: Array) -> None:
        self._values = values

    def initial_weights(self) -> dict[str, Array]:
        """Return the one tensor."""
        return {TENSOR: self._values.copy()}

    def structure(self) -> Structure:
        """Return that it is a parameter."""
        return Structure((TENSOR,), (), {})

    def evaluate(self, weights: Mapping[str, Array]) -> tuple[float, float]:
        """Judge nothing."""
        return 0.0, 0.0


def resident_bytes() -> int:
    """Return what this process has in memory now, pages of files that are mapped included."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Do what the command line's file says, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", type=Path)
    path: Path = parser.parse_args().task
    try:
        with rare_collections():
            seen = asyncio.run(serve(read_task(path, HostTask), HostKeys.load(path.parent / KEYS_FOLDER)))
    except CsdError as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(msgspec.json.encode(seen))


if __name__ == "__main__":
    main()
