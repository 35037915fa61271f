"""The server of the published experiments, for one model and one end of the host's band."""

from __future__ import annotations

from functools import cache

import torch

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles.calibration import CalibrationStore
from csd_lab.reproduce.hypertune_result import ModelInput
from csd_lab.simulate.nodes import Nodes, make_nodes
from firmware_agent.common.models import ZOO, ModelSpec, build_model
from host.config.sync_section import SyncSection, TuningSection
from host.core.model_facts import Load, inspect_load
from host.policies.batching.device_speeds import RatioName

MODELS = ("mobilenet_v2", "squeezenet", "inception_v3", "nasnet_mobile")
DRIVES, DRIVE, HOST_PROFILE = 36, "newport", "xeon-4108"
SERVER = f"{HOST_PROFILE} with {DRIVES} {DRIVE} drives"
# The host's batch is a drive's times the ratio.
LARGEST_BATCH = 32768
TUNING = TuningSection(largest_batch=LARGEST_BATCH)


def server_config() -> ArrayConfig:
    """Return the array: the host trains, all drives are there."""
    return ArrayConfig.model_validate(
        {
            "name": "reproduce",
            "engine": "native",
            "host": {"profile": HOST_PROFILE, "trains": True},
            "devices": [{"profile": DRIVE, "count": DRIVES}],
        }
    )


@cache
def model_load(model: str) -> Load:
    """Return the bytes of a model of the zoo at its full size."""
    return inspect_load(ModelSpec(model), ZOO[model].input_shape)


def make_server(model: str, store: CalibrationStore, ratio: RatioName) -> Nodes:
    """Return the server's nodes.

    No more records are computed at once than calibration has measured, on a drive and on the host; larger batches
    accumulate gradients. So no figure rests on an extrapolated table.

    Raises:
        CalibrationError: a table is missing or damaged.
    """
    load = model_load(model)
    at_once = store.require(load.spec, load.shape, DRIVE).batches[-1]
    sync = SyncSection(micro_batch=at_once, tuning=TUNING)
    return make_nodes(server_config(), load, store, sync, ratio)


def describe_input(model: str, store: CalibrationStore) -> ModelInput:
    """Return what a model's figures rest on."""
    load = model_load(model)
    table = store.require(load.spec, load.shape, DRIVE)
    drive = make_server(model, store, "middle").kinds[0]
    at_once = drive.costs.micro_batch
    norms = any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in _modules(model))
    return ModelInput(
        model=model,
        input_shape=list(load.shape),
        measured_batches=table.batches,
        drive_records_per_second=drive.speed.records_per_second(at_once),
        peak_memory_bytes=table.peak_memory_bytes(at_once),
        state_bytes=load.state_bytes,
        record_bytes=load.record_bytes,
        batch_statistics=norms,
    )


def _modules(model: str) -> list[torch.nn.Module]:
    return list(build_model(ModelSpec(model)).modules())
