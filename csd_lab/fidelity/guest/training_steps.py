"""Trains steps of a built-in model on one core of a board, with the agent's own loop; `firmware_agent` lies beside it.

Called with the job and the batch sizes as JSON: `Job`'s fields, and `batches`, `seconds`, `steps`. Writes a line of
JSON per batch size: `batch` and `seconds`, of each step, without encoding.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firmware_agent.clock import Stopwatch
from firmware_agent.common.frames.measure_frames import Measure
from firmware_agent.common.frames.session_frames import Job
from firmware_agent.common.shard import open_shard, write_shard
from firmware_agent.training.trainer import Trainer


def main(task: dict[str, Any]) -> None:
    """Measure every batch size."""
    torch.set_num_threads(1)
    generator, most = np.random.default_rng(task["job"]["seed"]), max(task["batches"])
    images = generator.integers(0, 256, (most, *task["shape"]), dtype=np.uint8)
    labels = generator.integers(0, task["classes"], most)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder, "shard")
        write_shard(path, "noise", {"image": images, "label": labels})
        trainer = Trainer(Job(source=None, **task["job"]), open_shard(path), 0, Stopwatch())
    for batch in task["batches"]:
        measured = trainer.measure(Measure(batch, task["seconds"], steps=task["steps"], restore=False))
        seconds = [step.forward + step.backward + step.update for step in measured.step_seconds]
        print(json.dumps({"batch": batch, "seconds": seconds}), flush=True)


main(json.loads(sys.argv[1]))
