"""The formula of an all-reduce between servers, against gloo's in network namespaces. Wall seconds."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from csd_emu.perfmodel.allreduce import Fabric, ring
from csd_emu.util.deadline import Deadline
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench
from csd_lab.bench.scaleout.server_switch import INTERFACE, server_switch
from csd_lab.bench.training.gloo import gloo_group

SERVERS, QUICK_SERVERS = (2, 3, 4, 6, 8), (2, 4)
# Bytes, and links that make them last long enough for the machine's own delays not to be what is measured.
CASES = ((1 << 20, 5e6), (1 << 20, 20e6), (4 << 20, 10e6), (16 << 20, 20e6), (64 << 20, 40e6))
REPEATS = 5
# What the kernel takes from one namespace to another, and gloo to begin: assumed, it makes little of these times.
LATENCY_SECONDS = 1e-4
_WATCHDOG_SECONDS = 900.0
_ELEMENT_BYTES = 4


def bench_ring(bench: Bench, quick: bool = False) -> BenchReport:
    """Predicted seconds of an all-reduce between servers, against gloo over shaped links.

    Each server is a network namespace with a token bucket (`tbf`) each way, on a bridge; torch's gloo sums float32.
    Wall seconds of this machine, the least of 5 after one that does not count, for all ranks share its processors with
    whatever else runs. `quick` takes 2 and 4 servers alone.

    Figures: `error_median` and `error_worst`, |predicted / measured - 1| over all cases; `bias_median`, predicted over
    measured, less 1.

    Raises:
        EnvironmentUnfit: not root, no iproute2, or gloo's ranks did not find each other.
    """
    samples = []
    for servers in QUICK_SERVERS if quick else SERVERS:
        bench.progress.stage(f"gloo over {servers} servers")
        samples += asyncio.run(_measure(servers))
    bench.progress.stage("")
    return bench.report("wall", figures_of(samples), {"cases": samples}, engine="namespaces")


def figures_of(samples: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of measured cases."""
    biases = [each["predicted_seconds"] / each["measured_seconds"] - 1 for each in samples]
    return {
        "error_median": statistics.median(map(abs, biases)),
        "error_worst": max(map(abs, biases)),
        "bias_median": statistics.median(biases),
    }


async def _measure(servers: int) -> list[dict[str, Any]]:
    found = []
    most = max(size for size, _ in CASES) // _ELEMENT_BYTES
    with server_switch(servers) as switch:
        deadline = Deadline(_WATCHDOG_SECONDS)
        async with gloo_group(servers, most, deadline, switch.places, INTERFACE) as gloo:
            for size, bytes_per_second in CASES:
                switch.shape(bytes_per_second)
                elements = size // _ELEMENT_BYTES
                await gloo.all_reduce_seconds(elements)
                seconds = [await gloo.all_reduce_seconds(elements) for _ in range(REPEATS)]
                predicted = ring(size, [servers], Fabric(bytes_per_second, LATENCY_SECONDS)).seconds
                case = {"servers": servers, "size_bytes": size, "bytes_per_second": bytes_per_second}
                measured = {"measured_seconds": min(seconds), "all_seconds": seconds}
                found.append(case | measured | {"predicted_seconds": predicted})
    return found
