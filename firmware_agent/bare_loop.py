"""The yardstick of the `slowdown` bench: a plain torch loop, as a user would write it, in a process of its own.

It shares the model, the data and the batch size with the agent's loop and nothing else: no laps, no session, no agent.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from firmware_agent.common.datafiles.record_set import IMAGE, LABEL
from firmware_agent.common.errors import DeviceFailed, ProtocolError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.measure_frames import Measure, Measured
from firmware_agent.common.frames.session_frames import Job
from firmware_agent.common.models import build_model
from firmware_agent.common.shard import Shard, open_shard
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.wire import decode, encode

_LENGTH_BYTES = 4


def run_in_process(job: Job, task: Measure, shard: Shard) -> Measured:
    """Run the loop in a fresh Python process on this machine and return what it saw.

    Raises:
        DeviceFailed: the process failed; the message carries its last words.
    """
    frames = b"".join(len(data).to_bytes(_LENGTH_BYTES, "big") + data for data in map(encode, (job, task)))
    command = [sys.executable, "-P", "-m", "firmware_agent.bare_loop", str(shard.path)]
    done = subprocess.run(command, input=frames, capture_output=True, check=False)
    if done.returncode != 0:
        raise DeviceFailed(
            f"the bare loop ended with {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}"
        )
    measured = decode(done.stdout)
    if not isinstance(measured, Measured):
        raise ProtocolError("the bare loop returned something other than a measurement")
    return measured


def loop(job: Job, task: Measure, shard: Shard) -> Measured:
    """Train for `task.device_seconds` seconds of this machine's clock, the plain way."""
    torch.manual_seed(job.seed)
    model = build_model(ShippedCode(job.model, job.source, job.arguments)).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=job.learning_rate, momentum=job.momentum)
    generator, steps, start = np.random.default_rng(job.seed), 0, time.perf_counter()
    while steps <= task.warm_up_steps or time.perf_counter() - start < task.device_seconds:
        if steps == task.warm_up_steps:
            start = time.perf_counter()
        index = generator.integers(0, shard.samples, task.batch_size)
        images = torch.from_numpy(shard.fields[IMAGE][index])
        inputs = images.float().mul_(job.input_scale) if images.dtype == torch.uint8 else images
        loss = functional.cross_entropy(model(inputs), torch.from_numpy(shard.fields[LABEL][index]))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        loss.item()
        steps += 1
    elapsed_seconds = time.perf_counter() - start
    steps -= task.warm_up_steps
    return Measured(steps * task.batch_size, steps, PhaseSeconds(), elapsed_seconds)


def main() -> None:
    """Read a job and a measure frame from standard input, run, write the measured frame to standard output."""
    torch.set_num_threads(1)
    job, task = (decode(sys.stdin.buffer.read(_length())) for _ in range(2))
    if not isinstance(job, Job) or not isinstance(task, Measure):
        raise ProtocolError("the bare loop wants a job and a measure frame")
    sys.stdout.buffer.write(encode(loop(job, task, open_shard(Path(sys.argv[1])))))


def _length() -> int:
    return int.from_bytes(sys.stdin.buffer.read(_LENGTH_BYTES), "big")


if __name__ == "__main__":
    main()
