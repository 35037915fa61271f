"""What a step takes of memory, as a line in parameters and activations: fitted to a calibration table, else a guess."""

from __future__ import annotations

import os
from collections.abc import Sequence

from csd_emu.array import ArrayConfig, Device
from csd_emu.calibration import CalibrationTable
from csd_emu.placement.costs import LayerPlace, Memory
from csd_emu.profiles import Profile
from host.model_facts import ACTIVATION_COPIES, BASE_BYTES, WEIGHT_COPIES
from host.tuning.classes import RESERVE_BYTES, available_bytes

# What the agent takes with next to no model: digits_cnn's table says 249 MiB (interpreter, torch, gRPC).
AGENT_BYTES = 248 << 20


def drive_memory(
    config: ArrayConfig,
    device: Device,
    profile: Profile,
    table: CalibrationTable,
    layers: Sequence[LayerPlace],
    batch_size: int,
    shard_bytes: int,
) -> Memory:
    """Return a drive's memory: with nothing moved a step takes what the table says of `batch_size`.

    What does not grow with the batch is the agent's own and the parameters'; what does, the activations'. So a cut
    saves the moved parameters' part of the one and the moved activations' part of the other.
    """
    low, high = table.batches[0], table.batches[-1]
    first, last = table.peak_memory_bytes(low), table.peak_memory_bytes(high)
    record = max(0.0, (last - first) / (high - low))
    parameters = sum(layer.pull_bytes for layer in layers)
    activations = sum(layer.activation_bytes for layer in layers)
    grown = record * batch_size if activations else 0.0
    rest = max(0.0, table.peak_memory_bytes(batch_size) - grown)
    fixed = min(rest, float(AGENT_BYTES))
    return Memory(
        available_bytes=available_bytes(config, device, profile, shard_bytes),
        fixed_bytes=fixed if parameters else rest,
        parameter_copies=(rest - fixed) / parameters if parameters else 0.0,
        activation_copies=record / activations if activations else 0.0,
    )


def host_memory(profile: Profile) -> Memory:
    """Return the host's memory: as its profile has it, and no more than this machine, on which the tail really runs.

    What a step takes is a generous guess: weights, gradients, the optimiser's state and copies; activations, their
    gradients and the kernels' workspace.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Memory(
        available_bytes=max(0.0, min(profile.dram_bytes.value, machine) - RESERVE_BYTES),
        fixed_bytes=BASE_BYTES,
        parameter_copies=WEIGHT_COPIES,
        activation_copies=ACTIVATION_COPIES,
    )
