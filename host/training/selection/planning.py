"""Selection of a job's devices: its inputs, the planner that decides, and what a run makes of the decision."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from csd_emu.perfmodel.allreduce import Fabric, ring
from csd_emu.perfmodel.storage.drive_service import DriveService
from csd_emu.profiles.profile import End
from csd_emu.util.nearest_word import hint_at
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import ConfigurationError
from host.config.server_group import ServerGroup
from host.core.model_facts import inspect_load
from host.core.records import EventKind, OnEvent
from host.core.tuning.batch_tuner import BatchTuner
from host.policies.selection.cluster import Cluster
from host.policies.selection.planner_protocol import TrialDecision
from host.policies.selection.planning_tuner import PlanningTuner
from host.policies.selection.selection_report import SelectionReport, describe_plan, write_plan
from host.policies.selection.selection_rules import SelectionRules
from host.training.accounting import Accountant, make_accountant
from host.training.first_batches import StepOverhead
from host.training.job_inputs import JobInputs
from host.training.optimiser_bytes import load_between
from host.training.selection.make_cluster import (
    Exchanged,
    Servers,
    chosen_overhead,
    make_cluster,
    move_cluster,
    planned_private,
    planned_records,
    planner_rules,
)
from host.training.selection.served_cluster import serve_cluster
from host.training.sync_plan import SyncPlan

if TYPE_CHECKING:  # scipy: most jobs have no need of it
    from host.policies.selection.planner import Planner


@dataclass(frozen=True)
class Planning:
    """A synchronous job with a section ``planner``.

    Attributes:
        plan: with the batches that all nodes would begin with.
        cluster: what is chosen from.
        rules: by what.
        cold: nodes whose first step is left out: its seconds are a stopwatch's.
        ends: the cluster at each end of the bands of the profiles' figures.
        served: what the host's loads do to its kinds, in sentences.
    """

    plan: SyncPlan
    cluster: Cluster
    rules: SelectionRules
    cold: frozenset[str] = frozenset()
    ends: Mapping[str, Cluster] = field(default_factory=dict)
    served: tuple[str, ...] = ()

    def make_planner(self) -> Planner:
        """Return a planner that has seen nothing.

        Raises:
            ConfigurationError: what was asked for cannot be, whatever anything costs.
        """
        from host.policies.selection.planner import Planner  # scipy: most jobs have no need of it

        return Planner(self.cluster, self.rules, planned_records(self.plan), planned_private(self.plan), self.ends)

    def make_tuner(self, on_decided: Callable[[TrialDecision], None], on_note: Callable[[str], None]) -> PlanningTuner:
        """Return what plans in a run, and then leaves the chosen nodes to the job's own tuner."""
        return PlanningTuner(
            dict(zip(self.plan.nodes, self.plan.batches, strict=True)),
            *(self.make_planner, self._make_inner, on_decided, on_note),
            cold=self.cold,
            handed_over=bool(self.cluster.sides),
        )

    def describe(self, decided: TrialDecision, clock: str) -> SelectionReport:
        """Return what was decided, for files and people; `clock` is the run's."""
        return describe_plan(
            *(decided, self.rules),
            clock=clock,
            records=planned_records(self.plan),
            notes=self.notes(decided.batches),
        )

    def notes(self, chosen: Collection[str]) -> list[str]:
        """Return what must be known of a choice, in sentences."""
        notes = [*self._private_notes(chosen), *self.served]
        if self.plan.job.sync.round_steps is not None:
            notes.append(
                "a round has as many records as sync.round_steps steps of all nodes would have; those that train "
                "take as many steps as that needs"
            )
        off = not self.rules.constraints.unused_powered and not set(self.plan.nodes).issubset(chosen)
        if HOST in chosen and off:
            notes.append(
                "the host's records lie on drives that count as off here: their idle power while it reads is left out"
            )
        limits = self.rules.constraints
        if any(limit is not None for limit in (limits.deadline_seconds, limits.watts, limits.joules)):
            notes.append(
                "limits are of the whole job, from its first record to its last, also where it is decided anew on the "
                "way: what was spent before is not taken off"
            )
        return notes

    def _private_notes(self, chosen: Collection[str]) -> list[str]:
        """Return what private records on nodes that take no part mean for a choice."""
        private = dict(zip(self.plan.nodes, self.plan.private_sizes, strict=True))
        unseen = {node: count for node, count in private.items() if count and node not in chosen}
        if not unseen:
            return []
        left_out = sum(unseen.values())
        notes = [
            f"{left_out} private records lie on {', '.join(unseen)}, which take no part: nothing is trained on them; "
            "planner.include has a drive take part"
        ]
        # Rounds of steps have as many records whoever has them.
        if planned_private(self.plan):
            held = sum(private.values()) + self.plan.public_size
            notes.append(
                f"an epoch has {held - left_out} of {held} records: estimates, and limits, are of the records that "
                "each configuration can reach; configurations are compared by the time and energy of a record"
            )
        return notes

    def _make_inner(self, numbers: Sequence[int], batches: Sequence[int], beside_seconds: float | None) -> BatchTuner:
        nodes = [self.plan.nodes[number] for number in numbers]
        overhead = chosen_overhead(self.cluster, nodes) if beside_seconds is None else StepOverhead(beside_seconds)
        return self.plan.of_nodes(numbers, batches, overhead).make_tuner()


def make_planning(
    inputs: JobInputs,
    plan: SyncPlan,
    serve: Callable[[], DriveService | None] = lambda: None,
    cut_bytes: int | None = None,
    server_group: ServerGroup | None = None,
) -> Planning | None:
    """Return the planning of a run whose job has the section, None of another.

    Args:
        inputs: the job, its data and its model; with several servers the array has the drives of all of them.
        plan: of the job.
        serve: returns the drives as they serve their host, with loads that last; None if they serve nobody.
        cut_bytes: of the tensors that a cut leaves on the drives; None for the whole model.
        server_group: the servers that train together.

    Raises:
        ConfigurationError: a node of it is not in the array, or what it asks for cannot be.
    """
    section = inputs.job.planner
    if section is None:
        return None
    _check_nodes("planner.include", section.include, plan.nodes)
    _check_nodes("planner.exclude", section.exclude, plan.nodes)
    if plan.in_place and plan.public_size:
        raise ConfigurationError(
            "planner: chooses among devices that can take each other's public records, and those in place are all that "
            f"{', '.join(plan.in_place)} can take; set data.private: 1, or leave planner out"
        )
    load = inspect_load(inputs.spec, inputs.shape, inputs.job.freeze)
    precise = 2 if inputs.job.chosen_precision == "float64" else 1
    state, gradient = precise * load.state_bytes, precise * load.gradient_bytes
    if cut_bytes is not None:
        state, gradient = cut_bytes, min(gradient, cut_bytes)
    servers, window = None, 1
    if server_group is not None:
        window = plan.window_steps(server_group.config.reduce_every)
        crossing = state + load_between(load, inputs.job, server_group.config, inputs.optimizer).optimiser_bytes
        servers = _servers_of(server_group, crossing, window)
    cluster = make_cluster(inputs.config, plan, Exchanged(state, gradient, inputs.record_bytes), servers)
    cluster, served = serve_cluster(cluster, serve(), plan)
    cold = frozenset(plan.nodes).difference(inputs.models)
    time = make_accountant(inputs.config, inputs.models, cycles=inputs.cycles).time
    arrays = [inputs.config] if servers is None else list(servers.arrays.values())
    ends: dict[str, Cluster] = {end: move_cluster(cluster, arrays, time, end) for end in get_args(End)}
    planning = Planning(plan, cluster, planner_rules(plan, window), cold, ends, tuple(served))
    planning.make_planner()  # what it refuses is said now
    return planning


def _servers_of(server_group: ServerGroup, sum_bytes: int, window: int) -> Servers:
    link, names = server_group.config.link, server_group.config.names
    between = ring(sum_bytes, [len(names)], Fabric(link.bandwidth, link.latency))
    return Servers({name: server_group.array_of(name) for name in names}, between.seconds / window)


def _check_nodes(where: str, names: Sequence[str], nodes: Sequence[str]) -> None:
    for name in names:
        if name not in nodes:
            hint = hint_at(name, nodes, f"there are: {', '.join(nodes)}")
            raise ConfigurationError(f"{where}: {name!r} does not train in this array; {hint}")


class PlannedRun:
    """The planning of one run: the decision goes to its directory and its events, and may end it.

    Attributes:
        tuner: for the run's training.
    """

    def __init__(
        self,
        planning: Planning,
        directory: Path,
        clock: str,
        accountant: Accountant,
        on_event: OnEvent,
        only: bool = False,
    ) -> None:
        """Prepare; planning begins with the first step, after what a resumed run restores.

        Args:
            planning: what is chosen from.
            directory: of the run.
            clock: of its seconds.
            accountant: told which drives are off, where the job says so.
            on_event: called with device, what happened, and more about it.
            only: whether the run ends when it has decided.
        """
        self._planning, self._directory, self._clock = planning, directory, clock
        self._on_event, self._only = on_event, only
        self.tuner = planning.make_tuner(self._decided, lambda text: on_event(HOST, EventKind.NOTE, text))
        if not planning.rules.constraints.unused_powered:
            accountant.powered_off = self.tuner.idle

    @property
    def over(self) -> bool:
        """Whether the run shall end: all that was asked for is decided, or nothing can be."""
        return self.tuner.error is not None or (self._only and self.tuner.decided)

    def check(self) -> None:
        """Return if it could be decided who trains.

        Raises:
            ConfigurationError: nothing is feasible; the run's records and weights are to be written before.
        """
        if (error := self.tuner.error) is not None:
            alike = ", on every server alike" if self._planning.cluster.sides else ""
            raise ConfigurationError(
                f"{error}; what was trained until here is kept: change planner in {self._directory / 'job.yaml'} and "
                f"go on with csd-emu run --resume {self._directory}{alike}"
            ) from error

    def _decided(self, decided: TrialDecision) -> None:
        report = self._planning.describe(decided, self._clock)
        write_plan(self._directory, report)
        told = f"planner: {report.chosen.name} was chosen ({report.prefer}, {report.sure:.0%} sure, {self._clock}):"
        self._on_event(HOST, EventKind.NOTE, " ".join([told, *report.reasons]))
        for note in report.notes:
            self._on_event(HOST, EventKind.NOTE, note)
