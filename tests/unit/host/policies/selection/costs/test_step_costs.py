"""What many configurations cost at once is what the timeline and the simulation say of each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.kind_steps import Paces
from csd_emu.profiles import get_profile
from csd_emu.util.record_shape import Shape
from csd_lab.simulate.nodes import NodeKind, Nodes
from firmware_agent.common.shipped_code import ShippedCode
from host.core.model_facts import Load
from host.policies.batching.device_speeds import DeviceClass
from host.policies.selection.cluster import Cluster
from host.policies.selection.costs.step_costs import Corrections, Figures, Points, step_costs, table_seconds
from host.policies.selection.search.configuration_search import enumerate_configurations
from tests.support.examples import examples
from tests.support.planner_clusters import clusters, make_cluster, step
from tests.support.simulated_steps import array_step

SHAPE: Shape = (1, 8, 8)


def all_of(cluster: Cluster, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    counts = enumerate_configurations([0] * len(cluster.kinds), cluster.counts)
    batches = np.random.default_rng(seed).integers(1, 129, counts.shape) * (counts > 0)
    return counts, batches, table_seconds([kind.speed for kind in cluster.kinds], batches)  # type: ignore[misc]


@settings(max_examples=examples(40), deadline=None)
@given(clusters(most=3), st.integers(0, 1000))
def test_seconds_are_the_timelines(cluster: Cluster, seed: int) -> None:
    counts, batches, compute = all_of(cluster, seed)
    costs = step_costs(Figures.of(cluster), Points(counts, batches), compute)
    for row in range(len(counts)):
        _, seconds = step(cluster, counts[row].tolist(), batches[row].tolist())
        assert costs.seconds[row] == pytest.approx(seconds, rel=1e-9)
        assert costs.records[row] == counts[row] @ batches[row]


@settings(max_examples=examples(25), deadline=None)
@given(clusters(most=3, host=st.just(True)), st.integers(0, 1000))
def test_seconds_and_joules_are_the_simulations(cluster: Cluster, seed: int) -> None:
    counts, batches, compute = all_of(cluster, seed)
    costs = step_costs(Figures.of(cluster), Points(counts, batches), compute)
    for row in np.flatnonzero(counts[:, -1]):
        simulated = array_step(nodes_of(cluster), per_node(cluster, counts[row], batches[row]))
        assert costs.seconds[row] == pytest.approx(simulated.seconds[0], rel=1e-9)
        assert costs.joules[row] == pytest.approx(simulated.joules[0], rel=1e-9)


def nodes_of(cluster: Cluster) -> Nodes:
    kinds = [
        NodeKind(kind.profile, DeviceClass(kind.name, "modelled", kind.speed, 128, None, True), kind.encode_seconds)  # type: ignore[arg-type]
        for kind in cluster.kinds
    ]
    load = Load(ShippedCode("digits_cnn"), SHAPE, cluster.state_bytes, cluster.gradient_bytes, cluster.record_bytes)
    kind_of = np.repeat(np.arange(len(kinds)), cluster.counts)
    names = [node for kind in cluster.kinds for node in kind.nodes]
    return Nodes(names, kinds, kind_of, True, cluster.link, load, 1.0)


def per_node(cluster: Cluster, counts: np.ndarray, batches: np.ndarray) -> np.ndarray:
    every = [
        [batch] * count + [0] * (len(kind.nodes) - count)
        for kind, count, batch in zip(cluster.kinds, counts.tolist(), batches.tolist(), strict=True)
    ]
    return np.array([batch for each in every for batch in each], np.int64)


@settings(max_examples=examples(30), deadline=None)
@given(clusters(), st.integers(0, 1000), st.floats(1, 1.2))
def test_slower_stragglers_never_shorten_a_step(cluster: Cluster, seed: int, late: float) -> None:
    counts, batches, compute = all_of(cluster, seed)
    figures = Figures.of(cluster)
    plain = step_costs(figures, Points(counts, batches), compute)
    wide = np.ones_like(compute)
    slow = step_costs(figures, Points(counts, batches), compute, paces=Paces(late * wide, wide))
    assert np.all(slow.seconds >= plain.seconds * (1 - 1e-12))


@settings(max_examples=examples(30), deadline=None)
@given(clusters(), st.integers(0, 1000), st.floats(0.2, 0.99))
def test_a_slower_link_never_shortens_a_step(cluster: Cluster, seed: int, bandwidth: float) -> None:
    counts, batches, compute = all_of(cluster, seed)
    plain = step_costs(Figures.of(cluster), Points(counts, batches), compute)
    slow = step_costs(
        Figures.of(cluster), Points(counts, batches), compute, corrections=Corrections(bandwidth=bandwidth)
    )
    assert np.all(slow.seconds >= plain.seconds)


def test_unused_drives_that_are_off_draw_nothing() -> None:
    cluster = make_cluster([3], host=False)
    counts, batches, compute = all_of(cluster, 1)
    powered = step_costs(Figures.of(cluster), Points(counts, batches), compute)
    off = step_costs(Figures.of(cluster), Points(counts, batches), compute, unused_powered=False)
    idle = get_profile("newport").power.idle_watts.value
    assert off.joules == pytest.approx(powered.joules - idle * (3 - counts[:, 0]) * powered.seconds)


def test_a_host_without_drives_waits_for_no_record() -> None:
    cluster = make_cluster([], host=True)
    counts, batches, compute = all_of(cluster, 1)
    assert step_costs(Figures.of(cluster), Points(counts, batches), compute).seconds[0] > compute[0, 0]
