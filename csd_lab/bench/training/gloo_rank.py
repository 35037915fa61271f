"""One rank of `csd_lab.bench.training.gloo`: a process that all-reduces whenever it is told to."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from torch import distributed


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
    for _ in sys.stdin:
        values.fill_(float(rank))
        distributed.barrier()
        begin = time.monotonic()
        distributed.all_reduce(values)
        end = time.monotonic()
        if not bool((values == ranks * (ranks - 1) / 2).all()):
            raise ArithmeticError(f"rank {rank}: the all-reduce gave a wrong sum")
        print(begin, end, flush=True)


def main() -> None:
    """Run one rank, as its command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    for name in ("rank", "ranks", "elements"):
        parser.add_argument(name, type=int)
    serve_rank(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
