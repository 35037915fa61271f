"""From an array and a job to what a planner chooses from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from csd_emu.config.array_file import QEMU, ArrayConfig, Device
from csd_emu.perfmodel.host_node import exchange_seconds, link_of
from csd_emu.profiles import get_profile
from csd_emu.profiles.profile import End
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import ConfigurationError
from host.config.planner_section import PlannerSection
from host.config.preference import parse_preference
from host.config.sync_section import TuningSection
from host.core.device_time import COUNTED, WALL, DeviceTime
from host.policies.selection.cluster import Cluster, DeviceKind, Side
from host.policies.selection.selection_rules import Constraints, SelectionRules
from host.training.first_batches import StepOverhead
from host.training.sync_plan import SyncPlan

# Of the training's time, what trials may cost where no table knows anything: without one trial all would be a guess.
_SHARE_OF_UNKNOWN = 0.25


@dataclass(frozen=True)
class Exchanged:
    """What crosses in a step of a job.

    Attributes:
        state_bytes: that each drive receives, and sends.
        gradient_bytes: of one gradient.
        record_bytes: of a record.
    """

    state_bytes: int
    gradient_bytes: int
    record_bytes: int


@dataclass(frozen=True)
class Servers:
    """The servers that train together.

    Attributes:
        arrays: server -> its array, in the order of the servers file.
        between_seconds: of a step, in which they add up; a part of that if they do so after several steps.
    """

    arrays: Mapping[str, ArrayConfig]
    between_seconds: float


def make_cluster(config: ArrayConfig, plan: SyncPlan, exchanged: Exchanged, servers: Servers | None = None) -> Cluster:
    """Return the array as kinds of equal nodes: of one profile on one engine, and so of one memory.

    With several servers `config` has all of their drives; those of two servers are of two kinds, for they do not share
    a link.

    Raises:
        ConfigurationError: there is no node.
    """
    arrays = {"": config} if servers is None else servers.arrays
    kinds = tuple(
        replace(kind, name=kind.name if servers is None else f"{kind.name} of {server}", server=number)
        for number, (server, own) in enumerate(arrays.items())
        for kind in _kinds(own, plan)
    )
    if not kinds:
        raise ConfigurationError("planner: the array has no device to choose from; add one, or let the host train")
    sides = _sides(arrays.values())
    return Cluster(
        kinds=tuple(sorted(kinds, key=lambda kind: kind.local)),
        host=sides[0].host,
        link=sides[0].link,
        state_bytes=exchanged.state_bytes,
        gradient_bytes=exchanged.gradient_bytes,
        record_bytes=exchanged.record_bytes,
        record_seconds=plan.overhead.record_seconds,
        sides=() if servers is None else sides,
        between_seconds=0.0 if servers is None else servers.between_seconds,
    )


def move_cluster(cluster: Cluster, arrays: Sequence[ArrayConfig], time: DeviceTime, end: End) -> Cluster:
    """Return the cluster of these arrays, one for each server, with all profiles at one end of their bands.

    `time` has what the steps of each node cost.
    """
    there, counted = time.at(end), {each.name for array in arrays for each in array.list_nodes() if each.engine == QEMU}
    kinds = tuple(
        replace(
            kind,
            profile=kind.profile.at(end),
            encode_seconds=kind.encode_seconds * grown.encode,
            growth=(grown.forward + grown.backward) / 2,
        )
        for kind in cluster.kinds
        # A phase grows as much at every batch.
        for grown in [time.phase_growth(there, kind.nodes[0], COUNTED if kind.nodes[0] in counted else WALL, 1)]
    )
    sides = _sides(arrays, end)
    # The host's own data leave the same share of it.
    share = cluster.link.bytes_per_second / _sides(arrays)[0].link.bytes_per_second
    link = replace(sides[0].link, bytes_per_second=share * sides[0].link.bytes_per_second)
    return replace(cluster, kinds=kinds, host=sides[0].host, link=link, sides=sides if cluster.sides else ())


def _sides(arrays: Iterable[ArrayConfig], end: End | None = None) -> tuple[Side, ...]:
    """Return the host of each array with its side of the link."""
    hosts = ((get_profile(array.host.profile).at(end), array.link) for array in arrays)
    return tuple(Side(host, link_of(link, host)) for host, link in hosts)


def _kinds(config: ArrayConfig, plan: SyncPlan) -> list[DeviceKind]:
    grouped: dict[tuple[str, str, bool], list[Device]] = {}
    for node in config.list_nodes():
        grouped.setdefault((node.profile, node.engine, node.name == HOST), []).append(node)
    names = _names(list(grouped))
    return [_kind(name, nodes, plan) for name, nodes in zip(names, grouped.values(), strict=True)]


def planned_records(plan: SyncPlan) -> int:
    """Return on how many records a job trains in all, with the batches that it would begin with."""
    if plan.job.sync.round_steps is not None:
        return plan.steps * sum(plan.batches)
    return plan.job.rounds * plan.job.epochs * (sum(plan.private_sizes) + plan.public_size)


def planned_private(plan: SyncPlan) -> dict[str, int]:
    """Return node -> how many of `planned_records` nobody trains on if that node takes no part.

    None of any where a round is so many steps: it has as many records whoever takes part.
    """
    if plan.job.sync.round_steps is not None:
        return {}
    passes = plan.job.rounds * plan.job.epochs
    return {node: passes * own for node, own in zip(plan.nodes, plan.private_sizes, strict=True) if own}


def chosen_overhead(cluster: Cluster, nodes: Sequence[str]) -> StepOverhead:
    """Return what a step of these nodes alone takes beside its slowest one's computing."""
    if cluster.sides:
        alone = [chosen_overhead(cluster.of_server(number), nodes) for number in range(len(cluster.sides))]
        return StepOverhead(max(each.step_seconds for each in alone) + cluster.between_seconds, cluster.record_seconds)
    drives = [kind.profile for kind in cluster.kinds if not kind.local for node in kind.nodes if node in nodes]
    sizes = cluster.state_bytes, cluster.gradient_bytes
    return StepOverhead(exchange_seconds(drives, cluster.link, *sizes, HOST in nodes), cluster.record_seconds)


def planner_rules(plan: SyncPlan, window: int = 1) -> SelectionRules:
    """Return what the planner of a job with a section ``planner`` goes by.

    Where servers add up after a window of steps, who takes part is fixed for it: trials have whole multiples of it.
    """
    section, job = plan.job.planner, plan.job
    if section is None:
        raise ConfigurationError("planner: the job has no such section; add one, for example planner: {prefer: edp}")
    chosen_by_tuner = job.tuner != "none" and bool(plan.classes)
    rules = section_rules(section, None if chosen_by_tuner else job.batch_size, job.sync.tuning)
    rules = replace(rules, steps=math.ceil(rules.steps / window) * window, window=window)
    return rules if plan.classes else replace(rules, most_share=_SHARE_OF_UNKNOWN)


def section_rules(section: PlannerSection, batch_size: int | None, tuning: TuningSection) -> SelectionRules:
    """Return what a section ``planner`` says.

    Args:
        section: of a job.
        batch_size: of every node that takes part, where no tuner chooses; None where one does.
        tuning: how that one does.
    """
    return SelectionRules(
        preference=parse_preference(section.prefer),
        constraints=Constraints(
            deadline_seconds=section.deadline,
            watts=section.watts,
            joules=section.joules,
            include=frozenset(section.include),
            exclude=frozenset(section.exclude),
            unused_powered=section.unused == "powered",
        ),
        steps=section.steps,
        batch_size=batch_size,
        tuning=tuning,
        critical_batch=None if section.critical_batch == "measured" else section.critical_batch,
        follows_noise=section.critical_batch == "measured",
    )


def _most_records(plan: SyncPlan, node: str) -> int | None:
    """Return the most records that a node may have in a step; None for no bound.

    A step of all has no more than an epoch: steps of smaller batches than planned would say nothing of the planned
    ones. Of a model that is cut it has no more than the host has room for, in the proportions of the plan.
    """
    if plan.job.tuner == "none":
        return None
    held, planned = sum(plan.private_sizes) + plan.public_size, sum(plan.batches)
    of_epoch = max(1, held // len(plan.nodes), plan.job.sync.tuning.slow_batch or 1) if planned > held else None
    own, most = plan.batches[plan.nodes.index(node)], plan.most_records
    of_host = None if most is None else max(1, own * most // planned)
    return min((bound for bound in (of_epoch, of_host) if bound is not None), default=None)


def _kind(name: str, nodes: Sequence[Device], plan: SyncPlan) -> DeviceKind:
    most = _most_records(plan, nodes[0].name)
    first, known, expected = nodes[0], plan.classes.get(nodes[0].name), plan.expected.get(nodes[0].name)
    return DeviceKind(
        name=name,
        nodes=tuple(node.name for node in nodes),
        profile=get_profile(first.profile),
        speed=None if known is None else replace(known.speed, step_seconds=known.speed.step_seconds[:most]),
        encode_seconds=0.0 if expected is None else expected.encode_seconds,
        local=first.name == HOST,
    )


def _names(keys: Sequence[tuple[str, str, bool]]) -> list[str]:
    """Return a name of each kind: its profile's, with its engine where that alone tells it from another."""
    profiles: Mapping[str, int] = {
        profile: sum(other[0] == profile and not other[2] for other in keys) for profile, _, _ in keys
    }
    return [
        HOST if local else profile if profiles[profile] == 1 else f"{profile} ({engine})"
        for profile, engine, local in keys
    ]
