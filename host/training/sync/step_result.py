"""What came of a synchronous step: what devices report, as time and energy of the array, and who was too late."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from csd_emu.perfmodel.host_node import reduce_seconds
from csd_emu.perfmodel.timeline import Crossed
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import CsdError, DeviceLost
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Trained
from firmware_agent.common.send_queue import TransferSettings
from host.core.device_time import gradient_seconds, micro_batch_counts
from host.core.records import (
    DeviceRound,
    DeviceStep,
    PlacementRecord,
    SendingRecord,
    ServersRecord,
    StepRecord,
    node_joules,
)
from host.core.states.peer_servers import DevicePart
from host.core.tuning.batch_tuner import StepCost
from host.training.accounting import IN_TIME, Accountant, DeviceReport, Lateness, StepAccount
from host.training.sync.exchange.step_extension import DeviceOutcome
from host.training.sync.stragglers import DeviceProgress, give_up_seconds
from host.training.sync_plan import SyncPlan


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
        accounted = self.accounted
        return [DevicePart(part.device, part.samples, work_seconds(accounted, part)) for part in accounted.devices]

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


@dataclass(frozen=True)
class StepReport:
    """What devices reported of a step, before anything of it counts.

    Attributes:
        outcomes: of the devices that took part.
        beside: of those that were watched.
        late: who is not waited for.
        accounted: time and energy.
        crossed: what crossed the cut of the model; None if it is whole.
    """

    outcomes: Sequence[DeviceOutcome]
    beside: Sequence[DeviceOutcome]
    late: list[str]
    accounted: StepAccount
    crossed: Crossed | None

    @property
    def failed(self) -> dict[str, CsdError]:
        """Who of those who took part returned nothing, and why."""
        return failed_outcomes(self.outcomes)

    @property
    def returned(self) -> bool:
        """Whether anyone of them returned anything."""
        return len(self.failed) < len(self.outcomes)


def step_joules(accounted: StepAccount) -> dict[str, float]:
    """Return what each node drew in a step, in joules."""
    joules = node_joules(accounted.devices, accounted.energy_joules)
    return {node: sum(components.values()) for node, components in joules.items()}


def work_seconds(accounted: StepAccount, part: DeviceRound) -> float:
    """Return how long a device computed, and waited for flash that served its host."""
    return part.device_seconds.total + accounted.waits.get(part.device, 0.0)


def failed_outcomes(outcomes: Sequence[DeviceOutcome]) -> dict[str, CsdError]:
    """Return who returned nothing, and why."""
    return {outcome.device: outcome.error for outcome in outcomes if outcome.error is not None}


Expected = Mapping[str, float]
"""Device -> compute seconds that its part of a step should take, as it is believed to be now."""


class StepAccounting:
    """Accounts the steps of a run.

    Attributes:
        accountant: composes time and energy.
        waits_for_all: whether nobody can be late.
    """

    def __init__(self, accountant: Accountant, plan: SyncPlan, gradient_bytes: int) -> None:
        """Account steps of `plan`, in which each device returns so many bytes."""
        self.accountant, self._gradient_bytes = accountant, gradient_bytes
        self._models, self._straggler_factor = plan.expected, plan.job.sync.straggler_factor
        self.waits_for_all = self._straggler_factor is None

    def report(
        self,
        outcomes: Sequence[DeviceOutcome],
        beside: Sequence[DeviceOutcome],
        expected: Expected | None,
        sending: TransferSettings,
        crossed: Callable[[Collection[str]], Crossed | None] | None,
    ) -> StepReport:
        """Return what came of a step, and who was late in it.

        Args:
            outcomes: of the devices that took part.
            beside: of those that were watched.
            expected: how long each should take; None if that is not known.
            sending: the step's settings.
            crossed: returns what crossed the cut of the model, given who was late; None if the model is whole.
        """
        limit, late = self._late(outcomes, expected)
        over = None if crossed is None else crossed(late)
        return StepReport(outcomes, beside, late, self._account(outcomes, beside, (limit, late), sending, over), over)

    def _late(self, outcomes: Sequence[DeviceOutcome], expected: Expected | None) -> tuple[float, list[str]]:
        """Return after how many seconds of computing devices were given up, and which."""
        returned = returned_reports(outcomes)
        if self._straggler_factor is None or not expected or not returned:
            return 0.0, []
        parts = [
            DeviceProgress(
                part.device, part.batch_size, self.accountant.device_seconds(part).total, expected[part.device]
            )
            for part in returned
        ]
        limit = give_up_seconds(parts, self._straggler_factor)
        return limit, [part.device for part in parts if part.seconds > limit]

    def _account(
        self,
        outcomes: Sequence[DeviceOutcome],
        probes: Sequence[DeviceOutcome],
        judged: tuple[float, Collection[str]],
        sending: TransferSettings,
        crossed: Crossed | None,
    ) -> StepAccount:
        returned, beside, accountant = returned_reports(outcomes), returned_reports(probes), self.accountant
        host_seconds = reduce_seconds(self._gradient_bytes, len(returned)) if returned else 0.0
        limit, late = judged
        if not late:
            return accountant.account(returned, IN_TIME, host_seconds, beside, sending, crossed)
        # The exchange of what is not waited for would have followed: the step is charged as if it had.
        if crossed is not None:  # and each of its passes up to the same share
            own = {part.device: accountant.device_seconds(part) for part in returned}
            ended = {device: capped_seconds(seconds, limit) for device, seconds in own.items()}
            return accountant.account(returned, Lateness(None, late, ended), host_seconds, beside, crossed=crossed)
        capped = {
            part.device: PhaseSeconds(forward=min(limit, accountant.device_seconds(part).total)) for part in returned
        }
        ends = Lateness(accountant.predict_seconds(returned, capped), late)
        return accountant.account(returned, ends, host_seconds, beside)

    def result(self, report: StepReport, mixed: bool, rate: float) -> StepResult:
        """Return what came of a step on this server, once it has been applied.

        Args:
            report: what devices reported.
            mixed: see `StepResult`.
            rate: that the optimiser stepped with.
        """
        in_time = [each for each in report.outcomes if each.stepped is not None and each.device not in report.late]
        parts = {part.device: part for part in report.accounted.devices}
        total = sum(len(outcome.work.records) for outcome in in_time)
        devices = [
            DeviceStep(
                device=outcome.device,
                batch_size=len(outcome.work.records),
                compute_seconds=work_seconds(report.accounted, parts[outcome.device]),
                expected_seconds=self.expected_total(outcome),
                weight=len(outcome.work.records) / total,
            )
            for outcome in in_time
        ]
        losses = [(outcome.stepped.loss, len(outcome.work.records)) for outcome in in_time if outcome.stepped]
        loss = sum(value * count for value, count in losses) / total if total else math.nan
        return StepResult(
            report.accounted, loss, devices, report.late, report.failed, mixed, rate, failed_outcomes(report.beside)
        )

    def expected_total(self, outcome: DeviceOutcome) -> float:
        """Return what the device's table says of its part, undisturbed; 0 without one."""
        if outcome.device not in self._models:
            return 0.0
        batches = micro_batch_counts(len(outcome.work.records), outcome.work.micro_batch)
        return gradient_seconds(self._models[outcome.device], batches).total


def capped_seconds(seconds: PhaseSeconds, limit: float) -> PhaseSeconds:
    """Return seconds of no more than `limit` in all, shared out over the phases as they are."""
    share = min(1.0, limit / seconds.total) if seconds.total else 1.0
    return PhaseSeconds(*(share * getattr(seconds, phase) for phase in PhaseSeconds.__struct_fields__))


def returned_reports(outcomes: Sequence[DeviceOutcome]) -> list[DeviceReport]:
    """Return the reports of those devices that reported, as those of a round of one epoch."""
    return [
        DeviceReport(
            device=outcome.device,
            hello_clock=outcome.work.session.hello.clock,
            trained=Trained(
                *(said.step, said.samples, 1, said.loss, said.seconds, said.read_bytes),
                said.peak_memory_bytes,
                said.metered,
                health=said.health or None,
            ),
            epochs=1,
            batch_size=said.samples,
            sent_bytes=0 if outcome.device == HOST else outcome.sent_bytes,
            received_bytes=said.read_bytes if outcome.device == HOST else outcome.received_bytes,
            micro_batch=outcome.work.micro_batch,
        )
        for outcome in outcomes
        if (said := outcome.stepped) is not None
    ]
