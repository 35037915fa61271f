"""From steps to the record of a round, and what guides a run beside its plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from csd_emu.perfmodel.power import sum_energy
from csd_emu.perfmodel.timeline import Span
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import DeviceRound, RetuneRecord, RoundRecord, StepRecord, in_time
from host.core.tuning.batch_tuner import Batches, BatchTuner, Retune
from host.training.accounting import StepAccount
from host.training.training_protocol import round_totals


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
    """Adds up the steps of one round."""

    def __init__(self, start_seconds: float, guide: RunGuide = PLANNED) -> None:
        """Begin at this moment of the array's time; `guide` is shown steps and retunes as they come."""
        self.start_seconds = self._end_seconds = start_seconds
        self._guide = guide
        self.steps: list[StepRecord] = []
        self.retunes: list[RetuneRecord] = []
        self._parts: dict[str, list[DeviceRound]] = {}
        self._spans: list[Span] = []
        self._others: dict[str, list[dict[str, float]]] = {}
        self._missed_steps, self._missed_samples = 0, 0

    @property
    def count(self) -> int:
        """Steps of the round, those that other servers took without this one too."""
        return self._missed_steps + len(self.steps)

    @property
    def samples(self) -> int:
        """Records in the gradients of these steps."""
        return self._missed_samples + sum(step.samples for step in self.steps)

    def missed(self, steps: int, samples: int) -> None:
        """Note that the round has so many steps and records in all, some of which were other servers' alone."""
        self._missed_steps, self._missed_samples = 0, 0
        self._missed_steps, self._missed_samples = steps - self.count, samples - self.samples

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

    def devices(self, order: Sequence[str]) -> list[DeviceRound]:
        """Return each device's part in the round, in the array's order; only what was in time counts as trained."""
        return [_merge(self._parts[device]) for device in order if device in self._parts]

    def record(self, order: Sequence[str], **others: Any) -> RoundRecord:
        """Return the round's record: what its steps say, and the `others` of its fields."""
        fields = self.fields(order)
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
            "devices": self.devices(order),
            "spans": self._spans,
            "energy_joules": {node: sum_energy(parts) for node, parts in self._others.items()},
            "lost": [device for device in order if device in lost and device not in returned],
            "idle": [device for device in order if device not in lost | returned],
            "steps": self.steps,
            "retunes": self.retunes,
        }


def _merge(parts: Sequence[DeviceRound]) -> DeviceRound:
    """Return one device's steps as its part in a round."""
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
