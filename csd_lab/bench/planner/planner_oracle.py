"""Oracle of `bench planner`'s disturbed jobs: the best devices and batches in each period, changed at no cost. Pure.

It knows the world's curves, and what a disturbance does to them, and may have any configuration with any drives of each
class, and for each drive the largest batch that it computes within a target: of that it has the best, for any number of
records in a step up to those of the STANNIS plan of the true curves. It has none of the planner's code, nor a tuner's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from csd_lab.bench.planner.planner_cases import Truth
from csd_lab.bench.planner.planner_disturbance import DriveDisturbance
from csd_lab.bench.planner.planner_draws import StepNoise, no_noise
from host.policies.selection.cluster import Floats

# Targets of a step that are tried, over what the plan's slowest device takes: every sixth of them of everything, all of
# the best so many; and how many of these are run with noise.
_TARGETS = np.exp(np.linspace(np.log(0.3), np.log(1.2), 13))
_SCREENED, _FINALISTS = 24, 6
_NODES = tuple[str, ...]


def best_costs(truth: Truth, noise: StepNoise, disturbances: Sequence[DriveDisturbance]) -> Floats:
    """Return (candidates, 2) seconds and joules of a record, of what is best while all `disturbances` act.

    The best by what is preferred is the first of them.
    """
    world, slowed = truth.world, {each.node: each for each in disturbances}
    seconds = {node: _seconds(truth, node, slowed.get(node)) for node in world.nodes}
    screened: list[tuple[float, _NODES, int, float]] = []
    for configuration, batches in zip(truth.configurations, truth.batches, strict=True):
        plan = int(np.dot(configuration, batches))
        for nodes in _choices(truth, configuration, tuple(slowed)):
            target = max(
                seconds[node][batch - 1]
                for node, batch in world.spread(nodes, batches).items()
                if node not in slowed or len(nodes) == 1
            )
            near = _candidates(truth, nodes, seconds, target * _TARGETS[::6], plan, disturbances)
            screened += [(min(near, key=_score)[0], nodes, plan, float(target))] if near else []
    screened.sort(key=_score)
    found: list[tuple[float, dict[str, int]]] = []
    for _, nodes, plan, target in screened[:_SCREENED]:
        found += _candidates(truth, nodes, seconds, target * _TARGETS, plan, disturbances)
    found.sort(key=_score)
    costs = [_cost(truth, batches, noise, disturbances) for _, batches in found[:_FINALISTS]]
    return np.array(sorted(costs, key=lambda cost: truth.score(*cost)))


def oracle_costs(
    truth: Truth, noise: StepNoise, change: DriveDisturbance, at: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return seconds and joules of the job undisturbed, and with `change` after a share `at` of the best's seconds."""
    before, after = best_costs(truth, noise, ()), best_costs(truth, noise, (change,))
    moment, costs = at * float(truth.seconds[truth.best]), list[tuple[float, float]]()
    for first in before:
        records = min(truth.records, moment / first[0])
        each = records * first + (truth.records - records) * after
        costs += [(seconds, joules) for seconds, joules in each.tolist()]
    seconds, joules = (truth.records * before[0]).tolist()
    return (seconds, joules), min(costs, key=lambda cost: truth.score(*cost))


def _score(candidate: tuple[Any, ...]) -> float:
    return float(candidate[0])


def _seconds(truth: Truth, node: str, disturbance: DriveDisturbance | None) -> Floats:
    """Return seconds of batches of 1 to the largest."""
    world = truth.world
    table = world.tables[next(n for n, kind in enumerate(world.cluster.kinds) if node in kind.nodes)]
    batches = np.arange(1, table.largest_batch + 1)
    own = table.step_seconds * world.draws.device[world.nodes.index(node)]
    return np.asarray(own if disturbance is None else own * disturbance.factors(world, batches))


def _choices(truth: Truth, configuration: Sequence[int], slowed: _NODES) -> list[_NODES]:
    """Return the nodes of a configuration: with slowed drives last of their class, and first."""
    choices = []
    for last in (True, False):
        orders = [sorted(kind.nodes, key=lambda node: (node in slowed) == last) for kind in truth.world.cluster.kinds]
        nodes = tuple(n for own, count in zip(orders, configuration, strict=True) for n in own[:count])
        if nodes not in choices:
            choices.append(nodes)
    return choices


def _candidates(
    truth: Truth,
    nodes: _NODES,
    seconds: dict[str, Floats],
    targets: Floats,
    plan: int,
    disturbances: Sequence[DriveDisturbance],
) -> list[tuple[float, dict[str, int]]]:
    """Return (score of a record without noise, node -> records of a step) of each target."""
    found, tried = [], set[tuple[int, ...]]()
    for target in targets:
        batches = tuple(int(np.searchsorted(seconds[node], target, side="right")) for node in nodes)
        if not all(batches) or sum(batches) > plan or batches in tried:
            continue
        tried.add(batches)
        own = dict(zip(nodes, batches, strict=True))
        found.append((truth.score(*_cost(truth, own, no_noise(len(truth.world.nodes)), disturbances)), own))
    return found


def _cost(
    truth: Truth, batches: dict[str, int], noise: StepNoise, disturbances: Sequence[DriveDisturbance]
) -> tuple[float, float]:
    """Return seconds and joules of a record at the mean of the steps of `noise`."""
    world, device = truth.world, noise.device.copy()
    for each in disturbances:
        if each.node in batches:
            factor = each.factors(world, np.array([batches[each.node]]))[0]
            device[:, world.nodes.index(each.node)] *= factor
    done = world.run(batches, StepNoise(device, noise.link, noise.meter))
    records = sum(batches.values())
    return float(done.seconds.mean()) / records, float(done.joules.mean()) / records
