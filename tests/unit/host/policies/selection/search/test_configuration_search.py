"""The search: exact by symmetry; beyond that a gap that always holds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.config.preference import Preference
from host.policies.selection.cluster import Cluster, Floats
from host.policies.selection.costs.cost_model import Model, ParameterLayout
from host.policies.selection.costs.planned_records import TotalWork
from host.policies.selection.costs.speed_curves import PaceTables, SecondsCurve, Spread, table_of
from host.policies.selection.costs.step_costs import Figures
from host.policies.selection.pareto import pareto_front
from host.policies.selection.search.best_configurations import find_configurations
from host.policies.selection.search.best_splits import MOST_KEPT, Splits
from host.policies.selection.search.configuration_search import Goal, Space, enumerate_configurations
from host.policies.selection.search.cost_bounds import seconds_bounds
from host.policies.selection.search.planned_batches import knees, subset_batches
from host.policies.selection.selection_rules import SelectionRules
from tests.support.examples import examples
from tests.support.planner_clusters import clusters

WEIGHTS = st.floats(0, 3)


def model_of(cluster: Cluster, seed: int, powered: bool) -> tuple[Model, Space, Floats]:
    """A model with devices that differ, and numbers that are off."""
    random = np.random.default_rng(seed)
    tables = [table_of(kind) for kind in cluster.kinds]
    rules = SelectionRules(Preference(time=1))
    spreads = [
        Spread(random.normal(0, 0.05, len(kind.nodes)), np.full(len(kind.nodes), 0.005), float(random.uniform(0, 0.03)))
        for kind in cluster.kinds
    ]
    knee = knees(tables, rules).tolist()
    curves = tuple(SecondsCurve(table, at, 0.1, 0.1) for table, at in zip(tables, knee, strict=True))
    model = Model(Figures.of(cluster), curves, PaceTables.of(spreads), 0.1, powered)
    batches = subset_batches(tables, cluster.counts, rules, np.zeros(1 << len(tables)))
    theta = random.normal(0, 0.1, ParameterLayout(len(tables)).size)
    return model, Space((0,) * len(tables), cluster.counts, batches), theta


@settings(max_examples=examples(60), deadline=None)
@given(clusters(), st.integers(0, 1000), WEIGHTS, WEIGHTS, st.booleans(), st.sampled_from([0, 5, 20, 60]))
def test_the_gap_holds(
    cluster: Cluster, seed: int, time: float, power: float, powered: bool, most_looked_at: int
) -> None:
    model, space, theta = model_of(cluster, seed, powered)
    goal = Goal(time, power)
    every = enumerate_configurations(space.least, space.most)
    best = goal.score(model.costs(theta, space.points(every))).min()
    found = find_configurations(space, model, theta, goal, most_looked_at)
    reached = goal.score(model.costs(theta, space.points(found.counts))).min()
    assert best <= reached + 1e-12 <= best + found.gap + 1e-9


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(clusters(), st.integers(0, 1000), WEIGHTS, WEIGHTS, st.floats(0.0, 1.0), st.sampled_from([0, 5, 20]))
def test_the_gap_holds_where_work_differs_and_is_limited(
    cluster: Cluster, seed: int, time: float, power: float, tight: float, most_looked_at: int
) -> None:
    """Private records of drives that take no part are no work; limits are of the work that is left."""
    model, space, theta = model_of(cluster, seed, True)
    random = np.random.default_rng(seed)
    private = {node: float(random.integers(0, 500)) for kind in cluster.kinds for node in kind.nodes}
    work = TotalWork.of(1000 + sum(private.values()), private, [kind.nodes for kind in cluster.kinds])
    space = replace(space, work=work)
    every = enumerate_configurations(space.least, space.most)
    costs = model.costs(theta, space.points(every))
    seconds = costs.seconds / costs.records * work.records(every)
    goal = Goal(time, power, seconds=float(np.quantile(seconds, tight)))
    best = goal.score(costs, work.records(every)).min()
    found = find_configurations(space, model, theta, goal, most_looked_at)
    reached = goal.score(model.costs(theta, space.points(found.counts)), work.records(found.counts)).min()
    assert best <= reached + 1e-12
    assert reached <= best + found.gap + 1e-9


@pytest.mark.slow
@settings(max_examples=examples(30), deadline=None)
@given(clusters(), st.integers(0, 1000), WEIGHTS, WEIGHTS)
def test_with_room_for_the_open_ones_it_is_exact(cluster: Cluster, seed: int, time: float, power: float) -> None:
    model, space, theta = model_of(cluster, seed, True)
    goal = Goal(time, power)
    # One less than there are, so that classes are gone through.
    found = find_configurations(space, model, theta, goal, int(space.size) - 1)
    every = enumerate_configurations(space.least, space.most)
    best = goal.score(model.costs(theta, space.points(every))).min()
    assert found.gap == 0
    assert goal.score(model.costs(theta, space.points(found.counts))).min() == pytest.approx(best, abs=1e-12)


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(clusters(), st.integers(0, 1000))
def test_bounds_hold_for_every_split(cluster: Cluster, seed: int) -> None:
    model, space, theta = model_of(cluster, seed, True)
    every = enumerate_configurations(space.least, space.most)
    every = every[(every * model.figures.drive).any(axis=1)]
    seconds = model.costs(theta, space.points(every)).seconds
    for row, counts in enumerate(every):
        inside = counts > 0
        least, most = inside.astype(int), np.array(space.most) * inside
        low, high = seconds_bounds(model, theta, space.points(counts[None]), least.tolist(), most.tolist())
        assert low[0] <= seconds[row] * (1 + 1e-9)
        assert seconds[row] <= high[0] * (1 + 1e-9)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.data())
def test_each_configuration_is_there_once(most: list[int], data: st.DataObject) -> None:
    least = [data.draw(st.integers(0, each)) for each in most]
    every = enumerate_configurations(least, most)
    assert len(np.unique(every, axis=0)) == len(every)
    sizes = [high - low + 1 for low, high in zip(least, most, strict=True)]
    assert len(every) == np.prod(sizes) - (not any(least))
    assert np.all(every >= least)
    assert np.all(every <= most)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1000), st.integers(1, 400), st.integers(1, 3), st.sampled_from([0.0, 1.0]))
def test_thinning_keeps_a_bound_for_every_split(seed: int, count: int, numbers: int, idle: float) -> None:
    """Also where more are undominated than are kept."""
    random = np.random.default_rng(seed)
    share = random.uniform(0, 1, count)
    splits = Splits(
        random.integers(0, numbers, count),
        random.integers(0, 9, (count, 2)),
        1 + 50 * share + random.uniform(0, 1, count),
        1 + 30 * share**2 + random.uniform(0, 1, count),
        1 + idle * random.uniform(0, 1, count),
    )
    kept = splits.thinned()
    for row in range(count):
        same = kept.numbers == splits.numbers[row]
        bounded = (kept.records >= splits.records[row]) & (kept.joules <= splits.joules[row])
        assert (same & bounded & (kept.idle <= splits.idle[row])).any()
    assert all((kept.numbers == number).sum() <= MOST_KEPT for number in range(numbers))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30))
def test_the_front_is_what_nothing_dominates(points: list[tuple[int, int]]) -> None:
    first, other = np.array(points, float).T
    front = pareto_front(first, other)

    def dominated(point: tuple[int, int]) -> bool:
        return any(p[0] <= point[0] and p[1] <= point[1] and p != point for p in points)

    assert {points[row] for row in front} == {point for point in points if not dominated(point)}
    assert len({points[row] for row in front}) == len(front)
