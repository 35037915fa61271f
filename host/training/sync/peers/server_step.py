"""A synchronous step over several servers: each sums its drives' gradients, the sums are added up, all step alike."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from firmware_agent.common.slices import Array
from host.core.records import ServersRecord
from host.core.states.peer_servers import DevicePart, PeerServers, ReducedStep, ServerPart
from host.core.tuning.batch_tuner import StepCost
from host.training.sync.exchange.step_exchange import DeviceOutcome
from host.training.sync.step_result import StepResult, Underway, failed_outcomes, step_joules
from host.training.sync.sync_step import Stepper


@dataclass(frozen=True)
class ServersStepResult(StepResult):
    """What came of a step on all servers; `devices`, `late`, `failed` and `accounted` are this server's own.

    Attributes:
        parts: server -> what it said of its part.
        cost_seconds: of the step for all servers, where they differ; None if `accounted` says it.
    """

    parts: Mapping[str, ServerPart] = field(default_factory=dict)
    cost_seconds: float | None = None

    @property
    def took_part(self) -> list[str]:
        """Whose gradients went into it, on all servers."""
        return [part.device for server in self.parts.values() for part in server.counted]

    @property
    def observed(self) -> list[DevicePart]:
        """What each device computed, whether or not it counts, on all servers."""
        return [part for server in self.parts.values() for part in server.observed]

    @property
    def cost(self) -> StepCost:
        """What the step cost all servers together; their hosts are one node."""
        counted = [part for server in self.parts.values() for part in server.counted]
        seconds = self.accounted.array_seconds if self.cost_seconds is None else self.cost_seconds
        joules: dict[str, float] = {}
        for server in self.parts.values():
            for node, own in server.joules.items():
                waiting = server.idle_watts[node] * (seconds - server.array_seconds)
                joules[node] = joules.get(node, 0.0) + own + waiting
        return StepCost(
            records={part.device: part.records for part in counted},
            compute_seconds={part.device: part.compute_seconds for part in counted},
            array_seconds=seconds,
            joules=joules,
            missing=frozenset(device for server in self.parts.values() for device in server.missing),
        )


class ServersStepper(Stepper):
    """Takes steps with other servers: the optimiser steps when all gradients of all servers are there.

    Drives of which the host has part of a gradient when they are lost do not count: what they have sent is dropped, and
    their records come again.
    """

    def __init__(self, together: PeerServers, *arguments: Any) -> None:
        """Prepare; what comes after the other servers is `Stepper`'s."""
        super().__init__(*arguments)
        self._barrier = self._keeps_all = True
        self._together = together

    @property
    def together(self) -> PeerServers:
        """The other servers."""
        return self._together

    @property
    def may_look_ahead(self) -> bool:
        """A step's weights are those of all servers, and nobody has them before all have returned."""
        return False

    async def finish(self, step: Underway) -> StepResult:
        """See a step through on all servers.

        Raises:
            CaughtUp: other servers have taken the step already.
        """
        outcomes, count = await self._screened(step), len(step.works)
        own, beside = outcomes[:count], outcomes[count:]
        limit, late = self._late(own, step.expected)
        accounted = self._account(own, beside, (limit, late), step.sending, None)
        local = self._result(own, accounted, late, False, step.rate)
        left_out = {*late, *local.failed}
        if local.devices:
            await step.gathering.finish(left_out)
        reduced = await self._together.reduce(step.number, self._means(step), self._part(step, local, left_out))
        total = sum(part.records for part in reduced.parts.values())
        rate = 0.0
        if total:
            rate = step.learning_rate(sum(part.rated for part in reduced.parts.values()))
            await asyncio.to_thread(self._apply, reduced.means, rate)
        step.release.add_all()
        return self._of_all(local, reduced, total, rate, beside)

    def _means(self, step: Underway) -> dict[str, Array]:
        """Return the mean of every tensor over one's own records; zeros if there are none."""
        return {
            spec.name: step.whole.get(spec.name, np.zeros(self.weights[spec.name].shape, self.weights[spec.name].dtype))
            for spec in self._specs
        }

    def _part(self, step: Underway, local: StepResult, left_out: Collection[str]) -> ServerPart:
        works = {work.session.device: len(work.records) for work in step.works}
        late = set(local.late)
        return ServerPart(
            records=sum(part.batch_size for part in local.devices),
            rated=sum(records for device, records in works.items() if device not in late),
            loss=0.0 if math.isnan(local.loss) and not local.devices else local.loss,
            array_seconds=local.accounted.array_seconds,
            counted=[DevicePart(part.device, part.batch_size, part.compute_seconds) for part in local.devices],
            observed=local.observed,
            joules=step_joules(local.accounted),
            idle_watts=self.accountant.idle_watts(),
            missing=sorted(left_out),
        )

    def _apply(self, means: Mapping[str, Array], rate: float) -> None:
        buffers = {name: means[name] for name in self._buffers}
        self.optimiser.step_all({name: mean for name, mean in means.items() if name not in buffers}, rate)
        for name, mean in buffers.items():
            self.weights[name][...] = mean
        for name, first in self._structure.tied.items():
            self.weights[name][...] = self.weights[first]

    def _of_all(
        self, local: StepResult, reduced: ReducedStep, total: int, rate: float, beside: Sequence[DeviceOutcome]
    ) -> ServersStepResult:
        parts = reduced.parts.values()
        slowest = max(part.array_seconds for part in parts)
        seconds, own = slowest + reduced.link_seconds, local.accounted.array_seconds
        servers = ServersRecord(
            server=self._together.server,
            present=list(reduced.parts),
            samples=total,
            own_seconds=own,
            slowest_seconds=slowest,
            reduce_seconds=reduced.link_seconds,
            sent_bytes=reduced.sent_bytes,
            meetings=reduced.meetings,
        )
        devices = [msgspec.structs.replace(part, weight=part.batch_size / total) for part in local.devices]
        return ServersStepResult(
            accounted=self.accountant.extend(local.accounted, seconds, reduced.link_seconds),
            loss=sum(part.loss * part.records for part in parts) / total if total else math.nan,
            devices=devices,
            late=local.late,
            failed=local.failed,
            mixed=False,
            learning_rate=rate,
            failed_probes=failed_outcomes(beside),
            servers=servers,
            parts=reduced.parts,
        )
