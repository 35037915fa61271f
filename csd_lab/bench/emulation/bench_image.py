"""Time to build the ARM image."""

from __future__ import annotations

from csd_emu.image import ImageStore
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, temporary_folder


def run(bench: Bench) -> BenchReport:
    """Build the image from nothing, in a folder of its own; only downloads are taken from the cache. Wall seconds.

    Figure: `build_seconds`, all stages but the downloads, the check boot included.
    """
    cache = bench.paths.cache
    cache.mkdir(parents=True, exist_ok=True)
    with temporary_folder(cache) as folder:
        stages = ImageStore(folder, downloads=cache / "downloads").ensure(bench.progress).metadata
    return bench.report("wall", {"build_seconds": stages["build_seconds"]}, {"stages": stages})
