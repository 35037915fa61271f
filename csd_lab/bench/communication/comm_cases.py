"""The cases of `bench comm`, and what the scheduling core says of them: deterministic, on the timeline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from csd_emu.engines.shaping.relay import CHUNK_BYTES
from csd_emu.perfmodel.overlap.layer_work import Costs, exchange_bytes, ideal_step_seconds
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.perfmodel.overlap.steady_steps import steady_step_seconds
from csd_lab.bench.communication.comm_models import MODELS, costs_of
from firmware_agent.common.send_queue import TransferSettings

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
    def link(self) -> SharedLink:
        """The link of the figures on the timeline."""
        return SharedLink(self.bytes_per_second, LATENCY_SECONDS, SLICE_SECONDS, turn_bytes=TURN_BYTES)


CASES = tuple(CommunicationCase(model, ratio) for model in MODELS for ratio in RATIOS)


@dataclass(frozen=True)
class CommunicationOutcome:
    """What a case's step takes, once steps repeat."""

    case: CommunicationCase
    fifo_seconds: float
    priority_seconds: float

    @property
    def gain(self) -> float:
        """FIFO's seconds over those of priority."""
        return self.fifo_seconds / self.priority_seconds

    @property
    def over_lower_bound(self) -> float:
        """Priority's seconds over what no schedule can beat."""
        return self.priority_seconds / ideal_step_seconds(self.case.costs, self.case.bytes_per_second)


def predict(case: CommunicationCase, link: SharedLink) -> CommunicationOutcome:
    """Return what the core says of a case on this link."""
    fifo, priority = (steady_step_seconds(case.costs, link, sending) for sending in (FIFO, PRIORITY))
    return CommunicationOutcome(case, fifo, priority)


def figures() -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return `priority_over_fifo_max` and `_min` over all cases, `over_lower_bound`, and each case's seconds.

    `over_lower_bound` is the largest, over the models, where wire and compute take as long.
    """
    outcomes = [predict(case, case.link) for case in CASES]
    gains = [each.gain for each in outcomes]
    bounds = [each.over_lower_bound for each in outcomes if each.case.ratio == 1]
    found = {
        "priority_over_fifo_max": max(gains),
        "priority_over_fifo_min": min(gains),
        "over_lower_bound": max(bounds),
    }
    samples = [
        {
            "model": each.case.model,
            "wire_over_compute": each.case.ratio,
            "fifo_seconds": each.fifo_seconds,
            "priority_seconds": each.priority_seconds,
            "priority_over_fifo": each.gain,
            "over_lower_bound": each.over_lower_bound,
        }
        for each in outcomes
    ]
    return found, samples
