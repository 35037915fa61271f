"""The search: exact by symmetry; beyond that a gap that always holds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.policies.selection.cluster import Cluster
from host.policies.selection.costs.planned_records import TotalWork
from host.policies.selection.reasons import pareto_front
from host.policies.selection.search.branch_and_bound import BranchAndBound, find_configurations, first_boxes
from host.policies.selection.search.configuration_search import Goal, Space, enumerate_configurations
from tests.support.examples import examples
from tests.support.planner_clusters import clusters, model_of

WEIGHTS = st.floats(0, 3)


@settings(max_examples=examples(60), deadline=None)
@given(clusters(), st.integers(0, 1000), WEIGHTS, WEIGHTS, st.booleans(), st.sampled_from([0, 5, 20, 60]))
def test_the_gap_holds(
    cluster: Cluster, seed: int, time: float, power: float, powered: bool, most_looked_at: int
) -> None:
    model, space, theta = model_of(cluster, seed, powered)
    goal = Goal(time, power)
    every = enumerate_configurations(space.least, space.most)
    best = goal.score(model.costs(theta, space.points(every))).min()
    found = find_configurations(space, model, theta, goal, 0, most_looked_at)
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
    found = find_configurations(space, model, theta, goal, 0, most_looked_at)
    reached = goal.score(model.costs(theta, space.points(found.counts)), work.records(found.counts)).min()
    assert best <= reached + 1e-12
    assert reached <= best + found.gap + 1e-9


@pytest.mark.slow
@settings(max_examples=examples(30), deadline=None)
@given(clusters(), st.integers(0, 1000), WEIGHTS, WEIGHTS)
def test_with_room_for_the_open_ones_it_is_exact(cluster: Cluster, seed: int, time: float, power: float) -> None:
    model, space, theta = model_of(cluster, seed, True)
    goal = Goal(time, power)
    # One less than there are, so that they are searched.
    found = find_configurations(space, model, theta, goal, int(space.size) - 1)
    every = enumerate_configurations(space.least, space.most)
    best = goal.score(model.costs(theta, space.points(every))).min()
    assert found.gap == 0
    assert goal.score(model.costs(theta, space.points(found.counts))).min() == pytest.approx(best, abs=1e-12)


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(clusters(), st.integers(0, 1000), WEIGHTS, WEIGHTS, st.booleans())
def test_bounds_hold_for_every_configuration_of_a_box(
    cluster: Cluster, seed: int, time: float, power: float, powered: bool
) -> None:
    model, space, theta = model_of(cluster, seed, powered)
    goal = Goal(time, power)
    every = enumerate_configurations(space.least, space.most)
    scores = goal.score(model.costs(theta, space.points(every)))
    random = np.random.default_rng(seed)
    for row in random.integers(0, len(every), 30):
        alike = ((every > 0) == (every[row] > 0)).all(axis=1)
        other = every[random.choice(np.flatnonzero(alike))]
        low, high = np.minimum(every[row], other), np.maximum(every[row], other)
        inside = alike & ((every >= low) & (every <= high)).all(axis=1)
        bounds = BranchAndBound(space, model, theta, goal).bounds(low[None], high[None])
        assert bounds[0] <= scores[inside].min() + 1e-9


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.data())
def test_first_boxes_have_each_configuration_once(most: list[int], data: st.DataObject) -> None:
    least = [data.draw(st.integers(0, each)) for each in most]
    space = Space(tuple(least), tuple(most), np.zeros((1 << len(most), len(most)), np.int64))
    low, high = first_boxes(space)
    inside = [
        ((each >= low) & (each <= high)).all(axis=1).sum() for each in enumerate_configurations(space.least, space.most)
    ]
    assert set(inside) <= {1}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.data())
def test_each_configuration_is_there_once(most: list[int], data: st.DataObject) -> None:
    least = [data.draw(st.integers(0, each)) for each in most]
    every = enumerate_configurations(least, most)
    assert len(np.unique(every, axis=0)) == len(every)
    sizes = [high - low + 1 for low, high in zip(least, most, strict=True)]
    assert len(every) == np.prod(sizes) - (not any(least))
    assert np.all(every >= least)
    assert np.all(every <= most)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30))
def test_the_front_is_what_nothing_dominates(points: list[tuple[int, int]]) -> None:
    first, other = np.array(points, float).T
    front = pareto_front(first, other)

    def dominated(point: tuple[int, int]) -> bool:
        return any(p[0] <= point[0] and p[1] <= point[1] and p != point for p in points)

    assert {points[row] for row in front} == {point for point in points if not dominated(point)}
    assert len({points[row] for row in front}) == len(front)
