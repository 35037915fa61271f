"""The host's side of `scaleout_fleet`: a process that listens for drives and does no-op rounds."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import time
from pathlib import Path

import msgspec

import host.app.run_job  # noqa: F401  # so that this process holds in memory what a real run's does
from csd_emu.util.deadline import Deadline
from csd_lab.bench.scaleout.fleet_stubs import KEYS_FOLDER, MANIFEST, HostReport, HostTask, read_task
from csd_lab.bench.training.noop_rounds import NoopRounds
from firmware_agent.common.errors import BootTimeout, CsdError
from host.core.rare_collections import rare_collections
from host.fleet.admission import ExpectedDevice
from host.fleet.certificates import HostKeys
from host.fleet.fleet import Fleet


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
        rounds = NoopRounds(fleet, task.devices, task.elements, task.seed)
        await rounds.warm_up()
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
