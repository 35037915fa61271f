"""An all-reduce by gloo on this machine, to hold our own exchange against: one process per rank, on loopback.

As a program it is one rank.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import torch
from torch import distributed

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import EnvironmentUnfit


class GlooGroup:
    """Ranks that wait to be told to all-reduce, one sum of float32 at a time."""

    def __init__(self, ranks: Sequence[Process], deadline: Deadline) -> None:
        """Take processes that run this module."""
        self._ranks, self._deadline = ranks, deadline

    async def all_reduce_seconds(self, elements: int | None = None) -> float:
        """Return wall seconds of one all-reduce: from the first rank's call to the last one's result.

        Args:
            elements: so many of each rank's; None for all.

        Raises:
            EnvironmentUnfit: a rank has ended, or says that the sum is wrong.
        """
        for rank in self._ranks:
            if rank.stdin is not None:
                rank.stdin.write(b"\n" if elements is None else b"%d\n" % elements)
        spans = await self._lines()
        return max(end for _, end in spans) - min(begin for begin, _ in spans)

    async def wait_ready(self) -> None:
        """Wait until all ranks have found each other."""
        await self._lines()

    async def _lines(self) -> list[tuple[float, float]]:
        return await asyncio.gather(*(self._line(rank) for rank in self._ranks))

    async def _line(self, rank: Process) -> tuple[float, float]:
        if rank.stdout is None:
            raise EnvironmentUnfit("a gloo rank was started without a pipe")
        try:
            async with asyncio.timeout(self._deadline.left_seconds):
                words = (await rank.stdout.readline()).split()
        except TimeoutError:
            raise EnvironmentUnfit(f"gloo's ranks were not done in {self._deadline.seconds:.0f} s") from None
        if len(words) != 2:
            raise EnvironmentUnfit(f"gloo rank {rank.pid} has ended; is torch built with gloo?")
        return float(words[0]), float(words[1])


@contextlib.asynccontextmanager
async def gloo_group(
    ranks: int,
    elements: int,
    deadline: Deadline,
    places: Sequence[Sequence[str]] | None = None,
    interface: str = "lo",
) -> AsyncIterator[GlooGroup]:
    """Start `ranks` processes with `elements` float32 each, and end them whatever happens.

    Args:
        ranks: how many.
        elements: of each.
        deadline: for all that is asked of them.
        places: (ranks,) beginnings of their command lines, as of `ip netns exec`; None for none.
        interface: that they talk through.

    Raises:
        EnvironmentUnfit: they did not find each other until the deadline.
    """
    with tempfile.TemporaryDirectory(prefix="csd-gloo-") as folder:
        environment = os.environ | {"GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"}
        started: list[Process] = []
        try:
            for rank in range(ranks):
                command = [__name__, str(Path(folder) / "store"), str(rank), str(ranks), str(elements)]
                started.append(
                    await asyncio.create_subprocess_exec(
                        *(places[rank] if places else ()),
                        *(sys.executable, "-P", "-m", *command),
                        stdin=PIPE,
                        stdout=PIPE,
                        env=environment,
                        start_new_session=True,
                    )
                )
            group = GlooGroup(started, deadline)
            await group.wait_ready()
            yield group
        finally:
            await asyncio.gather(*map(_end, started))


async def _end(rank: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        rank.kill()
    await rank.wait()


def serve_rank(store: Path, rank: int, ranks: int, elements: int) -> None:
    """Be one rank: all-reduce at every line of standard input, and print begin and end in monotonic seconds.

    Raises:
        ArithmeticError: the sum was wrong.
    """
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    values = torch.empty(elements)
    distributed.barrier()
    print(0.0, 0.0, flush=True)
    for line in sys.stdin:
        part = values[: int(line)] if line.strip() else values
        part.fill_(float(rank))
        distributed.barrier()
        begin = time.monotonic()
        distributed.all_reduce(part)
        end = time.monotonic()
        if not bool((part == ranks * (ranks - 1) / 2).all()):
            raise ArithmeticError(f"rank {rank}: the all-reduce gave a wrong sum")
        print(begin, end, flush=True)


def main() -> None:
    """Run one rank, as its command line says."""
    parser = argparse.ArgumentParser(description=serve_rank.__doc__)
    parser.add_argument("store", type=Path)
    for name in ("rank", "ranks", "elements"):
        parser.add_argument(name, type=int)
    serve_rank(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
