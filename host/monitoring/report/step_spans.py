"""Sums of synchronous steps: phases before, during and after disturbances, and their energy. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from csd_emu.util.node_names import HOST
from host.core.records import RetuneRecord, RoundRecord, StepRecord

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StepSpan:
    """Steps in a row under the same circumstances.

    Attributes:
        name: before, during, between or after disturbances; without any, between which retunes.
        first, last: step numbers.
        disturbed: drive -> weight of the competing work.
        samples: records trained on.
        array_seconds: compute, flash and link.
        compute_seconds: sum over the steps of the slowest device's.
        share: of the records that the tables, scaled by the speeds observed, would have allowed in those compute
            seconds; None without tables.
        settled_share: the same of the steps from the last retune in the phase on; None without one.
        imbalance: mean over the steps.
        joules: of everything, shared out among a round's steps by `share_energy`.
    """

    name: str
    first: int
    last: int
    disturbed: Mapping[str, int]
    samples: int
    array_seconds: float
    compute_seconds: float
    share: float | None
    settled_share: float | None
    imbalance: float
    joules: float

    @property
    def records_per_array_second(self) -> float:
        """Achieved, flash and link included."""
        return self.samples / self.array_seconds if self.array_seconds else 0.0

    @property
    def records_per_compute_second(self) -> float:
        """Achieved by compute alone, which the slowest device paces."""
        return self.samples / self.compute_seconds if self.compute_seconds else 0.0

    @property
    def possible_records_per_second(self) -> float | None:
        """Possible by compute alone."""
        return self.records_per_compute_second / self.share if self.share else None

    @property
    def joules_per_record(self) -> float | None:
        """None if the records know no energy."""
        return self.joules / self.samples if self.samples and self.joules else None


def list_steps(rounds: Iterable[RoundRecord]) -> list[StepRecord]:
    """Return all steps, in order."""
    return [step for record in rounds for step in record.steps]


def list_retunes(rounds: Iterable[RoundRecord]) -> list[RetuneRecord]:
    """Return all retunes, in order."""
    return [retune for record in rounds for retune in record.retunes]


def share_of_possible(steps: Iterable[StepRecord]) -> float | None:
    """Return records trained on over those possible in the same compute seconds; None if no step knows the latter."""
    known = [step for step in steps if step.possible_records_per_second > 0 and step.slowest_seconds > 0]
    possible = math.fsum(step.possible_records_per_second * step.slowest_seconds for step in known)
    return sum(step.samples for step in known) / possible if possible else None


def mean_imbalance(steps: Sequence[StepRecord]) -> float:
    """Return the mean of the steps' imbalance, 0 without steps."""
    return math.fsum(step.imbalance for step in steps) / len(steps) if steps else 0.0


def share_energy(record: RoundRecord) -> list[float]:
    """Return joules per step of a round; together they are the round's.

    Records know energy per round. A device's compute components are shared out by its compute seconds, flash by its
    records, link evenly over the steps that it took part in, and what is drawn all the time by the steps' array
    seconds. So steps differ as their causes do, as far as records tell.
    """
    time = np.array([step.array_seconds for step in record.steps])
    known = [{part.device: part for part in step.devices} for step in record.steps]
    joules: Floats = np.zeros(len(record.steps))
    for node, components in record.node_joules.items():
        parts = [parts_of_step.get(node) for parts_of_step in known]
        compute = np.array([part.compute_seconds if part else 0.0 for part in parts])
        records = np.array([float(part.batch_size) if part else 0.0 for part in parts])
        steps = time if node == HOST else (records > 0).astype(float)
        # What a component's joules of a round follow from step to step; all others follow time.
        weights = {"cpu": compute, "dram": compute, "flash": records, "link": steps}
        for component, value in components.items():
            joules += value * _shares(weights.get(component, time), time)
    return [float(each) for each in joules]


def list_phases(rounds: Sequence[RoundRecord]) -> list[StepSpan]:
    """Return the phases of a run, split where competing work begins or ends; without any, where batches change."""
    steps, retunes = list_steps(rounds), list_retunes(rounds)
    joules = [each for record in rounds for each in share_energy(record)]
    cuts = _cuts(steps, retunes)
    return [
        _phase(name, steps[begin:end], joules[begin:end], retunes)
        for name, (begin, end) in zip(_name_phases(steps, retunes, cuts), pairwise(cuts), strict=True)
    ]


def _shares(weights: Floats, time: Floats) -> Floats:
    """Return `weights` as shares of 1; where there are none, those of time, else equal ones."""
    for chosen in (weights, time):
        if chosen.sum() > 0:
            return np.asarray(chosen / chosen.sum())
    return np.full(len(weights), 1.0 / max(1, len(weights)))


def _cuts(steps: Sequence[StepRecord], retunes: Sequence[RetuneRecord]) -> list[int]:
    """Return the positions at which phases begin, and behind them the end."""
    if any(step.disturbed for step in steps):
        inner = [at for at in range(1, len(steps)) if steps[at].disturbed != steps[at - 1].disturbed]
    else:
        starts = {retune.step for retune in retunes}
        inner = [at for at in range(1, len(steps)) if steps[at].step in starts]
    return [0, *inner, len(steps)] if steps else []


def _name_phases(steps: Sequence[StepRecord], retunes: Sequence[RetuneRecord], cuts: Sequence[int]) -> list[str]:
    disturbed = [at for at, step in enumerate(steps) if step.disturbed]
    begins = cuts[:-1]
    if not disturbed:
        first = "before any retune" if retunes else "all steps"
        return [f"retuned at step {steps[begin].step}" if begin else first for begin in begins]
    quiet = {True: "before", False: "between"}
    return [
        "during" if steps[begin].disturbed else ("after" if begin > disturbed[-1] else quiet[begin < disturbed[0]])
        for begin in begins
    ]


def _phase(
    name: str, steps: Sequence[StepRecord], joules: Sequence[float], retunes: Sequence[RetuneRecord]
) -> StepSpan:
    first, last = steps[0].step, steps[-1].step
    inside = [retune.step for retune in retunes if first < retune.step <= last]
    return StepSpan(
        name=name,
        first=first,
        last=last,
        disturbed=dict(steps[0].disturbed),
        samples=sum(step.samples for step in steps),
        array_seconds=math.fsum(step.array_seconds for step in steps),
        compute_seconds=math.fsum(step.slowest_seconds for step in steps),
        share=share_of_possible(steps),
        settled_share=share_of_possible([step for step in steps if inside and step.step >= inside[-1]]),
        imbalance=mean_imbalance(steps),
        joules=math.fsum(joules),
    )
