"""What a placement is decided for: a job on an array, with the batches and the schedule that it begins with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from csd_emu.array import NATIVE, ArrayConfig
from csd_emu.calibration import CalibrationStore
from csd_emu.shape import Shape
from firmware_agent.errors import ConfigurationError
from firmware_agent.models import ModelSpec
from firmware_agent.send_queue import Sending
from host.datasets import load_dataset
from host.device_time import find_models
from host.evaluation import Evaluator
from host.job import JobConfig, load_job
from host.requests import read_array
from host.shards import deal_out
from host.sync.communicating import Communication, choose_communication
from host.sync.optimiser import make_optimiser
from host.tuning.classes import device_classes, speed_tables
from host.tuning.stannis import plan_batches

if TYPE_CHECKING:
    from host.run_request import RunRequest


@dataclass(frozen=True)
class PlacementRequest:
    """A job on an array.

    Attributes:
        config, job, spec, shape: what is trained, where.
        batches: node -> records per step, in participant order.
        record_bytes: of an image with its label.
        shard_bytes: of the largest shard.
        wall: whether the drives' seconds are this machine's own, of which there are no tables.
        sending: how tensors are sent, if that overlaps computing; None if it does not.
        really: whether slices really cross while drives compute, and are not composed as if they did.
        block_bytes: the host's optimiser steps ranges of so many bytes; None for whole tensors.
        barrier: whether it needs the whole gradient first.
    """

    config: ArrayConfig
    job: JobConfig
    spec: ModelSpec
    shape: Shape
    batches: Mapping[str, int]
    record_bytes: int
    shard_bytes: int
    wall: bool
    sending: Sending | None = None
    really: bool = False
    block_bytes: int | None = None
    barrier: bool = False


def of_run(request: RunRequest) -> PlacementRequest:
    """Return what a run's placement is decided for.

    Raises:
        ConfigurationError: the job is not synchronous.
    """
    plan = request.sync
    if plan is None:
        raise ConfigurationError("placement: only in synchronous training do layers move; write mode: sync")
    images, labels = request.dataset.images, request.dataset.labels
    record_bytes = (images.nbytes + labels.nbytes) // len(labels)
    shard_bytes = max(plan.sizes) * record_bytes
    batches = dict(zip(plan.nodes, plan.batches, strict=True))
    wall = NATIVE in request.config.engines and not any(node in request.models for node in plan.nodes)
    return _request(
        request.config, request.job, request.spec, request.evaluator, request.communication,
        batches, record_bytes, shard_bytes, wall, _shape(images.shape),
    )  # fmt: skip


def read_placement(job_path: Path, array_path: Path, store: CalibrationStore) -> PlacementRequest:
    """Read the files. A model that is too large for a drive as a whole is none that is refused here.

    Raises:
        ConfigurationError: a file breaks a rule, or the job is not synchronous.
        CalibrationError: the tuner, or the array's clock, needs a table that is missing.
    """
    config = read_array(array_path)
    job, spec = load_job(job_path)
    if job.mode != "sync":
        raise ConfigurationError(f"{job_path}: mode: layers move in synchronous training alone; write mode: sync")
    dataset, nodes = load_dataset(job.data.source, job.seed), config.list_nodes()
    dealt = deal_out(dataset, job.data.resolved(job.mode), nodes, job.seed)
    shape = _shape(dataset.images.shape)
    models = find_models(config, spec, shape, store)
    evaluator = Evaluator(spec, dataset, job.seed)
    record_bytes = (dataset.images.nbytes + dataset.labels.nbytes) // len(dataset.labels)
    shard_bytes = (max(len(own) for own in dealt.private) + len(dealt.public)) * record_bytes
    wall = NATIVE in config.engines and not any(node.name in models for node in nodes)
    batches = {node.name: job.batch_size for node in nodes}
    if job.tuner != "none":
        classes = device_classes(config, spec, shape, store, job.sync, shard_bytes=shard_bytes)
        planned = plan_batches(list(speed_tables(classes).values()), job.sync.tuning)
        batches = {name: int(batch) for name, batch in zip(classes, planned.batches, strict=True)}
    communication = choose_communication(config, job, models, evaluator)
    return _request(config, job, spec, evaluator, communication, batches, record_bytes, shard_bytes, wall, shape)


def _request(
    config: ArrayConfig,
    job: JobConfig,
    spec: ModelSpec,
    evaluator: Evaluator,
    communication: Communication,
    batches: Mapping[str, int],
    record_bytes: int,
    shard_bytes: int,
    wall: bool,
    shape: Shape,
) -> PlacementRequest:
    optimiser = make_optimiser(job, evaluator.structure(), evaluator.initial_weights())
    barrier = optimiser.needs_all is not None
    return PlacementRequest(
        config=config,
        job=job,
        spec=spec,
        shape=shape,
        batches=batches,
        record_bytes=record_bytes,
        shard_bytes=shard_bytes,
        wall=wall,
        sending=communication.sending(1) if communication.composed else None,
        really=communication.overlap,
        block_bytes=None if barrier else optimiser.block_bytes,
        barrier=barrier,
    )


def _shape(images: tuple[int, ...]) -> Shape:
    _, channels, height, width = images
    return channels, height, width
