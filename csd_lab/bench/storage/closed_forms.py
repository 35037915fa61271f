"""What the flash model must agree with: queues and garbage collection of which the answer is known (docs/flash.md)."""

from __future__ import annotations

import numpy as np


def mean_wait(load: float, service: float) -> float:
    """Return the mean wait before one server, Poisson arrivals and equal services: Pollaczek and Khinchine's M/D/1."""
    return load * service / (2 * (1 - load))


def greedy_write_amplification(block_pages: int, closed_blocks: float, logical_pages: float) -> float:
    """Return the write amplification of greedy collection under uniform writes, in the limit of many blocks.

    A block loses its valid pages one by one, each at the rate 1 / `logical_pages` per page written; one is collected
    when it has m, or m - 1, left. The blocks that have k left are as many as blocks come along, times how long they
    have k; together they are all.
    """
    ratio = closed_blocks / logical_pages
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, block_pages + 1))])
    least = np.arange(1, block_pages)
    share = (harmonic[block_pages] - harmonic[least] - ratio * (block_pages - least)) / (ratio - 1 / least)
    place = int(np.argmax((share >= 0) & (share < 1)))
    return float(block_pages / (block_pages - least[place] + share[place]))
