"""Checkpoints: what a resumed run needs, in one file that is either whole or not there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles.core_sharing import core_model_constants
from firmware_agent.common.errors import CheckpointError
from firmware_agent.common.slices import Array
from firmware_agent.common.units import format_bytes
from host.config.job_file import JobConfig
from host.core.owned_files import write_whole
from host.core.states.training_state import TrainingState, number_or_nan, split_tensors

FORMAT = 1
_REMEDY = "restore the file from a copy, or remove it to begin again from the first round"
# What may change between a run and its resumption: nothing here moves a weight or a device second. What the planner has
# decided stands in the checkpoint; if it has not yet, it begins again, perhaps with other limits.
_FREE_JOB_KEYS = {"metrics", "rounds", "target", "checkpoint", "watchdog", "planner", "on_failure", "name", "track"}
# The weights count by their content, which is among the figures.
_FREE_JOB_KEYS |= {"initial_weights"}
_FREE_ARRAY_KEYS = {"hypervisors", "spread", "memory", "samplers", "calibrate"}
_FREE_HOST_KEYS = {"address", "port", "metrics_port", "names", "power_cap"}


class Header(msgspec.Struct, frozen=True):
    """What a checkpoint says of itself, beside its tensors."""

    format: int
    job_sha256: str
    round: int
    accuracy: float | None
    array_seconds: float
    wall_seconds: float
    content_sha256: str = ""
    progress: dict[str, Any] = {}


@dataclass(frozen=True)
class Checkpoint:
    """A training's state, and the wall seconds that the run had taken."""

    state: TrainingState
    wall_seconds: float


def job_sha256(array: ArrayConfig, job: JobConfig, source: str | None, figures: Any) -> str:
    """Return the hash of everything that decides a run's trajectory.

    Left out is what may change before a run is resumed: its name, trackers, metrics, rounds, target, checkpoints,
    watchdog, planner, what a failure of the user's code does, ports, where virtual machines run, how much DRAM they
    have and how many of them count steps.

    Args:
        array: the devices.
        job: what they train.
        source: text of the user's model file, if there is one.
        figures: on which device seconds rest, such as profiles and calibration tables; anything that msgspec encodes.
    """
    devices = array.model_dump(mode="json", exclude=_FREE_ARRAY_KEYS | {"host"})
    devices |= core_model_constants(array.core_model)
    host = array.host.model_dump(mode="json", exclude=_FREE_HOST_KEYS)
    if not array.image.packages:
        del devices["image"]
    # As a checkpoint was written before there were these keys: such a run goes on as it would have.
    if array.core_model == ArrayConfig.model_fields["core_model"].default:
        del devices["core_model"]
    excluded: dict[str, Any] = dict.fromkeys(_FREE_JOB_KEYS, True)
    if job.communication == type(job.communication)():
        excluded["communication"] = True
    elif job.communication.predictor == "model":
        excluded["communication"] = {"predictor"}
    later = ["loss", "client", "optimizer", "schedule", "clip_norm", "precision", "freeze", "collate", "augment"]
    excluded |= {key: True for key in [*later, "host_io"] if not getattr(job, key)}
    unset = {key for key, value in job.data.partition if key != "dirichlet" and not value}
    excluded["data"] = {"partition": unset} | ({"input": True} if job.data.input is None else {})
    if getattr(job.strategy, "update_norm", None) is None:
        excluded["strategy"] = {"update_norm"}
    excluded["sync"] = ({"max_host_share": True} if job.sync.max_host_share == 1 else {}) | (
        {"tuning": {"objective"}} if job.sync.tuning.objective == "rate" else {}
    )
    content = job.model_dump(mode="json", exclude=excluded)
    for former, key in job.sync.former_keys.items():
        content["sync"][former] = content["sync"].pop(key)
    encoded = msgspec.json.encode([devices, host, content, source, figures], order="sorted")
    # Bands move no second, and a profile's core none but by its tables.
    unmoved = rb'"core":\{("\w+":\{[^{}]*\},?)*\},|"band":(null|\{[^{}]*\}),|"band_end":null,'
    encoded = re.sub(unmoved, b"", encoded)
    if job.host_io is None:  # nor does its flash, unless it serves a host
        encoded = re.sub(rb'"flash":\{("\w+":\{([^{}]|\{[^{}]*\})*\},?)*\},', b"", encoded)
    # Nor do times of a table's layers: where layers are is among the figures by itself.
    times = rb'"layers":\{"layers":\[(\[[^\[\]]*\],?)*\],"passes":\d+,"watched":\{[^{}]*\}\},'
    encoded = re.sub(times, b"", encoded)
    if "core_model" not in devices:  # then nothing rests on this figure, which profiles had not either
        encoded = re.sub(rb'"dram_bytes_per_second":(null|\{[^{}]*\}),', b"", encoded)
    return hashlib.sha256(encoded).hexdigest()


def save_checkpoint(path: Path, checkpoint: Checkpoint, job: str) -> None:
    """Write a checkpoint in place of the one before, in one step: a crash at any moment leaves one of both.

    Args:
        path: the file.
        checkpoint: what to write.
        job: hash of the job (see `job_sha256`).

    Raises:
        EnvironmentUnfit: it cannot be written, for example because the disk is full. The checkpoint before is intact.
    """
    state = checkpoint.state
    tensors = {
        name: np.asarray(array, np.dtype(array.dtype).newbyteorder("<"), order="C")
        for name, array in state.tensors().items()
    }
    header = Header(
        *(FORMAT, job, state.round, state.accuracy, state.array_seconds, checkpoint.wall_seconds),
        progress=dict(state.progress),
    )
    header = msgspec.structs.replace(header, content_sha256=_digest(header, tensors))
    content = save(tensors, {"checkpoint": msgspec.json.encode(header).decode()})
    remedy = (
        f"it needs {format_bytes(len(content))} beside the one before, which is intact: free space, then go on with "
        f"csd-emu run --resume {path.parent}"
    )
    write_whole(path, content, remedy, f"the checkpoint of round {state.round}")


def load_checkpoint(path: Path, job: str) -> Checkpoint | None:
    """Return the checkpoint at `path`, or None if there is none.

    Raises:
        CheckpointError: it is damaged, of another job than `job` (see `job_sha256`), or of a newer csd-emu.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, "np") as file:
            header = _read_header(path, (file.metadata() or {}).get("checkpoint", ""))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, msgspec.MsgspecError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: is cut short or damaged ({error}); {_REMEDY}") from error
    if _digest(header, tensors) != header.content_sha256:
        raise CheckpointError(f"{path}: is damaged, its content does not match its sha256; {_REMEDY}")
    if header.job_sha256 != job:
        raise CheckpointError(
            f"{path}: is of another job than lies beside it: job, array, model file, or the figures of profiles and "
            "calibration were changed; undo that (only rounds, target, checkpoint, watchdog, planner, ports, "
            "hypervisors, spread and memory may change)"
        )
    (weights, strategy, service), accuracy = split_tensors(tensors), number_or_nan(header.accuracy)
    told = header.round, accuracy, header.array_seconds
    state = TrainingState(*told, weights, strategy, header.progress, service)
    return Checkpoint(state, header.wall_seconds)


def _read_header(path: Path, text: str) -> Header:
    fields: Any = msgspec.json.decode(text)
    version = fields.get("format") if isinstance(fields, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise CheckpointError(f"{path}: has format {version}, this csd-emu reads {FORMAT}; upgrade csd-emu")
    return msgspec.convert(fields, Header)


def _digest(header: Header, tensors: Mapping[str, Array]) -> str:
    """Return the sha256 of the header, without its own hash, and of every tensor with its name, type and shape."""
    digest = hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(header, content_sha256="")))
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(msgspec.json.encode([name, array.dtype.str, array.shape]))
        digest.update(array.tobytes())
    return digest.hexdigest()
