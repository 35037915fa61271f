"""Trains with some threads of torch, under the core model: in a virtual machine of more cores than that.

The argument is how many threads; `threads.json` says what: a job, a measurement, and the shape of an image. The steps
are those of the agent, with its marks. The environment gives each thread a core of its own (GOMP_CPU_AFFINITY): libgomp
ends threads and begins others, which would run where the main thread may.
"""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import torch

from firmware_agent.clock import Stopwatch
from firmware_agent.common.frames.measure_frames import Measure
from firmware_agent.common.frames.session_frames import Job
from firmware_agent.common.shard import open_shard, write_shard
from firmware_agent.training.trainer import Trainer

_CLASSES = 10
# QEMU lets a core run until the next timer. This one, on the last core, has the others take turns often.
_TICKER = """
import ctypes, os, time
os.sched_setaffinity(0, {os.cpu_count() - 1})
ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK, nanoseconds
while True:
    time.sleep(1e-4)
"""


def main(threads: int) -> None:
    """Measure with so many threads."""
    if torch.get_num_threads() != threads:
        raise SystemExit(f"torch has {torch.get_num_threads()} threads, not {threads}")
    plan = json.loads(Path("threads.json").read_text(encoding="utf-8"))
    job, measure = msgspec.convert(plan["job"], Job), msgspec.convert(plan["measure"], Measure)
    generator, path = np.random.default_rng(job.seed), Path("shard")
    images = generator.integers(0, 256, (2 * measure.batch_size, *plan["shape"]), np.uint8)
    write_shard(path, "noise", {"image": images, "label": generator.integers(0, _CLASSES, len(images))})
    trainer = Trainer(job, open_shard(path), 0, Stopwatch())
    ticker = subprocess.Popen([sys.executable, "-I", "-S", "-c", _TICKER])
    measured = trainer.measure(measure)
    ticker.kill()
    print(f"{threads} threads: {measured.elapsed_seconds:.3f} counted seconds", flush=True)


main(int(sys.argv[1]))
