from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig, LinkSection
from csd_emu.config.servers_file import FailuresSection, ServersConfig
from csd_emu.perfmodel.power import CHASSIS
from csd_emu.profiles.calibration import CalibrationStore
from csd_lab.bench.scaleout.scaleout_simulation import measure
from csd_lab.simulate.nodes import Nodes
from csd_lab.simulate.outages import Fates, Outages
from csd_lab.simulate.simulated_run import PARTS, Competition, SimulationTrace, simulate
from csd_lab.simulate.simulation_report import describe_tree, ideal_records_per_second
from csd_lab.simulate.tree import Tree, make_tree
from csd_lab.simulate.tuners import make_tuner
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.shipped_code import ShippedCode
from host.config.sync_section import DisturbSection, SyncSection, TuningSection
from host.core.model_facts import Load
from host.core.tuning.batch_tuner import Batches, Floats
from host.policies.batching.fixed import FixedBatches
from tests.support.examples import examples
from tests.support.simulated_steps import array_step

STORE = CalibrationStore(Path("/nonexistent"))
LOAD = Load(ShippedCode("digits_cnn"), (1, 8, 8), 153_384, 153_128, 72)
SYNC = SyncSection(micro_batch=32, tuning=TuningSection(largest_batch=1024))
PROFILES = ("newport", "generic-a53", "solana")

array_shapes = st.tuples(
    st.lists(st.tuples(st.sampled_from(PROFILES), st.integers(1, 3)), min_size=1, max_size=2),
    st.booleans(),
    st.booleans(),
)
server_groups = st.lists(st.tuples(array_shapes, st.integers(1, 3)), min_size=1, max_size=3)


def array_of(groups: list[tuple[str, int]], trains: bool = True, shared: bool = True) -> ArrayConfig:
    devices = [{"profile": profile, "count": count} for profile, count in groups]
    link = {"bandwidth": "20 MB/s", "shared": shared}
    return ArrayConfig.model_validate(
        {"name": "lab", "engine": "native", "host": {"trains": trains}, "devices": devices, "link": link}
    )


def tree_of(*groups: tuple[ArrayConfig, int], **changes: Any) -> Tree:
    arrays = {f"array-{number}.yaml": array for number, (array, _) in enumerate(groups)}
    servers = [
        {"name": f"s{number}", "array": path, "count": count}
        for number, (path, (_, count)) in enumerate(zip(arrays, groups, strict=True))
    ]
    config = ServersConfig.model_validate({"name": "hall", "servers": servers} | changes)
    return make_tree(config, arrays, LOAD, STORE, SYNC)


def server_group_of(server_group: list[tuple[Any, int]], **changes: Any) -> Tree:
    return tree_of(*((array_of(*shape), count) for shape, count in server_group), **changes)


def small(servers: int = 3, drives: int = 2, **changes: Any) -> Tree:
    return tree_of((array_of([("newport", drives)]), servers), **changes)


def still(tree: Tree) -> Outages:
    return Outages(tree, None, np.random.default_rng(0))


def quiet(tree: Tree) -> Callable[[int], Floats]:
    return lambda _: np.ones(len(tree.names))


def unrest(tree: Tree, seed: int) -> Callable[[int], Floats]:
    """Slowdowns of some nodes of some servers; most servers are alike in most steps."""
    draw = np.random.default_rng(seed)

    def slow(_: int) -> Floats:
        hit = draw.random(len(tree.names)) < draw.choice([0, 0.2, 1])
        return np.where(hit, 1 + 3 * draw.random(len(tree.names)), 1.0)

    return slow


def batches_of(tree: Tree, data: st.DataObject) -> Batches:
    one = data.draw(st.integers(1, 300))
    batches = np.full(len(tree.names), one)
    odd = data.draw(st.lists(st.tuples(st.integers(0, len(batches) - 1), st.integers(0, 300)), max_size=4))
    for node, batch in odd:
        batches[node] = batch
    batches[0] = one
    return batches


def members(tree: Tree) -> list[tuple[Nodes, Batches]]:
    """The nodes of each server by itself, and their places in the tree."""
    found = {
        int(server): (block.nodes, places)
        for block in tree.blocks
        for server, places in zip(block.servers, block.places, strict=True)
    }
    return [found[server] for server in range(tree.count)]


def idle_watts(nodes: Nodes) -> float:
    host = nodes.host.profile
    chassis = host.chassis_watts.value if host.chassis_watts is not None else 0.0
    return sum(each.power.idle_watts.value for each in nodes.profiles()) + host.power.idle_watts.value + chassis


def play(
    tree: Tree, batches: Batches, slowdowns: Callable[[int], Floats], steps: int, outages: Outages
) -> list[tuple[float, float, float]]:
    """Seconds, records and joules of each window, each server simulated by itself, step by step."""
    clock, windows, dead = 0.0, [], np.zeros(len(batches), bool)
    for first in range(1, steps + 1, tree.config.reduce_every):
        count = min(tree.config.reduce_every, steps + 1 - first)
        there = [server for server in range(tree.count) if not outages.servers.gone[server]]
        took, records, dynamic = dict.fromkeys(there, 0.0), dict.fromkeys(there, 0.0), 0.0
        for step in range(first, first + count):
            slow, given = slowdowns(step), np.where(dead, 0, batches)
            costs = {}
            for server in there:
                places = members(tree)[server][1]
                costs[server] = array_step(members(tree)[server][0], given[places], slow[places])
                took[server] += costs[server].seconds[0]
            outages.pass_drives(clock + max(took.values()))
            dead = outages.drives_gone.copy()
            for server, cost in costs.items():
                nodes, places = members(tree)[server]
                records[server] += float(np.where(dead[places], 0, given[places]).sum())
                dynamic += cost.joules[0] - idle_watts(nodes) * cost.seconds[0]
        on = np.zeros(tree.count, bool)
        on[there] = True
        between = tree.reduce(on).seconds
        now = clock + max(took.values()) + between
        changes = outages.pass_servers(now)
        failures = outages.rendezvous_seconds if len(changes.lost) + len(changes.back) else 0.0
        if len(changes.lost):
            on[changes.lost] = False
            failures += tree.reduce(on).seconds
        seconds = max(took.values()) + between + failures
        watts = sum(idle_watts(members(tree)[server][0]) for server in there)
        windows.append((seconds, sum(records[s] for s in there if on[s]), dynamic + watts * seconds))
        clock = now + failures
    return windows


def summed(trace: SimulationTrace, every: int) -> np.ndarray:
    """Seconds, records and joules of each window of a trace."""
    columns = np.stack([trace.seconds, trace.records, trace.joules], axis=1)
    return np.stack([columns[first : first + every].sum(axis=0) for first in range(0, len(columns), every)])


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    server_group=server_groups, every=st.integers(1, 3), rack=st.integers(1, 3), seed=st.integers(0, 99), data=st.data()
)
def test_a_run_is_that_of_servers_taken_one_by_one(
    server_group: list[tuple[Any, int]], every: int, rack: int, seed: int, data: st.DataObject
) -> None:
    racks = {"servers": rack, "oversubscription": 3}
    tree = server_group_of(
        server_group, reduce_every=every, racks=racks, link={"bandwidth": "10 MB/s", "latency": "1 ms"}
    )
    batches = batches_of(tree, data)
    trace = simulate(tree, FixedBatches(batches), unrest(tree, seed), 5)
    want = play(tree, batches, unrest(tree, seed), 5, still(tree))
    assert summed(trace, every) == pytest.approx(np.array(want), rel=1e-12)
    assert sum(trace.components.values()) == pytest.approx(trace.joules.sum(), rel=1e-12)
    assert (trace.parts >= -1e-12).all()


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(server_group=server_groups, every=st.integers(1, 2), seed=st.integers(0, 99), data=st.data())
def test_so_it_is_when_servers_and_drives_fail_and_come_back(
    server_group: list[tuple[Any, int]], every: int, seed: int, data: st.DataObject
) -> None:
    tree = server_group_of(server_group, reduce_every=every)
    batches = batches_of(tree, data)
    length = float(simulate(tree, FixedBatches(batches), quiet(tree), 1).seconds.sum())
    mtbf, repair = f"{8 * length:.17g} s", f"{2 * length:.17g} s"
    failures = FailuresSection.model_validate(
        {"drive_mtbf": mtbf, "drive_repair": repair, "server_mtbf": mtbf, "rendezvous": f"{length:.17g} s"}
    )

    def drawn() -> Outages:
        outages = Outages(tree, failures, np.random.default_rng(seed))
        outages.servers._fails[0] = np.inf  # one server stays: what becomes of a run without any is another test's
        return outages

    trace = simulate(tree, FixedBatches(batches), unrest(tree, seed), 6, outages=drawn())
    want = play(tree, batches, unrest(tree, seed), 6, drawn())
    assert summed(trace, every) == pytest.approx(np.array(want), rel=1e-12)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(server_group=server_groups, seed=st.integers(0, 99), data=st.data())
def test_servers_in_another_order_change_nothing(
    server_group: list[tuple[Any, int]], seed: int, data: st.DataObject
) -> None:
    one = server_group_of(server_group)
    batches = batches_of(one, data)
    turned = server_group_of(server_group[::-1])
    order = []  # of the nodes of `one`, as `turned` has them
    begin = len(one.names)
    for shape, count in reversed(server_group):
        size = count * len(server_group_of([(shape, 1)]).names)
        begin -= size
        order += list(range(begin, begin + size))
    slow = unrest(one, seed)
    seen = [slow(step) for step in range(1, 4)]
    first = simulate(one, FixedBatches(batches), lambda step: seen[step - 1], 3)
    second = simulate(turned, FixedBatches(batches[order]), lambda step: seen[step - 1][order], 3)
    assert second.seconds == pytest.approx(first.seconds, rel=1e-12)
    assert second.parts == pytest.approx(first.parts, rel=1e-9, abs=1e-12)
    assert second.records.tolist() == first.records.tolist()
    assert second.joules == pytest.approx(first.joules, rel=1e-12)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    servers=st.integers(2, 12),
    rack=st.integers(1, 5),
    algorithm=st.sampled_from(["ring", "scattered", "hierarchical"]),
    ratios=st.lists(st.floats(1, 100), min_size=2, max_size=4),
)
def test_more_oversubscription_never_makes_it_faster(
    servers: int, rack: int, algorithm: str, ratios: list[float]
) -> None:
    rates = []
    for ratio in sorted(ratios):
        tree = small(servers, racks={"servers": rack, "oversubscription": ratio, "allreduce": algorithm})
        rates.append(simulate(tree, FixedBatches([8] * len(tree.names)), quiet(tree), 2))
    seconds = [trace.seconds.sum() for trace in rates]
    assert all(later >= sooner * (1 - 1e-12) for sooner, later in pairwise(seconds))


@given(every=st.integers(1, 6), windows=st.integers(1, 4))
def test_adding_up_every_k_steps_divides_its_seconds_by_k(every: int, windows: int) -> None:
    steps = every * windows
    shares = PARTS.index("server_link"), PARTS.index("hops")
    found = []
    for k in (1, every):
        tree = small(4, reduce_every=k)
        trace = simulate(tree, FixedBatches([8] * len(tree.names)), quiet(tree), steps)
        found.append(trace.parts.sum(axis=0))
    for share in shares:
        assert found[1][share] == pytest.approx(found[0][share] / every, rel=1e-12)
    assert np.delete(found[1], shares) == pytest.approx(np.delete(found[0], shares), rel=1e-12)


@settings(max_examples=examples(40))
@given(server_group=server_groups, every=st.integers(1, 3), seed=st.integers(0, 99), data=st.data())
def test_nothing_beats_servers_that_need_not_wait_for_each_other(
    server_group: list[tuple[Any, int]], every: int, seed: int, data: st.DataObject
) -> None:
    tree = server_group_of(server_group, reduce_every=every)
    batches = batches_of(tree, data)
    trace = simulate(tree, FixedBatches(batches), unrest(tree, seed), 4)
    assert 0 < trace.records_per_second() <= ideal_records_per_second(tree, batches) * (1 + 1e-12)


def test_hypertune_decides_over_the_drives_of_all_servers_at_once() -> None:
    array = array_of([("newport", 4)]).model_copy(update={"link": LinkSection()})
    tree = tree_of((array, 3))
    disturb = [DisturbSection(device="csd-01", at_step=10, weight=100, steps=60)]
    rates = {}
    for name in ("stannis", "hypertune"):
        tuner = make_tuner(name, tree, TuningSection(slow_batch=32), 1, 60)
        trace = simulate(tree, tuner, Competition(tree, disturb), 60)
        rates[name] = float(trace.records[30:].sum() / trace.seconds[30:].sum())
    assert rates["hypertune"] > 1.5 * rates["stannis"]
    changed = np.flatnonzero(trace.first != trace.last).tolist()
    assert [tree.names[node] for node in changed] == ["s0-0/csd-01"]


def test_a_server_that_is_lost_costs_its_work_a_rendezvous_and_an_all_reduce() -> None:
    tree = small(4)
    failures = FailuresSection.model_validate({"rendezvous": "7 s"})
    outages = Outages(tree, failures, np.random.default_rng(0))
    whole = simulate(tree, FixedBatches([8] * len(tree.names)), quiet(tree), 4)
    outages.servers._fails[2] = 1.5 * whole.seconds[0]
    outages.servers._repair = whole.seconds[0]
    trace = simulate(tree, FixedBatches([8] * len(tree.names)), quiet(tree), 4, outages=outages)
    assert trace.servers.tolist() == [4, 3, 3, 4]
    assert trace.drives.tolist() == [8, 6, 6, 8]
    assert (trace.records / whole.records).tolist() == [1, 0.75, 0.75, 1]
    lost = trace.parts[:, PARTS.index("failures")]
    between = tree.reduce(np.ones(4, bool)).seconds
    assert lost.tolist() == pytest.approx([0, 7 + between, 7, 0])
    assert trace.losses == [1, 1, 0, 0]
    left = np.array([True, True, False, True])
    assert trace.parts[1, 3:6].sum() == pytest.approx(tree.reduce(left).seconds)
    assert tree.reduce(left).seconds < between


@pytest.mark.parametrize("name", ["stannis", "hypertune"])
def test_drives_that_fail_are_left_out_and_taken_back(name: str) -> None:
    tree = small(2, 3)
    tuner = make_tuner(name, tree, TuningSection(slow_batch=16), 1, 30)
    length = float(simulate(tree, tuner, quiet(tree), 1).seconds[0])
    tuner = make_tuner(name, tree, TuningSection(slow_batch=16), 1, 30)
    outages = Outages(tree, None, np.random.default_rng(0))
    outages._drives._fails[4], outages._drives._repair = 2.5 * length, 3 * length
    trace = simulate(tree, tuner, quiet(tree), 12, outages=outages)
    assert trace.losses == [0, 0, 1, 1]
    assert trace.drives[2] == trace.drives[3] == 5
    assert (trace.drives[0], trace.drives[-1]) == (6, 6)
    assert trace.first.tolist() == trace.last.tolist()


def test_with_too_few_servers_the_others_wait_or_the_run_ends() -> None:
    tree = small(2, membership={"min": 2})
    batches = FixedBatches([8] * len(tree.names))
    length = float(simulate(tree, batches, quiet(tree), 1).seconds[0])
    outages = Outages(tree, None, np.random.default_rng(0))
    outages.servers._fails[1] = 1.5 * length
    trace = simulate(tree, FixedBatches([8] * len(tree.names)), quiet(tree), 5, outages=outages)
    assert len(trace.seconds) == 2
    assert trace.ended.startswith("step 3 was never taken: 1 of 2 servers are left, fewer than 2 (membership.min)")
    outages = Outages(tree, None, np.random.default_rng(0))
    outages.servers._fails[1], outages.servers._repair = 1.5 * length, 1000.0
    trace = simulate(tree, FixedBatches([8] * len(tree.names)), quiet(tree), 5, outages=outages)
    assert (len(trace.seconds), trace.ended) == (5, "")
    lost = trace.parts[:, PARTS.index("failures")]
    between = tree.reduce(np.ones(2, bool)).seconds
    # Lost within step 2, whose all-reduce broke; after its rendezvous the other one waits, then there is one for both.
    assert lost[1] == pytest.approx(20 + between)
    assert trace.seconds[:3].sum() == pytest.approx(1.5 * length + 1000 + 20 + length, rel=1e-9)
    assert trace.joules[2] > 1000 * idle_watts(tree.blocks[0].nodes) * 0.9


def test_lifetimes_are_as_long_as_was_said_and_those_that_are_gone_come_back() -> None:
    fates, now, lost, back = Fates(2000, 50.0, 5.0, np.random.default_rng(1)), 0.0, 0, 0
    for now in np.arange(1.0, 501.0):
        changes = fates.pass_time(float(now))
        lost, back = lost + len(changes.lost), back + len(changes.back)
        assert fates.gone.sum() == lost - back
    assert lost == pytest.approx(2000 * 500 / 55, rel=0.03)
    assert fates.gone.mean() == pytest.approx(5 / 55, rel=0.2)
    assert Fates(3, None, None, np.random.default_rng(1)).pass_time(1e12).lost.tolist() == []


def test_the_same_seed_is_the_same_run() -> None:
    tree = small(5)
    failures = FailuresSection.model_validate({"server_mtbf": "5 s", "drive_mtbf": "5 s", "drive_repair": "1 s"})
    found = [
        simulate(
            tree,
            FixedBatches([8] * len(tree.names)),
            quiet(tree),
            30,
            outages=Outages(tree, failures, np.random.default_rng(seed)),
        ).seconds.tolist()
        for seed in (1, 1, 2)
    ]
    assert found[0] == found[1] != found[2]


def test_a_run_is_described_by_where_its_seconds_and_bytes_go() -> None:
    tree = small(4, 3, racks={"servers": 2, "oversubscription": 2}, link={"bandwidth": "1 MB/s", "latency": "50 us"})
    trace = simulate(tree, FixedBatches([8] * len(tree.names)), quiet(tree), 5)
    figures = describe_tree(tree, trace)
    parts = [getattr(figures.seconds, part) for part in PARTS]
    assert sum(parts) == pytest.approx(figures.array_seconds)
    assert figures.bottleneck == figures.next_bottleneck == "server_link"
    assert parts[3] == pytest.approx(5 * 2 * 3 / 4 * LOAD.state_bytes / 1e6)
    assert parts[4] == 0  # one transfer at a time is not slowed by an uplink as wide as a link
    assert figures.bytes.server_links == pytest.approx(5 * 2 * 3 * LOAD.state_bytes)
    assert figures.bytes.drive_links == pytest.approx(5 * 4 * (2 * 3 * LOAD.state_bytes + 8 * LOAD.record_bytes))
    assert figures.efficiency == pytest.approx(figures.records_per_second / figures.ideal_records_per_second)
    assert figures.allreduce_seconds["scattered"] > figures.allreduce_seconds["ring"]
    assert {each.profile: each.nodes for each in figures.classes} == {"newport": 12, "xeon-4108": 4}
    assert CHASSIS in figures.joules


def test_a_node_that_is_not_there_and_a_batch_that_does_not_fit_are_named() -> None:
    tree = small(2)
    with pytest.raises(ConfigurationError, match=r"'csd-07' is none of the 6 simulated nodes, s0-0/csd-00 to s0-1/h"):
        Competition(tree, [DisturbSection(device="csd-07", at_step=1, weight=1, steps=1)])
    assert tree.index("s0-1/host") == 5
    with pytest.raises(ConfigurationError, match="s0-0: csd-00: a batch of 65536"):
        make_tuner("none", tree, TuningSection(), 65536, 1)
    with pytest.raises(ConfigurationError, match="are more than 1000000"):
        tree_of((array_of([("newport", 1000)]), 1000))


@pytest.mark.parametrize("seed", [0, 7])
def test_the_bench_simulates_a_hall_in_unrest(seed: int) -> None:
    found = measure(seed, servers=3, steps=12, runs=2)
    assert (found["nodes"], found["distinct_steps"]) == (111, 12)
    assert 0 < found["efficiency"] < 1
    assert sorted(found) == sorted({*found, "simulate_36000_drives_seconds", "wall_seconds_0", "wall_seconds_1"})
