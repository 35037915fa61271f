"""A synchronous step under way, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from firmware_agent.common.errors import CsdError, DeviceLost
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Array
from host.core.records import DeviceStep, PlacementRecord, SendingRecord, ServersRecord, StepRecord, node_joules
from host.core.states.peer_servers import DevicePart
from host.core.tuning.batch_tuner import StepCost
from host.training.accounting import StepAccount
from host.training.sync.exchange.activation_exchange import ActivationExchange
from host.training.sync.exchange.gradient_buffer import GradientBuffer
from host.training.sync.exchange.step_exchange import FIFO, DeviceOutcome, StepWork
from host.training.sync.exchange.weight_release import Release
from host.training.sync.stragglers import Expected


@dataclass(frozen=True)
class StepResult:
    """What came of a step.

    Attributes:
        accounted: time and energy; late devices are marked as stragglers.
        loss: mean over the records in the gradient.
        devices: whose gradients went into it.
        late: who was not waited for.
        failed: who returned nothing, and why.
        mixed: whether slices of one of these are in part of the gradient.
        learning_rate: that the optimiser stepped with.
        failed_probes: who returned nothing of a probe, which nobody waited for, and why.
        placement: what the host had of the model; None if nothing is moved.
        servers: what other servers had to do with it; None if there is none.
        not_finite: a tensor of the host's part whose gradient was not finite, so that no tensor of it was stepped.
    """

    accounted: StepAccount
    loss: float
    devices: list[DeviceStep]
    late: list[str]
    failed: dict[str, CsdError]
    mixed: bool
    learning_rate: float
    failed_probes: Mapping[str, CsdError] = field(default_factory=dict)
    placement: PlacementRecord | None = None
    servers: ServersRecord | None = None
    not_finite: str = ""

    def record(
        self,
        number: int,
        possible_records_per_second: float,
        disturbed: dict[str, int],
        sending: SendingRecord | None,
        wall_seconds: float,
    ) -> StepRecord:
        """Return what is written down of the step.

        Args:
            number: its own, in the run.
            possible_records_per_second: by the tuner's belief, undisturbed.
            disturbed: device -> weight of the competing work in it.
            sending: by which settings gradients left.
            wall_seconds: since the step before.
        """
        gone = [device for device, why in self.failed_probes.items() if isinstance(why, DeviceLost)]
        return StepRecord(
            step=number,
            loss=self.loss,
            learning_rate=self.learning_rate,
            array_seconds=self.accounted.array_seconds,
            possible_records_per_second=possible_records_per_second,
            devices=self.devices,
            late=self.late,
            lost=[*self.failed, *gone],
            mixed=self.mixed,
            disturbed=disturbed,
            sending=sending,
            wall_seconds=wall_seconds,
            placement=self.placement,
            servers=self.servers,
        )

    @property
    def returned(self) -> list[str]:
        """Whose gradients went into it, on this server."""
        return [part.device for part in self.devices]

    @property
    def took_part(self) -> list[str]:
        """Whose gradients went into it, on all servers."""
        return self.returned

    @property
    def observed(self) -> list[DevicePart]:
        """What each device computed, whether or not it counts, on all servers."""
        parts = self.accounted.devices
        return [DevicePart(part.device, part.samples, part.device_seconds.total) for part in parts]

    @property
    def cost(self) -> StepCost:
        """What the step cost all that took part, for whoever chooses its devices."""
        return StepCost(
            records={part.device: part.batch_size for part in self.devices},
            compute_seconds={part.device: part.compute_seconds for part in self.devices},
            array_seconds=self.accounted.array_seconds,
            joules=step_joules(self.accounted),
            missing=frozenset((*self.late, *self.failed)),
        )


@dataclass
class Underway:
    """A step that has begun.

    Attributes:
        number: its number in the run.
        works: one per device that takes part, in participant order.
        records: device -> how many it computes.
        learning_rate: that of a step with so many records.
        rate: that of this one, unless devices are late.
        expected: device -> seconds that its part should take.
        gathering: its gradients.
        whole: the gradient, where the optimiser needs all of it.
        outcomes: of works, then of probes.
        release: which of the weights it has stepped.
        sending: its settings.
        crossings: what crosses the cut of the model; None if it is whole.
        tail_ready: set when the host's part of the model has what this step makes of it.
        tail_step: what steps that part, once it has begun.
        not_finite: see `StepResult`.
    """

    number: int
    works: Sequence[StepWork]
    records: Mapping[str, int]
    learning_rate: Callable[[int], float]
    rate: float
    expected: Expected | None
    gathering: GradientBuffer
    whole: dict[str, Array]
    outcomes: asyncio.Future[list[DeviceOutcome]]
    release: Release
    sending: TransferSettings = FIFO
    crossings: ActivationExchange | None = None
    tail_ready: asyncio.Event = field(default_factory=asyncio.Event)
    tail_step: asyncio.Task[None] | None = None
    not_finite: str = ""


def step_joules(accounted: StepAccount) -> dict[str, float]:
    """Return what each node drew in a step, in joules."""
    joules = node_joules(accounted.devices, accounted.energy_joules)
    return {node: sum(components.values()) for node, components in joules.items()}


def failed_outcomes(outcomes: Sequence[DeviceOutcome]) -> dict[str, CsdError]:
    """Return who returned nothing, and why."""
    return {outcome.device: outcome.error for outcome in outcomes if outcome.error is not None}
