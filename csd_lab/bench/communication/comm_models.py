"""The models of `bench comm`, for the drives and for the simulation."""

from __future__ import annotations

from pathlib import Path

from csd_emu.perfmodel.overlap.layer_work import Costs, LayerCost, TensorCost
from csd_lab.bench.communication import comm_nets
from firmware_agent.common.models import ModelSpec

MODELS = tuple(comm_nets.NETS)
_FILE = Path(comm_nets.__file__)


def costs_of(model: str, compute_seconds: float) -> Costs:
    """Return what each layer of a model exchanges and computes, `compute_seconds` in all."""
    net = comm_nets.NETS[model]()
    sizes = {name: 4 * parameter.numel() for name, parameter in net.model.named_parameters()}
    return tuple(
        LayerCost(layer, (TensorCost(f"{layer}.weight", sizes[f"{layer}.weight"]),), seconds.forward, seconds.backward)
        for layer, seconds in comm_nets.layer_seconds(net.operations, compute_seconds).items()
    )


def spec_of(model: str, compute_seconds: float = 0.0) -> ModelSpec:
    """Return the model as drives build it, paced to `compute_seconds` per step; unpaced without."""
    arguments: dict[str, int | float | str | bool] = {"name": model, "compute_seconds": compute_seconds}
    return ModelSpec(f"{_FILE.name}:build", _FILE.read_text(encoding="utf-8"), arguments)
