"""Time to build the ARM image."""

from __future__ import annotations

import tempfile
from pathlib import Path

from csd_emu.image import ImageStore
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import report


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Build the image from nothing, in a folder of its own; only downloads are taken from the cache. Wall seconds.

    Figure: `build_seconds`, all stages but the downloads, the check boot included.
    """
    paths.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.cache, prefix="bench-image-") as folder:
        image = ImageStore(Path(folder), downloads=paths.cache / "downloads").ensure(progress)
        metadata = image.metadata
    return report("image", "wall", seed, {"build_seconds": metadata["build_seconds"]}, {"stages": metadata})
