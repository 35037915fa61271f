"""From a request to the situation that a placement is decided in: seconds, memory and link of drives and host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from csd_emu.config.array_file import ArrayConfig, Device
from csd_emu.perfmodel.host_node import host_activity, link_of, storage_of
from csd_emu.perfmodel.overlap.overlapped_step import SLICE_SECONDS
from csd_emu.perfmodel.split.split_problem import (
    DeviceCost,
    DriveMemory,
    HostPlace,
    LayerSplitCost,
    SplitProblem,
)
from csd_emu.perfmodel.step import DriveFigures
from csd_emu.profiles import Profile, get_profile
from csd_emu.profiles.calibration import CalibrationStore, CalibrationTable
from csd_emu.profiles.profile import RATIO_DRIVE
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import CalibrationError
from host.config.sync_section import SyncSection
from host.core.device_time import (
    WALL,
    StepModel,
    gradient_seconds,
    host_model,
    micro_batch_counts,
    table_models,
)
from host.core.layer_time_shares import table_shares
from host.policies.batching.memory_limit import available_bytes
from host.training.host_room import host_room_bytes
from host.training.split.layer_exchange import LayerExchange, inspect_layers
from host.training.split.measure_layers import LayerSeconds, measure
from host.training.split.split_request import PlacementRequest

# What a slice costs beside its bytes where it really crosses: see bench comm, on two cores.
REAL_SLICE_SECONDS = 0.0003


def make_situation(
    request: PlacementRequest, store: CalibrationStore, layers: tuple[LayerSplitCost, ...] | None = None
) -> SplitProblem:
    """Return what a decision rests on.

    Seconds come from calibration tables, the host's from a drive's over its profile's ratio. Both are shared out over
    the layers as the tables' drives measured them, or by arithmetic where a table has no layers. Where the drives'
    seconds are this machine's own, the layers are measured here, now.

    Args:
        request: a job on an array.
        store: the calibration tables.
        layers: the model's, if they are known already.

    Raises:
        CalibrationError: a table is missing or damaged.
        ModelError: the model cannot be built or looked at.
    """
    sync = request.job.sync
    exchange = LayerExchange(buffers=sync.batch_norm != "frozen", double=request.job.chosen_precision == "float64")
    layers = layers or inspect_layers(request.spec, request.shape, exchange)
    nodes = [node for node in request.config.list_nodes() if request.batches[node.name]]
    names = [layer.name for layer in layers]
    drives = _measured(request, nodes) if request.wall else _modelled(request, nodes, store, names)
    return SplitProblem(
        layers=layers,
        drives=tuple(drives),
        host=_host(request, store, names),
        link=link_of(request.config.link, get_profile(request.config.host.profile).at(request.end)),
        sending=request.sending,
        cut_overlaps=request.sending is not None,
        slice_seconds=REAL_SLICE_SECONDS if request.really else SLICE_SECONDS.value,
        block_bytes=request.block_bytes,
        barrier=request.barrier,
        max_host_share=sync.max_host_share,
    )


def _modelled(
    request: PlacementRequest, nodes: Sequence[Device], store: CalibrationStore, names: Sequence[str]
) -> list[DeviceCost]:
    models = table_models(request.config, request.spec, request.shape, store)
    places = []
    for node in nodes:
        if node.name not in models:
            store.require(request.spec, request.shape, node.profile)  # says how to make one
            raise CalibrationError(
                f"placement: how fast {node.name} trains {request.spec.name!r} was never measured on a real "
                f"{node.profile}; run csd-emu calibrate {request.spec.name} --drive {node.name}"
            )
        places.append(_modelled_place(request, node, models[node.name].at(request.end), store, names))
    return places


def _modelled_place(
    request: PlacementRequest, node: Device, model: StepModel, store: CalibrationStore, names: Sequence[str]
) -> DeviceCost:
    batch, local, profile = request.batches[node.name], node.name == HOST, get_profile(node.profile).at(request.end)
    table = store.require(request.spec, request.shape, node.profile)
    sync = request.job.sync
    memory = None if local else _drive_memory(request.config, node, profile, table, sync, batch, request.shard_bytes)
    seconds, shares = gradient_seconds(model, {batch: 1}), table_shares(table, batch, names)
    return DeviceCost(
        device=node.name,
        batch_size=batch,
        forward_seconds=seconds.forward,
        backward_seconds=seconds.backward,
        encode_seconds=seconds.encode,
        read_seconds=_read_seconds(request, node),
        link_bytes_per_second=profile.link_bytes_per_second.value,
        link_latency_seconds=profile.link_latency_seconds.value,
        memory=memory,
        parts_factor=_parts_factor(model, table, memory, batch, sync.micro_batch),
        in_parts=sync.micro_batch is not None and sync.micro_batch < batch,
        local=local,
        layer_shares=shares.weights,
        layer_clock=shares.clock,
        layer_reason=shares.reason,
    )


def _parts_factor(
    model: StepModel, table: CalibrationTable, memory: DriveMemory | None, batch_size: int, micro_batch: int | None
) -> float:
    """Return how many times as long a batch takes in parts that fit with nothing moved, or that the job asks for."""
    at_once = min(batch_size, micro_batch or batch_size)
    while memory is not None and at_once > 1 and table.peak_memory_bytes(at_once) > memory.available_bytes:
        at_once -= 1
    whole = gradient_seconds(model, {batch_size: 1})
    parts = gradient_seconds(model, micro_batch_counts(batch_size, at_once))
    return (parts.forward + parts.backward) / (whole.forward + whole.backward)


def _measured(request: PlacementRequest, nodes: Sequence[Device]) -> list[DeviceCost]:
    """Return the drives as processes of this machine: those with equal batches take as long."""
    seen: dict[int, LayerSeconds] = {}
    places = []
    for node in nodes:
        batch, profile = request.batches[node.name], get_profile(node.profile)
        if batch not in seen:
            seen[batch] = measure(request.spec, request.shape, batch, request.job.chosen_precision)
        forward, backward = seen[batch]
        places.append(
            DeviceCost(
                device=node.name,
                batch_size=batch,
                forward_seconds=sum(forward),
                backward_seconds=sum(backward),
                encode_seconds=0.0,
                read_seconds=_read_seconds(request, node),
                link_bytes_per_second=profile.link_bytes_per_second.value,
                link_latency_seconds=profile.link_latency_seconds.value,
                local=node.name == HOST,
                layer_shares=(forward, backward),
                layer_clock=WALL,
            )
        )
    return places


def _host(request: PlacementRequest, store: CalibrationStore, names: Sequence[str]) -> HostPlace:
    profile, records = get_profile(request.config.host.profile).at(request.end), sum(request.batches.values())
    if request.wall:
        own = measure(request.spec, request.shape, records, request.job.chosen_precision)
        return HostPlace(sum(own[0]), sum(own[1]), host_room_bytes(profile), own, WALL)
    table = store.require(request.spec, request.shape, request.config.host.profile)
    # Layers have the shares that they have on a drive: a run charges the host's part by them.
    shares = table_shares(store.require(request.spec, request.shape, RATIO_DRIVE), records, names)
    seconds = host_model(table, profile).at(request.end).step_seconds(records)
    return HostPlace(
        *(seconds.forward, seconds.backward, host_room_bytes(profile)), shares.weights, shares.clock, shares.reason
    )


def _read_seconds(request: PlacementRequest, node: Device) -> float:
    batch, profile = request.batches[node.name], get_profile(node.profile).at(request.end)
    if node.name == HOST:
        drives = [get_profile(drive.profile).at(request.end) for drive in request.config.list_devices()]
        return host_activity(batch, request.record_bytes, {}, storage_of(profile, drives)).read_seconds
    return float(DriveFigures.of([profile]).read_seconds(np.array([float(batch * request.record_bytes)]))[0])


def _drive_memory(
    config: ArrayConfig,
    device: Device,
    profile: Profile,
    table: CalibrationTable,
    sync: SyncSection,
    batch_size: int,
    shard_bytes: int,
) -> DriveMemory:
    """Return a drive's memory. Records can be computed in parts, but with statistics over all of a step's."""
    least = batch_size if sync.batch_norm == "synchronised" else 1
    return DriveMemory(
        available_bytes=available_bytes(config, device, profile, shard_bytes),
        least_bytes=table.peak_memory_bytes(least),
        least_records=least,
        whole_bytes=table.peak_memory_bytes(batch_size),
    )
