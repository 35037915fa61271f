"""Steps that each server takes on its own, and the mean of weights after some: local SGD (Stich 2019).

With server s at weights w_s after a window of steps, in which its drives computed n_s records, all go on from
``sum_s n_s w_s / sum_s n_s`` (Stich, "Local SGD converges fast and communicates little", arXiv:1805.09767, algorithm 1,
where all n_s are equal). What the optimiser remembers is averaged alike (for momentum: Yu, Jin and Yang, ICML 2019,
arXiv:1905.03817).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from firmware_agent.common.slices import Array
from host.core.records import ServersRecord
from host.core.states.peer_servers import Averaged, ServerPart
from host.training.sync.peers.server_step import ServersStepper, ServersStepResult
from host.training.sync.step_result import StepResult, Underway, failed_outcomes

_WEIGHTS, _OPTIMISER = "weights/", "optimiser/"


@dataclass(frozen=True)
class LocalResult(StepResult):
    """What came of a step on this server alone; `part` is what it says of it."""

    part: ServerPart = field(kw_only=True)


class LocalStepper(ServersStepper):
    """Takes steps on the weights of this server alone, and the mean with all servers at a window's end."""

    async def finish(self, step: Underway) -> LocalResult:
        """See a step through on this server; without a record in time weights stay."""
        outcomes, count = await self._screened(step), len(step.works)
        own, beside = outcomes[:count], outcomes[count:]
        limit, late = self._late(own, step.expected)
        accounted = self._account(own, beside, (limit, late), step.sending, None)
        rate = step.learning_rate(sum(step.records.values()))
        local = self._result(own, accounted, late, False, rate)
        left_out = {*late, *local.failed}
        if local.devices:
            await step.gathering.finish(left_out)
            await asyncio.to_thread(self._apply, self._means(step), rate)
        step.release.add_all()
        fields = {name: getattr(local, name) for name in StepResult.__dataclass_fields__}
        fields["failed_probes"] = failed_outcomes(beside)
        return LocalResult(**fields, part=self._part(step, local, left_out))

    async def end_window(self, number: int, steps: Sequence[LocalResult], usual_steps: int) -> list[ServersStepResult]:
        """Go on from the mean of all servers' weights, and return what each step of the window came to on all of them.

        A step costs what it took on the server whose window took longest, and its part of the sum: of a window with as
        many steps as are usual, for one that an epoch cuts short says nothing else of what a step costs.

        Args:
            number: of the window's last step.
            steps: of the window, in order.
            usual_steps: of a window.

        Raises:
            CaughtUp: other servers have ended the window already.
        """
        own = [step.part for step in steps]
        averaged = await self._together.average(number, await asyncio.to_thread(self._arrays), own)
        if len(averaged.parts) > 1:  # alone the weights are the mean, to the last bit
            await asyncio.to_thread(self._take_over, averaged.means)
        spent = {server: sum(part.array_seconds for part in parts) for server, parts in averaged.parts.items()}
        slowest = max(spent, key=spent.__getitem__)  # of several the first one, on all servers alike
        waited = spent[slowest] - sum(part.array_seconds for part in own)
        sum_seconds = averaged.link_seconds / usual_steps
        return [
            self._of_window(
                local,
                {server: parts[place] for server, parts in averaged.parts.items()},
                averaged.parts[slowest][place].array_seconds + sum_seconds,
                (waited, averaged) if place == len(steps) - 1 else None,
            )
            for place, local in enumerate(steps)
        ]

    def _arrays(self) -> dict[str, Array]:
        """Return what steps change: parameters, buffers, and the optimiser's state."""
        state = self.optimiser.state() or self._first_state
        arrays = {_WEIGHTS + spec.name: self.weights[spec.name] for spec in self._specs}
        return arrays | {_OPTIMISER + name: state[name] for name in sorted(state)}

    @cached_property
    def _first_state(self) -> dict[str, Array]:
        """What stands for the state of an optimiser that has not stepped yet: it has no weight in the mean."""
        return self.optimiser.state_after_a_step()

    def _take_over(self, means: Mapping[str, Array]) -> None:
        if not means:
            return
        for spec in self._specs:
            self.weights[spec.name][...] = means[_WEIGHTS + spec.name]
        for name, first in self._structure.tied.items():
            self.weights[name][...] = self.weights[first]
        kept = {name.removeprefix(_OPTIMISER): mean for name, mean in means.items() if name.startswith(_OPTIMISER)}
        self.optimiser.load_state(kept)

    def _of_window(
        self,
        local: LocalResult,
        parts: Mapping[str, ServerPart],
        cost_seconds: float,
        end: tuple[float, Averaged] | None,
    ) -> ServersStepResult:
        """Return a step as one of all servers; the window's last one has waiting and averaging, too."""
        total, own = sum(part.records for part in parts.values()), local.accounted.array_seconds
        accounted, slowest, reduce_seconds, sent_bytes, meetings = local.accounted, own, 0.0, 0, 0
        if end is not None:
            waited, averaged = end
            slowest, reduce_seconds = own + waited, averaged.link_seconds
            sent_bytes, meetings = averaged.sent_bytes, averaged.meetings
            accounted = self.accountant.extend(accounted, slowest + reduce_seconds, reduce_seconds)
        servers = ServersRecord(
            server=self._together.server,
            present=list(parts),
            samples=total,
            own_seconds=own,
            slowest_seconds=slowest,
            reduce_seconds=reduce_seconds,
            sent_bytes=sent_bytes,
            meetings=meetings,
        )
        return ServersStepResult(
            accounted=accounted,
            loss=sum(part.loss * part.records for part in parts.values()) / total if total else 0.0,
            devices=[msgspec.structs.replace(part, weight=part.batch_size / total) for part in local.devices],
            late=local.late,
            failed=local.failed,
            mixed=False,
            learning_rate=local.learning_rate,
            failed_probes=local.failed_probes,
            servers=servers,
            parts=parts,
            cost_seconds=cost_seconds,
        )
