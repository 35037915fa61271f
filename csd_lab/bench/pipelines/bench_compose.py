"""Cost of `docker-compose up`."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench
from csd_lab.testkit.containers import FILE, Stack, fetch, image_bytes, wait_for
from firmware_agent.common.errors import EnvironmentUnfit
from host.cli.top_report import Readings
from host.monitoring.metrics import metric_names as names

DRIVES = 4
_ROUND_SECONDS = 1800.0


def run(bench: Bench) -> BenchReport:
    """Build our images from nothing, then bring up a stack of 4 drives and wait for its first round. Wall seconds.

    Figures: `build_minutes` without any layer of before; `first_round_seconds` from `up` with built images and empty
    volumes to the end of the first round of the quickstart; `image_megabytes` of our images, each with all its layers.

    Raises:
        EnvironmentUnfit: it is not run in a checkout, or there is no Docker engine.
    """
    if not Path(FILE).is_file():
        raise EnvironmentUnfit(f"{FILE} is not here; run this bench in the top folder of a checkout")
    with Stack(Path.cwd(), f"csd-bench-{secrets.token_hex(3)}", {"CSD_COUNT": str(DRIVES)}) as stack:
        bench.progress.stage("build the images from nothing")
        begin = time.monotonic()
        stack.build_from_nothing()
        build_seconds = time.monotonic() - begin
        bench.progress.stage(f"up, {DRIVES} drives, to the end of the first round")
        begin = time.monotonic()
        stack.up("host")
        up_seconds = time.monotonic() - begin
        wait_for("the first round", lambda: rounds_done(stack) >= 1, _ROUND_SECONDS)
        first_round_seconds = time.monotonic() - begin
        bench.progress.stage("")
    sizes = image_bytes()
    figures = {
        "build_minutes": build_seconds / 60,
        "first_round_seconds": first_round_seconds,
        "image_megabytes": sum(sizes.values()) / 1e6,
    }
    samples = {"up_seconds": up_seconds, "image_bytes": sizes}
    # Not `qemu`: the report would name this machine's QEMU, and the drives run that of their container.
    return bench.report("wall", figures, samples, engine="containers")


def rounds_done(stack: Stack) -> int:
    """Return how many rounds the host's metrics count; 0 while it does not answer."""
    text = fetch(f"{stack.page}/metrics")
    return int(Readings(text.decode()).sum(names.ROUND)) if text is not None else 0
