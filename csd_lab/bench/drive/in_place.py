"""A synchronous step on records that lie in the drives: what crosses of them, and how far it is from one process's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from csd_lab.bench.harness import Bench, RunningDrives
from firmware_agent.common.frames.frame_fields import TensorSpec
from firmware_agent.common.frames.session_frames import Hello, Job, Ready, Slice, Tensors, Welcome
from firmware_agent.common.frames.step_frames import OwnRecords, Step, Stepped
from firmware_agent.common.losses.objective import Objective
from firmware_agent.common.models import build_model
from firmware_agent.common.slices import Array
from firmware_agent.common.split.activations import device_number, epoch_order
from firmware_agent.common.wire import AnyFrame, encode, unpack
from host.app.prepare import RunRequest, prepare_in_place, prepare_run
from host.config.resolve import resolve_run
from host.fleet.device_session import DeviceSession

# Records of each drive; the host has a few of its own, on which it evaluates.
_SIZES, _SAMPLE, _WIDTH = (57, 20, 33), 40, 16
_NET = f"""from torch import nn
def net():
    return nn.Sequential(nn.Linear({_WIDTH}, 8), nn.Tanh(), nn.Linear(8, 1))
"""
# Frames of fixed fields, none of which a record fits into.
_PLAIN = Hello, Welcome, Job, Ready, Stepped


@dataclass
class LinkRecording:
    """Everything that crosses one drive's link.

    Attributes:
        session: of the drive.
        frames: both ways.
    """

    session: DeviceSession
    frames: list[AnyFrame] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin, with the hello, before the drive has got a job."""
        self.frames.append(self.session.hello)
        session, inbox = self.session, self.session._inbox
        inbox.put = self._keeping(inbox.put, lambda frames: frames)  # type: ignore[method-assign]
        session._write = self._keeping(session._write, unpack)  # type: ignore[method-assign]

    def _keeping(self, pass_on: Callable[[Any], Any], frames_of: Callable[[Any], Iterable[AnyFrame]]) -> Any:
        async def keep(message: Any) -> Any:
            self.frames.extend(frames_of(message))
            return await pass_on(message)

        return keep


def count_record_bytes(frames: Sequence[AnyFrame], tensors: Sequence[TensorSpec], records: Iterable[bytes]) -> int:
    """Return how many bytes of frames are of records, or name single ones.

    These are: whole frames of any other kind than a step without a cut consists of; tensors that the model does not
    have; indices of records; and the content of a record wherever it stands as it is.

    Args:
        frames: both ways.
        tensors: the model's.
        records: the content of each.
    """
    count = 0
    for frame in frames:
        if isinstance(frame, Tensors):
            count += len(encode(frame)) * any(spec not in tensors for spec in frame.specs)
        elif isinstance(frame, Slice):
            count += len(frame.data) * all(spec.name != frame.tensor for spec in tensors)
        elif isinstance(frame, Step):
            count += 0 if isinstance(frame.records, OwnRecords) else len(frame.records)
        elif not isinstance(frame, _PLAIN):
            count += len(encode(frame))
    crossed = b"".join(bytes(frame.data) if isinstance(frame, Slice) else encode(frame) for frame in frames)
    return count + sum(crossed.count(record) * len(record) for record in records)


def run_in_place(bench: Bench, folder: Path) -> dict[str, float]:
    """Take one step on native drives with unequal numbers of records in place, and return the figures.

    `in_place_record_bytes`: see `count_record_bytes`, of all that crosses from the hello to the end of the step.
    `in_place_gradient_difference`: the gradient's largest difference to one process's, over the largest; float64.
    """
    folder.mkdir()
    shards = _write_files(folder, bench.seed)
    request = prepare_run(resolve_run(folder / "job.yaml", folder / "array.yaml"))

    async def work(drives: RunningDrives) -> tuple[list[LinkRecording], Mapping[str, Array]]:
        links = [LinkRecording(session) for session in drives.sessions]
        told = {each.name: (each.samples, each.manifest_sha256) for each in drives.started.state.devices}
        async with drives.training(prepare_in_place(request, told)) as training:
            await training.run_round()
            return links, {name: array.copy() for name, array in training.weights.items()}

    links, after = bench.on_array(request.array, work)
    tensors = [TensorSpec(name, array.dtype.str, array.shape) for name, array in after.items()]
    contents = [record.tobytes() for shard in shards for record in shard["x"]]
    crossed = sum(count_record_bytes(link.frames, tensors, contents) for link in links)
    return {
        "in_place_record_bytes": float(crossed),
        "in_place_gradient_difference": _difference(request, links, shards, after),
    }


def _write_files(folder: Path, seed: int) -> list[dict[str, Array]]:
    """Write a job, its array and everybody's records; return those of the drives."""
    generator = np.random.default_rng(seed)
    true = generator.standard_normal((_WIDTH, 1)).astype(np.float32)
    sets = list[dict[str, Array]]()
    for size in (*_SIZES, _SAMPLE):
        x = generator.standard_normal((size, _WIDTH)).astype(np.float32)
        sets.append({"x": x, "y": x @ true})
    *shards, sample = sets
    for number, shard in enumerate(shards):
        np.savez(folder / f"own-{number}.npz", x=shard["x"], y=shard["y"])
    np.savez(folder / "sample.npz", x=sample["x"], y=sample["y"])
    (folder / "net.py").write_text(_NET, encoding="utf-8")
    job = {
        **{"model": "net.py:net", "data": {"source": "./sample.npz"}, "mode": "sync", "batch_size": 24, "rounds": 1},
        **{"sync": {"round_steps": 1}, "precision": "float64", "momentum": 0, "learning_rate": 1.0, "seed": seed},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    groups = [{"profile": "newport", "data": str(folder / f"own-{number}.npz")} for number in range(len(shards))]
    array = {"name": "bench-in-place", "engine": "native", "devices": groups}
    (folder / "array.yaml").write_text(yaml.safe_dump(array), encoding="utf-8")
    return shards


def _difference(
    request: RunRequest,
    links: Sequence[LinkRecording],
    shards: Sequence[Mapping[str, Array]],
    after: Mapping[str, Array],
) -> float:
    """Return how far the step's gradient is from that of one process, of the records that the drives have drawn."""
    parts: list[dict[str, Array]] = []
    for link, shard in zip(links, shards, strict=True):
        (drawn,) = (each.records for each in link.frames if isinstance(each, Step))
        assert isinstance(drawn, OwnRecords)
        order = epoch_order(request.job.seed, device_number(link.session.device), drawn.epoch, 0, len(shard["x"]))
        taken = np.concatenate([order[begin : begin + count] for begin, count in drawn.runs])
        parts.append({name: column[taken] for name, column in shard.items()})
    batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return gradient_difference(request, batch, after)


def gradient_difference(request: RunRequest, batch: Mapping[str, Array], after: Mapping[str, Array]) -> float:
    """Return how far one step's gradient is from one process's, the largest difference over the largest value.

    Args:
        request: of a job in float64 that has taken one step of plain SGD, with a learning rate of 1.
        batch: the records of the step.
        after: the weights then.
    """
    torch.manual_seed(request.job.seed)
    alone = build_model(request.spec).train().double()
    objective = Objective.of_spec(request.objective, "float64")
    objective.loss_of(alone(*objective.inputs(batch)), batch).backward()  # type: ignore[no-untyped-call]
    pairs = [
        (parameter.grad.numpy(), parameter.detach().numpy() - after[name])
        for name, parameter in alone.named_parameters()
        if parameter.grad is not None
    ]
    most = max(float(np.abs(gradient).max()) for gradient, _ in pairs)
    return max(float(np.abs(gradient - ours).max()) for gradient, ours in pairs) / most
