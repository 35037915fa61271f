"""From steps to the record of a round, where a run stands, and what guides it beside its plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from csd_emu.perfmodel.power import sum_energy
from csd_emu.perfmodel.storage.service_figures import ServiceFigures
from csd_emu.perfmodel.timeline import Span
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.config.job_file import JobConfig
from host.core.records import DeviceRound, RetuneRecord, RoundRecord, StepRecord, in_time
from host.core.slice_record import TransferChange
from host.core.tuning.batch_tuner import Batches, BatchTuner, Retune
from host.training.accounting import StepAccount
from host.training.training_protocol import round_totals, with_service


@dataclass(frozen=True)
class RunGuide:
    """Who decides on a run while it goes on, and who is shown its steps.

    Attributes:
        tuner: decides on batches; None for the plan's.
        pause: whether the round shall end with the steps that have begun.
        on_step: is given each step that has ended, and when it did in the array's time.
        on_retune: is given new batch sizes.
    """

    tuner: BatchTuner | None = None
    pause: Callable[[], bool] = lambda: False
    on_step: Callable[[StepRecord, float], None] = lambda _, __: None
    on_retune: Callable[[RetuneRecord], None] = lambda _: None


PLANNED = RunGuide()
"""All is as the plan says."""


class RoundTotals:
    """Adds up the steps of one round.

    Attributes:
        rounds: that were over before it.
        begin_seconds: when it began, by a clock of the caller's.
    """

    def __init__(
        self, start_seconds: float, guide: RunGuide = PLANNED, rounds: int = 0, begin_seconds: float = 0.0
    ) -> None:
        """Begin at this moment of the array's time; `guide` is shown steps and retunes as they come."""
        self.rounds, self.begin_seconds = rounds, begin_seconds
        self.start_seconds = self._end_seconds = start_seconds
        self._guide = guide
        self.steps: list[StepRecord] = []
        self.retunes: list[RetuneRecord] = []
        self.transfer_changes: list[TransferChange] = []
        self._parts: dict[str, list[DeviceRound]] = {}
        self._spans: list[Span] = []
        self._others: dict[str, list[dict[str, float]]] = {}
        # Steps and records.
        self._missed = 0, 0

    @property
    def count(self) -> int:
        """Steps of the round, those that other servers took without this one too."""
        return self._missed[0] + len(self.steps)

    @property
    def samples(self) -> int:
        """Records in the gradients of these steps."""
        return self._missed[1] + sum(step.samples for step in self.steps)

    def missed(self, steps: int, samples: int) -> None:
        """Note that the round has so many steps and records in all, some of which were other servers' alone."""
        self._missed = 0, 0
        self._missed = steps - self.count, samples - self.samples

    def add(self, step: StepRecord, accounted: StepAccount) -> None:
        """Take one step."""
        self.steps.append(step)
        for part in accounted.devices:
            self._parts.setdefault(part.device, []).append(part)
        for node, joules in accounted.energy_joules.items():
            self._others.setdefault(node, []).append(joules)
        self._spans += accounted.spans
        self._end_seconds += step.array_seconds
        self._guide.on_step(step, self._end_seconds)

    def add_retune(self, step: int, nodes: Sequence[str], before: Batches, retune: Retune) -> list[str]:
        """Take new batches, in force from `step` on; return what changed, node by node: nothing counts if nothing did.

        Args:
            step: the first with the new ones.
            nodes: their names.
            before: (nodes,) records per step until then.
            retune: the tuner's decision.
        """
        old = dict(zip(nodes, before.tolist(), strict=True))
        new = dict(zip(nodes, retune.batches.tolist(), strict=True))
        changed = [f"{node} {old[node]} -> {new[node]}" for node in nodes if old[node] != new[node]]
        if changed:
            told = RetuneRecord(step=step, reason=retune.reason, before=old, after=new, gain_steps=retune.gain_steps)
            self.retunes.append(told)
            self._guide.on_retune(told)
        return changed

    def record(
        self, order: Sequence[str], take_figures: Callable[[str], ServiceFigures | None], **others: Any
    ) -> RoundRecord:
        """Return the round's record: what its steps say, figures of its drives, and the `others` of its fields."""
        fields = self.fields(order)
        fields["devices"] = with_service(fields["devices"], take_figures)
        totals, samples = round_totals(fields["devices"]), sum(step.samples for step in self.steps)
        totals["train_loss"] = sum(step.loss * step.samples for step in self.steps) / samples if samples else 0.0
        return RoundRecord(**others, **fields, **totals)

    def fields(self, order: Sequence[str]) -> dict[str, Any]:
        """Return what the steps say of the round, by the names of `RoundRecord`."""
        returned = set(self._parts)
        lost = {device for step in self.steps for device in step.lost}
        return {
            "start_seconds": self.start_seconds,
            "array_seconds": sum(step.array_seconds for step in self.steps),
            "devices": [_merge(self._parts[device]) for device in order if device in self._parts],
            "spans": self._spans,
            "energy_joules": {node: sum_energy(parts) for node, parts in self._others.items()},
            "lost": [device for device in order if device in lost and device not in returned],
            "idle": [device for device in order if device not in lost | returned],
            "steps": self.steps,
            "retunes": self.retunes,
            "transfer_changes": self.transfer_changes,
        }


def _merge(parts: Sequence[DeviceRound]) -> DeviceRound:
    """Return one device's steps as its part in a round; only what was in time counts as trained."""
    counted = in_time(parts)
    samples = sum(part.samples for part in counted)
    return msgspec.structs.replace(
        parts[-1],
        samples=samples,
        steps=len(counted),
        loss=sum(part.loss * part.samples for part in counted) / samples if samples else 0.0,
        stopwatch_seconds=_sum_phases([part.stopwatch_seconds for part in counted or parts]),
        device_seconds=_sum_phases([part.device_seconds for part in counted or parts]),
        read_seconds=sum(part.read_seconds for part in parts),
        receive_seconds=sum(part.receive_seconds for part in parts),
        send_seconds=sum(part.send_seconds for part in parts),
        flash_read_bytes=sum(part.flash_read_bytes for part in parts),
        sent_bytes=sum(part.sent_bytes for part in parts),
        received_bytes=sum(part.received_bytes for part in parts),
        peak_memory_bytes=max(part.peak_memory_bytes for part in parts),
        energy_joules=sum_energy([part.energy_joules for part in parts]),
        straggler=not counted,
    )


def _sum_phases(each: Sequence[PhaseSeconds]) -> PhaseSeconds:
    return PhaseSeconds(*(sum(getattr(one, phase) for one in each) for phase in PhaseSeconds.__struct_fields__))


class RunProgress:
    """Counts one round after the other, and the steps of all.

    A round has whole epochs, or so many steps. Where devices are chosen while the run goes on, steps of few devices
    have fewer records than those of all; such a round has as many records as its steps would have with all devices.

    Attributes:
        rounds: that are over.
        accuracy: after the last of them.
        step: number of the last step.
        epochs: that have ended in this round.
        carried: records of this round that came before its ledger began, for it was cut short.
        in_round: of the state that was restored last: steps, records and epochs of the round that was going on.
        cut_short: whether the last round ended before its last step, for a pause was asked for.
        ended_seconds: when the last step ended, or the round began, by a clock of the caller's.
        ledger: of the round that goes on, or was the last one.
    """

    def __init__(self, job: JobConfig, step_records: int | None) -> None:
        """Begin with the first round.

        Args:
            job: says how long rounds are.
            step_records: of a step of all devices, where devices are chosen; None where all take part.
        """
        self._job, self._steps = job, job.sync.round_steps
        both = self._steps is not None and step_records is not None
        self._records = (self._steps or 0) * (step_records or 0) if both else None
        self.rounds, self.accuracy, self.step = 0, 0.0, 0
        self.epochs, self.carried = 0, 0
        self.in_round = [0, 0, 0]
        self.cut_short = False
        self.ended_seconds = 0.0
        self.ledger = RoundTotals(0.0)

    def state(self) -> dict[str, Any]:
        """Return what of it a checkpoint keeps beside rounds and accuracy, as JSON takes it."""
        return {"step": self.step, "carried": self.carried, "in_round": list(self.in_round)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        self.step, self.carried = int(state["step"]), int(state.get("carried", 0))
        self.in_round = [int(number) for number in state.get("in_round", (0, 0, 0))]

    def over(self, ledger: RoundTotals, records: int = 0, steps: int = 0) -> bool:
        """Return whether the round of `ledger` has all that it should, with so many more records and steps."""
        if self._records is not None:
            return self.carried + ledger.samples + records >= self._records
        return self.epochs >= self._job.epochs if self._steps is None else ledger.count + steps >= self._steps

    def steps_left(self, ledger: RoundTotals, records: int) -> int | None:
        """Return how many steps the run has left; None if epochs decide.

        Args:
            ledger: of the present round.
            records: of a step from now on.
        """
        if self._steps is None:
            return None
        if self._records is None:
            return self._job.rounds * self._steps - self.step
        left = (self._job.rounds - self.rounds) * self._records - self.carried - ledger.samples
        return max(0, math.ceil(left / max(1, records)))

    def step_seconds(self, now_seconds: float) -> float:
        """Return the seconds since the last step ended: another one has now."""
        before, self.ended_seconds = self.ended_seconds, now_seconds
        return now_seconds - before

    def count_missed(self, ledger: RoundTotals) -> None:
        """Have the ledger of a round that was taken over count the steps that others have taken."""
        steps, samples, self.epochs = self.in_round
        ledger.missed(steps, samples)
        self.in_round = [0, 0, 0]

    def end_round(self, ledger: RoundTotals, accuracy: float) -> None:
        """Go on to the next round; if this one was cut short, that is the rest of it."""
        self.cut_short = not self.over(ledger)
        self.epochs, self.carried = 0, self.carried + ledger.samples if self.cut_short else 0
        self.rounds, self.accuracy = self.rounds + 1, accuracy
