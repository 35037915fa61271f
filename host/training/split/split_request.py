"""Request of a placement: a job on an array, with the batches and the schedule that it begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from csd_emu.config.array_file import MAX_MEMORY_BYTES, ArrayConfig
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.profiles.profile import RATIO_DRIVE, End
from csd_emu.util.record_shape import Shape
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.shipped_code import ShippedCode
from host.config.job_file import JobConfig
from host.core.layer_time_shares import step_shares
from host.core.model_facts import inspect_load
from host.policies.batching.client_layers import WHOLE, Front
from host.policies.batching.device_speeds import device_classes
from host.training.first_batches import first_batches, step_overhead
from host.training.host_optimiser import make_optimiser
from host.training.job_inputs import JobInputs
from host.training.split.split_model import place_model
from host.training.transfer_policy import TransferPolicy


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
        batches_for: the layer that the host begins with -> the batches that a run with this cut begins with; None if
            these are always `batches`.
        end: of the bands of the profiles' figures at which all stand; None for the figures themselves.
    """

    config: ArrayConfig
    job: JobConfig
    spec: ShippedCode
    shape: Shape
    batches: Mapping[str, int]
    record_bytes: int
    shard_bytes: int
    wall: bool
    sending: TransferSettings | None = None
    really: bool = False
    block_bytes: int | None = None
    barrier: bool = False
    batches_for: Callable[[str], Mapping[str, int]] | None = None
    end: End | None = None


def of_run(request: JobInputs, communication: TransferPolicy, store: CalibrationStore) -> PlacementRequest:
    """Return what a run's placement is decided for.

    Args:
        request: a synchronous job, with its data and its model.
        communication: how its steps are sent.
        store: the calibration tables.

    Raises:
        ConfigurationError: the job is not synchronous.
        CalibrationError: the tuner needs a table that is missing.
    """
    config, job, spec, evaluator = request.config, request.job, request.spec, request.evaluator
    shape, record_bytes = request.shape, request.record_bytes
    if job.mode != "sync":
        raise ConfigurationError("placement: layers move in synchronous training alone; write mode: sync")
    shard_bytes = request.records.shard_bytes
    optimiser = make_optimiser(job, evaluator.structure(), evaluator.initial_weights(), request.optimizer)
    barrier = optimiser.needs_all is not None
    shares = step_shares(store.find(spec, shape, RATIO_DRIVE), job.batch_size, evaluator)

    def batches_for(layer: str) -> dict[str, int]:
        front = place_model(evaluator, layer, job.chosen_precision, shares).front
        return _planned(config, job, spec, shape, store, shard_bytes, front)

    return PlacementRequest(
        config=config,
        job=job,
        spec=spec,
        shape=shape,
        batches=_planned(config, job, spec, shape, store, shard_bytes),
        record_bytes=record_bytes,
        shard_bytes=shard_bytes,
        wall=request.wall,
        sending=communication.tuner.sending(1) if communication.composed else None,
        really=communication.overlap,
        block_bytes=None if barrier else optimiser.block_bytes,
        barrier=barrier,
        batches_for=None if job.tuner == "none" else batches_for,
    )


def _planned(
    config: ArrayConfig,
    job: JobConfig,
    spec: ShippedCode,
    shape: Shape,
    store: CalibrationStore,
    shard_bytes: int,
    front: Front = WHOLE,
) -> dict[str, int]:
    """Return node -> records per step to begin with, if the nodes have `front` of the model.

    Where a tuner chooses, these are STANNIS's, as `host.training.sync_plan.make_plan` has them. A whole model that
    does not fit gets those of drives with as much memory as there can be: what of it fits is for the placement to say.
    """
    nodes = config.list_nodes()
    if job.tuner == "none":
        return {node.name: job.batch_size for node in nodes}
    try:
        classes = device_classes(config, store.of(spec, shape), job.sync, shard_bytes=shard_bytes, front=front)
    except ConfigurationError:
        if front != WHOLE:
            raise
        roomy = config.model_copy(update={"memory": float(MAX_MEMORY_BYTES)})
        classes = device_classes(roomy, store.of(spec, shape), job.sync, shard_bytes=shard_bytes)
    overhead_at = step_overhead(
        config, inspect_load(spec, shape, job.freeze), front, store.find(spec, shape, config.host.profile)
    )
    return dict(zip(classes, first_batches(config, classes, job.sync.tuning, overhead_at, front).tolist(), strict=True))
