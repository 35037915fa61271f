"""Which drives of several servers should train: what their steps cost, and what is chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import ConfigurationError
from host.config.preference import parse_preference
from host.core.tuning.speed_table import SpeedTable
from host.policies.selection.cluster import Cluster, Side
from host.policies.selection.costs.step_costs import Figures, Points, step_costs, table_seconds
from host.policies.selection.planner import Planner
from host.policies.selection.search.branch_and_bound import BranchAndBound, find_configurations, first_boxes
from host.policies.selection.search.configuration_search import Goal, enumerate_configurations
from host.policies.selection.selection_rules import SelectionRules
from tests.support.examples import examples
from tests.support.planner_clusters import make_cluster, model_of, step

TIME, RECORDS = parse_preference("time"), 1e6


def together(parts: Sequence[Cluster], between_seconds: float = 0.0) -> Cluster:
    """The drives of clusters as those of as many servers."""
    kinds = [
        dataclasses.replace(kind, name=f"{kind.name} of {number}", server=number)
        for number, part in enumerate(parts)
        for kind in part.kinds
    ]
    sides = tuple(Side(part.host, part.link) for part in parts)
    return dataclasses.replace(parts[0], kinds=tuple(kinds), sides=sides, between_seconds=between_seconds)


def servers(most: int = 3) -> st.SearchStrategy[list[Cluster]]:
    """Servers with drives of their own, and links of their own."""
    counts = st.lists(st.integers(1, 3), min_size=1, max_size=2)
    each = st.tuples(counts, st.sampled_from([1e7, 1e9]), st.integers(0, 1000), st.booleans())
    return st.lists(each, min_size=1, max_size=most).map(
        lambda drawn: [
            make_cluster(counts, False, bandwidth, seed, shared=shared, prefix=f"s{number}-")
            for number, (counts, bandwidth, seed, shared) in enumerate(drawn)
        ]
    )


def tables_of(cluster: Cluster) -> list[SpeedTable]:
    return [kind.speed for kind in cluster.kinds if kind.speed is not None]


@settings(max_examples=examples(30), deadline=None)
@given(servers(), st.floats(0, 10), st.booleans(), st.data())
def test_a_step_lasts_as_the_slowest_servers_and_the_sum_between_them(
    parts: list[Cluster], between: float, powered: bool, data: st.DataObject
) -> None:
    """Against each server's step by itself, composed event by event; who waits, or has no drive in it, idles."""
    whole = together(parts, between)
    counts = np.array([[data.draw(st.integers(0, len(kind.nodes))) for kind in whole.kinds]])
    batches = np.array([[data.draw(st.integers(1, 64)) for _ in whole.kinds]]) * (counts > 0)
    compute = table_seconds(tables_of(whole), batches)
    costs = step_costs(Figures.of(whole), Points(counts, batches), compute, unused_powered=powered)
    alone, joules, watts = [], 0.0, 0.0
    for number, part in enumerate(parts):
        own = whole.kinds_of(number)
        configuration, records = counts[0, own].tolist(), batches[0, own].tolist()
        points = Points(counts[:, own], batches[:, own])
        cost = step_costs(Figures.of(part), points, compute[:, own], unused_powered=powered)
        active = any(configuration)
        alone.append(step(part, configuration, records)[1] if active else 0.0)
        joules += float(cost.joules[0] - cost.idle_watts[0] * cost.seconds[0]) * active
        watts += float(cost.idle_watts[0])
    assert costs.seconds[0] == pytest.approx(max(alone) + between, rel=1e-9)
    assert costs.joules[0] == pytest.approx(joules + watts * costs.seconds[0], rel=1e-9)
    assert costs.idle_watts[0] == pytest.approx(watts)
    assert costs.records[0] == (counts * batches).sum()


@pytest.mark.slow
@settings(max_examples=examples(10), deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=2), min_size=2, max_size=3), st.integers(0, 1000))
def test_servers_choose_what_one_with_all_drives_would_where_links_cost_nothing(
    counts: list[list[int]], seed: int
) -> None:
    counts = [[1, 1], *counts[1:]]
    free: dict[str, Any] = {"host": False, "bandwidth": 1e15, "seed": seed, "state_bytes": 1, "shared": False}
    whole = make_cluster(np.sum(counts, axis=0).tolist(), **free)
    parts, taken = [], [0] * len(whole.kinds)
    for row in counts:
        kinds = []
        for number, (kind, count) in enumerate(zip(whole.kinds, row, strict=True)):
            nodes = kind.nodes[taken[number] : taken[number] + count]
            taken[number] += count
            kinds += [dataclasses.replace(kind, nodes=nodes)] if nodes else []
        if kinds:
            parts.append(dataclasses.replace(whole, kinds=tuple(kinds)))
    rules = SelectionRules(TIME, steps=0, batch_size=16)
    one, several = (Planner(cluster, rules, RECORDS) for cluster in (whole, together(parts)))
    seconds = []
    for planner in (one, several):
        chosen = set(planner.choose_nodes(planner.decide().chosen.configuration))
        configuration = [len(chosen.intersection(kind.nodes)) for kind in whole.kinds]
        seconds.append(step(whole, configuration, [16] * len(configuration))[1] / len(chosen))
    # Drives of a kind are believed to differ a little, and here those of two servers are two kinds.
    assert seconds[1] == pytest.approx(seconds[0], rel=0.05)


@pytest.mark.slow
@settings(max_examples=examples(10), deadline=None)
@given(servers(2), st.lists(st.floats(0, 5), min_size=2, max_size=4))
def test_the_dearer_the_sum_between_servers_the_more_records_a_step_has(
    parts: list[Cluster], between: list[float]
) -> None:
    """It is paid once per step, whoever takes part."""
    records = []
    for seconds in sorted(between):
        decided = Planner(together(parts, seconds), SelectionRules(TIME, steps=0, batch_size=16), RECORDS).decide()
        records.append(sum(decided.chosen.configuration))
    assert records == sorted(records)


def test_more_kinds_than_are_looked_at_are_refused() -> None:
    parts = [make_cluster([1] * 3, False, prefix=f"s{number}-") for number in range(5)]
    with pytest.raises(ConfigurationError, match=r"15 kinds of drives on 5 servers are more than it looks at, 12"):
        Planner(together(parts), SelectionRules(TIME), RECORDS)
    Planner(together(parts[:4]), SelectionRules(TIME), RECORDS)


@settings(max_examples=examples(10), deadline=None)
@given(servers(2), st.integers(0, 1000), st.floats(0, 3), st.floats(0, 3))
def test_bounds_hold_for_all_configurations_of_servers(
    parts: list[Cluster], seed: int, time: float, power: float
) -> None:
    model, space, theta = model_of(together(parts, 0.1), seed, powered=False)
    goal = Goal(time, power)
    best = goal.score(model.costs(theta, space.points(enumerate_configurations(space.least, space.most)))).min()
    low, high = first_boxes(space)
    assert BranchAndBound(space, model, theta, goal).bounds(low, high).min() <= best + 1e-9
    found = find_configurations(space, model, theta, goal, 0)
    assert found.gap == 0
    assert goal.score(model.costs(theta, space.points(found.counts))).min() == pytest.approx(best, abs=1e-12)
