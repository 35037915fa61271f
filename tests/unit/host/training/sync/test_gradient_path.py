"""Source files that name a gradient in a local, from its completion in the drive to the application of the sum."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.shard import Shard
from firmware_agent.training import device_steps, step_sender
from host.policies.transfer.transfer_tuner import FixedSending
from host.training.transfer_policy import UNSLICED, TransferPolicy
from tests.support.fakes import JOB, random_shard
from tests.support.pipes import ModelEvaluator, PipeDrive
from tests.support.sync import SyncRun

ROOT = Path(__file__).resolve().parents[5]
PACKAGES = ("firmware_agent", "csd_emu", "host")
STEPS = 2
# In the order in which they have the gradient first: those that hand it on, and those that compute with its bytes.
HAND_ON = [
    "firmware_agent/training/step_sender.py",
    "firmware_agent/host_session.py",
    "host/fleet/device_session.py",
    "host/training/sync/exchange/gradient_buffer.py",
]
COMPUTE = [
    "firmware_agent/common/slices.py",
    "firmware_agent/common/wire.py",
    "host/core/tensor_sums.py",
    "host/training/host_optimiser.py",
]
# The gradient of the weight is that of no loss: its first elements are whole numbers, others in each pass.
SOURCE = """
import torch
from torch import nn

class Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, passes):
        ctx.passes, ctx.shape = passes, weight.shape
        return weight.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.passes.append(None)
        return len(ctx.passes) * torch.arange(1.0, 1.0 + ctx.shape.numel()).view(ctx.shape), None

class build(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.passes = nn.Linear(64, 10), []

    def forward(self, images):
        return nn.functional.linear(images.flatten(1), Mark.apply(self.out.weight, self.passes), self.out.bias)
"""
FRAME = msgspec.structs.replace(JOB, model="net.py:build", source=SOURCE)
# Of the last step: of those before, the memory is used again.
MARK = (STEPS * np.arange(1, 9, dtype=np.float32)).tobytes()


class GradientTrace:
    """Notes, of all threads, the project's files in which a function has the marked gradient.

    A function has it that is given it, returns it, or has it in a local variable, as an array or as bytes, encoded or
    not; and one that torch calls with a parameter whose gradient is complete.

    Attributes:
        files: relative to the repository, in the order in which they had it first.
    """

    def __init__(self) -> None:
        self.files: dict[str, None] = {}

    @contextmanager
    def of_threads(self) -> Iterator[GradientTrace]:
        """Trace threads that begin in the context; this one from `begin_here` on."""
        threading.setprofile(self._look)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    def begin_here(self) -> None:
        """Trace this thread, too."""
        sys.setprofile(self._look)

    def _look(self, frame: FrameType, event: str, result: object) -> None:
        if (
            event not in ("call", "return")
            or (name := project_file(frame.f_code.co_filename)) is None
            or name in self.files
        ):
            return
        values = [*frame.f_locals.values(), result]
        hooked = event == "call" and frame.f_back is not None and project_file(frame.f_back.f_code.co_filename) is None
        if any(map(has_mark, values)) or (hooked and any(map(is_complete, values))):
            self.files[name] = None


@functools.cache
def project_file(filename: str) -> str | None:
    """Return the path in the repository of a file of the product; None of any other."""
    path = Path(filename)
    if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in PACKAGES:
        return None
    return path.relative_to(ROOT).as_posix()


def has_mark(value: object, depth: int = 2) -> bool:
    """Whether a value, or what it is made of, has the bytes of the marked gradient."""
    if isinstance(value, bytes | bytearray | memoryview | np.ndarray):
        return MARK in (value.tobytes() if isinstance(value, np.ndarray) else bytes(value))
    if isinstance(value, torch.Tensor):
        return has_mark(value.detach().numpy())
    if not depth:
        return False
    if isinstance(value, msgspec.Struct):
        return any(has_mark(getattr(value, name), depth - 1) for name in value.__struct_fields__)
    if isinstance(value, Mapping):
        return any(has_mark(each, depth - 1) for each in list(value.values()))
    return isinstance(value, list | tuple) and any(has_mark(each, depth - 1) for each in list(value))


def is_complete(value: object) -> bool:
    """Whether a value is a parameter that has the marked gradient."""
    return isinstance(value, torch.nn.Parameter) and value.grad is not None and has_mark(value.grad)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return random_shard(tmp_path_factory.mktemp("shard"), 20)


async def run_traced(shard: Shard, policy: TransferPolicy, sync: Mapping[str, Any]) -> list[str]:
    """Return the files that name the gradient in the last of a few steps of two drives."""
    with GradientTrace().of_threads() as trace:
        drives = [PipeDrive(f"csd-{number:02d}", shard) for number in range(2)]
        run = SyncRun(
            *drives, records=20, evaluator=ModelEvaluator(FRAME), frame=FRAME, batch_size=5, learning_rate=1e-6,
            communication=policy, sync={"round_steps": STEPS, **sync},
        )  # fmt: skip
        trace.begin_here()
        try:
            (done,) = await run.run()
        finally:
            for drive in drives:
                await asyncio.to_thread(drive.end)
    assert [len(step.devices) for step in done.steps] == [2] * STEPS, run.events
    return list(trace.files)


SLICED = TransferPolicy(FixedSending(TransferSettings("priority", 1000, 4000)), overlap=True)


@pytest.mark.parametrize("sync", [{}, {"clip_norm": 1e9}], ids=["by block", "all at once"])
@pytest.mark.parametrize("policy", [UNSLICED, SLICED], ids=["whole tensors", "slices that overlap"])
def test_a_gradient_crosses_these_files_and_no_other(
    shard: Shard, policy: TransferPolicy, sync: Mapping[str, Any]
) -> None:
    files = asyncio.run(run_traced(shard, policy, sync))
    if policy is SLICED:  # whose threads and loops take turns as they like
        assert sorted(files) == sorted(HAND_ON + COMPUTE)
        assert (files[0], files[-1]) == (HAND_ON[0], COMPUTE[-1])
        return
    assert [name for name in files if name not in COMPUTE] == HAND_ON
    assert [name for name in files if name in COMPUTE] == COMPUTE


def test_another_file_that_has_the_gradient_is_seen(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    take = step_sender.take_gradient

    def detour(parameter: torch.nn.Parameter) -> Any:
        return take(parameter)

    code = detour.__code__.replace(co_filename=str(ROOT / "firmware_agent/clock.py"))
    longer = FunctionType(code, globals(), closure=detour.__closure__)
    monkeypatch.setattr(device_steps, "take_gradient", longer)
    files = asyncio.run(run_traced(shard, SLICED, {}))
    assert [name for name in files if name not in (*HAND_ON, *COMPUTE)] == ["firmware_agent/clock.py"]
