"""Report of a plan: in plan.json of a run directory, and what `csd-emu plan` prints with ``--json``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path

import msgspec

from firmware_agent.common.atomic_files import replace_file
from firmware_agent.common.errors import CheckpointError, EnvironmentUnfit
from host.core.figure_bands import Band, scale_band
from host.core.owned_files import read_whole
from host.policies.selection.cluster import Cluster, Estimate, Range, TrialResult
from host.policies.selection.planner_protocol import TrialDecision
from host.policies.selection.selection_rules import SelectionRules

PLAN_FILE = "plan.json"
# So many configurations are written down; of thousands the others are never looked at.
MOST_ROWS = 100


class ConfigurationRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the training costs with a configuration.

    Attributes:
        name: such as ``3 newport + host``.
        count: kind -> how many devices of it.
        batch: kind -> records per step of each of them.
        step_seconds: of the array.
        trained_records: of the whole training: without the private ones of drives that take no part.
        seconds, watts, joules, edp: of the whole training; watts in the mean, edp is joules x seconds.
        steps_measured: how many steps of it were taken.
        bands: of ``step_seconds``, ``seconds``, ``watts``, ``joules`` and ``edp``, with these batches, by the profiles'
            figures; empty in an older plan.
    """

    name: str
    count: dict[str, int]
    batch: dict[str, int]
    step_seconds: float
    trained_records: float
    seconds: Range
    watts: Range
    joules: Range
    edp: Range
    steps_measured: int
    bands: dict[str, Band] = msgspec.field(default_factory=dict)

    @property
    def records(self) -> int:
        """Records of a step, all devices together."""
        return sum(self.count[kind] * self.batch[kind] for kind in self.count)


class TrialRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that were taken to learn from: a configuration's name, their number, their medians, and why.

    `bands` are of ``step_seconds`` and ``joules``, as wide as those of the configuration where it is ranked; else
    empty.
    """

    name: str
    steps: int
    records: int
    step_seconds: float
    joules: float
    why: str
    bands: dict[str, Band] = msgspec.field(default_factory=dict)


class LimitsRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration must keep to; null for no limit."""

    deadline_seconds: float | None = None
    watts: float | None = None
    joules: float | None = None
    include: list[str] = msgspec.field(default_factory=list)
    exclude: list[str] = msgspec.field(default_factory=list)
    unused: str = "powered"


class SelectionReport(msgspec.Struct, frozen=True, kw_only=True):
    """Which devices train, and what that rests on.

    Attributes:
        clock: that seconds are of; ``modelled`` if nothing was measured.
        prefer: what is best.
        confidence: with which the intervals hold.
        records: on which the training is in all, if every node takes part.
        limits: that were asked for.
        kinds: name of a kind of equal nodes -> their names.
        nodes: node that trains -> its records per step.
        resting: nodes that take no part.
        chosen: the best.
        ranked: the best ones, the chosen one first; `feasible` counts all that keep to the limits, as far as they were
            ranked.
        front: those that no other one beats in time, mean power and energy.
        reasons: why, in sentences.
        sure: probability that no other one is better by more than 1 %.
        gap: what a search that was not exact may have missed; 0 if it was exact.
        trials: what was measured.
        trial_seconds, trial_joules, trial_steps: of these together; their steps are part of the training.
        step: after which it was decided.
        lost: nodes that were lost meanwhile.
        notes: what else must be known, in sentences.
        at_ends: end of the profiles' bands, ``low`` or ``high`` -> name of what would be chosen there.
    """

    clock: str
    prefer: str
    confidence: float
    records: float
    limits: LimitsRow
    kinds: dict[str, list[str]]
    nodes: dict[str, int]
    resting: list[str]
    chosen: ConfigurationRow
    ranked: list[ConfigurationRow]
    feasible: int
    front: list[ConfigurationRow]
    reasons: list[str]
    sure: float
    gap: float
    trials: list[TrialRow]
    trial_seconds: float
    trial_joules: float
    trial_steps: int
    step: int
    lost: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    at_ends: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def same_work(self) -> bool:
        """Whether all configurations train on as many records: none has private ones out of its reach."""
        return len({row.trained_records for row in (*self.ranked, *self.front)}) <= 1


def describe_plan(
    decided: TrialDecision,
    rules: SelectionRules,
    *,
    clock: str,
    records: float,
    notes: Sequence[str] = (),
) -> SelectionReport:
    """Return what a decision says."""
    cluster, plan, nodes = decided.cluster, decided.plan, dict(decided.batches)
    every = [node for kind in cluster.kinds for node in kind.nodes]
    seen = [one for each in plan.trials for one in each.seen]
    ranked, front = ([_row(each, cluster) for each in part[:MOST_ROWS]] for part in (plan.ranked, plan.front))
    known = {row.name: row for row in (*ranked, *front) if row.bands}
    return SelectionReport(
        clock=clock,
        prefer=rules.preference.label,
        confidence=rules.confidence,
        records=records,
        limits=_limits(rules),
        kinds={kind.name: list(kind.nodes) for kind in cluster.kinds},
        nodes=nodes,
        resting=[node for node in every if node not in nodes],
        chosen=_row(plan.chosen, cluster),
        ranked=ranked,
        feasible=max(plan.feasible, len(plan.ranked)),
        front=front,
        reasons=list(plan.reasons),
        sure=plan.sure,
        gap=plan.gap,
        trials=[_trial(each, cluster, known) for each in plan.trials],
        trial_seconds=sum(one.step_seconds for one in seen),
        trial_joules=sum(one.joules for one in seen),
        trial_steps=len(seen),
        step=decided.step,
        lost=list(decided.lost),
        notes=list(notes),
        at_ends=dict(plan.at_ends),
    )


def write_plan(directory: Path, plan: SelectionReport) -> None:
    """Write plan.json into a run directory.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    path = directory / PLAN_FILE
    try:
        replace_file(path, msgspec.json.format(msgspec.json.encode(plan)))
    except OSError as error:
        raise EnvironmentUnfit(f"{path}: cannot be written ({error}); free space") from error


def read_plan(directory: Path) -> SelectionReport | None:
    """Return what a run decided; None if its directory does not say.

    Raises:
        CheckpointError: the file is damaged.
    """
    return read_whole(directory / PLAN_FILE, msgspec.json.Decoder(SelectionReport).decode, CheckpointError, "remove it")


def _limits(rules: SelectionRules) -> LimitsRow:
    asked = rules.constraints
    return LimitsRow(
        deadline_seconds=asked.deadline_seconds,
        watts=asked.watts,
        joules=asked.joules,
        include=sorted(asked.include),
        exclude=sorted(asked.exclude),
        unused="powered" if asked.unused_powered else "off",
    )


def _row(estimate: Estimate, cluster: Cluster) -> ConfigurationRow:
    kinds = [kind.name for kind in cluster.kinds]
    return ConfigurationRow(
        name=cluster.name(estimate.configuration),
        count=dict(zip(kinds, estimate.configuration, strict=True)),
        batch=dict(zip(kinds, estimate.batches, strict=True)),
        step_seconds=estimate.step_seconds,
        trained_records=estimate.trained_records,
        seconds=estimate.seconds,
        watts=estimate.watts,
        joules=estimate.joules,
        edp=estimate.edp,
        steps_measured=estimate.steps_measured,
        bands=dict(estimate.bands),
    )


def _trial(tried: TrialResult, cluster: Cluster, known: Mapping[str, ConfigurationRow]) -> TrialRow:
    """Return a trial; `known` are the configurations that have bands, by name."""
    trial, row = tried.trial, known.get(cluster.name(tried.trial.configuration))
    seconds, joules = (statistics.median(map(attrgetter(name), tried.seen)) for name in ("step_seconds", "joules"))
    bands = (
        {}
        if row is None
        else {
            "step_seconds": scale_band(row.bands["step_seconds"], seconds / row.step_seconds),
            "joules": scale_band(row.bands["joules"], joules / row.joules.value),
        }
    )
    return TrialRow(
        name=cluster.name(trial.configuration),
        steps=len(tried.seen),
        records=trial.records,
        step_seconds=seconds,
        joules=joules,
        why=trial.why,
        bands=bands,
    )
