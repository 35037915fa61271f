"""Work that is shared out over processes, or not: the benches' simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

# Maps a function over its arguments and gives the results in their order.
Spread = Callable[..., Iterable[Any]]


@contextmanager
def spread_over(processes: int | None) -> Iterator[Spread]:
    """Give what maps over so many processes; None for one per processor, 1 for this one alone.

    They are new ones, not forks: this one may have threads of torch's and of gRPC's.
    """
    if processes == 1:
        yield map
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield pool.map
