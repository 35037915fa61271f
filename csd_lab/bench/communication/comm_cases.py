"""The models and cases of `bench comm`, and what the scheduling core says of them: deterministic, on the timeline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csd_emu.engines.shaping.relay import CHUNK_BYTES
from csd_emu.perfmodel.overlap.layer_work import Costs, LayerCost, TensorCost, exchange_bytes
from csd_lab.bench.communication import comm_nets
from csd_lab.simulate.turn_simulation import TurnLink, ideal_step_seconds, step_seconds
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.shipped_code import ShippedCode

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


def spec_of(model: str, compute_seconds: float = 0.0) -> ShippedCode:
    """Return the model as drives build it, paced to `compute_seconds` per step; unpaced without."""
    arguments: dict[str, int | float | str | bool] = {"name": model, "compute_seconds": compute_seconds}
    return ShippedCode(f"{_FILE.name}:build", _FILE.read_text(encoding="utf-8"), arguments)


DRIVES = 3
# Seconds of all bytes of one direction on the shared link, over seconds that a drive computes.
RATIOS = (0.25, 1.0, 4.0)
# Seconds that a drive computes where the wire takes as long.
COMPUTE_SECONDS = 0.8
# Of a message through the bench's relay, and what a slice costs beside its bytes (encoding, checksum, TLS, system calls
# and wake-ups at both ends): what traces of slices on two cores show, rounded; assumed on other machines.
LATENCY_SECONDS, SLICE_SECONDS = 0.0005, 0.0003
# The relay's: it serves its connections in turns.
TURN_BYTES = CHUNK_BYTES
FIFO = TransferSettings()
# The models have 2.1 MB: 32 slices and more, and the least credit with which one is under way while the one before is
# acknowledged. Not searched for: one setting for all cases.
PRIORITY = TransferSettings("priority", slice_bytes=32 << 10, credit_bytes=128 << 10)


@dataclass(frozen=True)
class CommunicationCase:
    """A model on three drives that share a link.

    Attributes:
        model: its name.
        ratio: seconds on the wire over seconds of computing.
    """

    model: str
    ratio: float

    def __str__(self) -> str:
        return f"{self.model}, wire/compute {self.ratio:g}"

    @property
    def compute_seconds(self) -> float:
        """Of a drive's step: such that the wire is not so fast that the machine's processors are what is measured.

        Two cores encode, relay and step some 400 slices in a step. With a fixed time the link of the smallest ratio
        would have 16 times the bandwidth of the largest one's.
        """
        return COMPUTE_SECONDS / math.sqrt(self.ratio)

    @property
    def costs(self) -> list[Costs]:
        """Of each drive."""
        return [costs_of(self.model, self.compute_seconds)] * DRIVES

    @property
    def bytes_per_second(self) -> float:
        """The link's bandwidth, each way."""
        return sum(map(exchange_bytes, self.costs)) / (self.compute_seconds * self.ratio)

    @property
    def link(self) -> TurnLink:
        """The link of the figures on the timeline."""
        return TurnLink(self.bytes_per_second, LATENCY_SECONDS, SLICE_SECONDS, turn_bytes=TURN_BYTES)


CASES = tuple(CommunicationCase(model, ratio) for model in MODELS for ratio in RATIOS)


def predict(case: CommunicationCase) -> dict[str, Any]:
    """Return what the core says of a case, as a sample: what a step takes, once steps repeat.

    `priority_over_fifo` are FIFO's seconds over those of priority, `over_lower_bound` priority's over what no schedule
    can beat.
    """
    fifo, priority = (step_seconds(case.costs, case.link, sending) for sending in (FIFO, PRIORITY))
    return {
        "model": case.model,
        "wire_over_compute": case.ratio,
        "fifo_seconds": fifo,
        "priority_seconds": priority,
        "priority_over_fifo": fifo / priority,
        "over_lower_bound": priority / ideal_step_seconds(case.costs, case.bytes_per_second),
    }


def figures() -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return `priority_over_fifo_max` and `_min` over all cases, `over_lower_bound`, and each case's seconds.

    `over_lower_bound` is the largest, over the models, where wire and compute take as long.
    """
    samples = [predict(case) for case in CASES]
    gains = [sample["priority_over_fifo"] for sample in samples]
    bounds = [sample["over_lower_bound"] for sample in samples if sample["wire_over_compute"] == 1]
    found = {
        "priority_over_fifo_max": max(gains),
        "priority_over_fifo_min": min(gains),
        "over_lower_bound": max(bounds),
    }
    return found, samples
