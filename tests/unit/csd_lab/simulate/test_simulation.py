from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.host_node import host_activity, reduce_seconds, storage_of
from csd_emu.perfmodel.power import add_up, device_energy, host_energy
from csd_emu.perfmodel.timeline import HOST_READER, Activity, Composed, compose
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.util.node_names import HOST
from csd_lab.simulate.nodes import Nodes, make_nodes
from csd_lab.simulate.simulated_baseline import host_alone
from csd_lab.simulate.simulated_run import Competition, simulate
from csd_lab.simulate.simulation_report import describe_array
from csd_lab.simulate.tree import array_tree
from csd_lab.simulate.tree_steps import TreeStepModel
from csd_lab.simulate.tuners import make_tuner, plan
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.shipped_code import ShippedCode
from host.config.sync_section import DisturbSection, SyncSection, TuningSection
from host.core.model_facts import Load
from host.core.tuning.batch_tuner import Batches, Floats, Retune
from host.policies.batching.fixed import FixedBatches
from tests.support.simulated_steps import array_step

STORE = CalibrationStore(Path("/nonexistent"))
LOAD = Load(ShippedCode("digits_cnn"), (1, 8, 8), 153_384, 153_128, 72)
PROFILES = ("newport", "generic-a53", "solana")


def nodes_of(
    *groups: tuple[str, int], trains: bool = True, drives: int | None = None, micro_batch: int | None = 32, **link: Any
) -> Nodes:
    devices = [{"profile": profile, "count": count} for profile, count in groups]
    config = {"name": "lab", "engine": "native", "host": {"trains": trains}, "devices": devices, "link": link}
    return make_nodes(
        ArrayConfig.model_validate(config), LOAD, STORE, SyncSection(micro_batch=micro_batch), drives=drives
    )


def composed(nodes: Nodes, batches: Batches, slowdowns: Floats) -> tuple[Composed, dict[str, dict[str, float]]]:
    """A step as the timeline has it, object by object, with the phases of each node."""
    activities, phases = [], {}
    for name, number, batch, slow in zip(nodes.names, nodes.kind_of, batches, slowdowns, strict=True):
        kind = nodes.kinds[number]
        encode = kind.encode_seconds * slow if batch else 0.0
        phases[name] = {"forward": kind.speed.seconds(int(batch)) * slow - encode, "encode": encode}
        if name == HOST:
            storage = storage_of(nodes.host.profile, nodes.profiles())
            activities.append(host_activity(int(batch), LOAD.record_bytes, phases[name], storage))
            continue
        figures = kind.profile
        activities.append(
            Activity(
                name,
                *(LOAD.state_bytes if batch else 0, int(batch) * LOAD.record_bytes, int(batch > 0)),
                phases[name],
                LOAD.state_bytes if batch else 0,
                *(figures.flash_bytes_per_second.value, figures.flash_latency_seconds.value),
                *(figures.link_bytes_per_second.value, figures.link_latency_seconds.value),
            )
        )
    return compose(activities, nodes.link, reduce_seconds(LOAD.gradient_bytes, int(np.count_nonzero(batches)))), phases


def joules_of(nodes: Nodes, step: Composed, batches: Batches) -> float:
    """Energy of a composed step: every drive, and the host with chassis."""
    plain = int(batches[-1]) * LOAD.record_bytes / nodes.drives if nodes.trains else 0.0
    total = 0.0
    for name, profile in zip(nodes.names, nodes.profiles(), strict=False):
        did = add_up(profile, [span for span in step.spans if span.device == name])
        read, link = did.read_bytes + plain, did.link_bytes + plain
        total += sum(
            device_energy(profile.power, step.seconds, did.busy_core_seconds, did.busy_seconds, read, link).values()
        )
    host = nodes.host.profile
    did = add_up(host, [span for span in step.spans if span.device in (HOST, HOST_READER)])
    messages = 2 * LOAD.state_bytes * int(np.count_nonzero(batches[: nodes.drives]))
    link = messages + did.link_bytes
    return total + sum(host_energy(host, step.seconds, did.busy_core_seconds, did.busy_seconds, link).values())


@given(
    groups=st.lists(st.tuples(st.sampled_from(PROFILES), st.integers(1, 4)), min_size=1, max_size=3),
    trains=st.booleans(),
    shared=st.booleans(),
    data=st.data(),
)
def test_a_step_costs_what_the_timeline_and_the_power_model_say(
    groups: list[tuple[str, int]], trains: bool, shared: bool, data: st.DataObject
) -> None:
    nodes = nodes_of(*groups, trains=trains, bandwidth="20 MB/s", shared=shared)
    count = len(nodes.names)
    batches = np.array(data.draw(st.lists(st.integers(0, 300), min_size=count, max_size=count)))
    slowdowns = np.array(data.draw(st.lists(st.floats(0.5, 5), min_size=count, max_size=count)))
    cost = array_step(nodes, batches, slowdowns)
    step, phases = composed(nodes, batches, slowdowns)
    assert cost.seconds[0] == pytest.approx(step.seconds, rel=1e-12)
    assert cost.compute_seconds == pytest.approx([sum(phases[name].values()) for name in nodes.names])
    assert cost.joules[0] == pytest.approx(joules_of(nodes, step, batches), rel=1e-9)
    assert cost.records[0] == batches.sum()
    crossed = [span.bytes for span in step.spans if span.phase in ("receive", "send")]
    assert cost.bytes[0].tolist() == pytest.approx([sum(crossed), 0, 0])


def test_a_step_with_the_inputs_of_the_step_before_is_not_costed_again() -> None:
    model, batches = TreeStepModel(array_tree(nodes_of(("newport", 2)))), np.array([8, 8, 8])
    cost = model.cost(batches, np.ones(3))
    assert model.cost(batches.copy(), np.ones(3)) is cost
    slow, _ = model.cost(batches, np.full(3, 2.0))
    assert slow.ready_seconds > cost[0].ready_seconds
    larger, compute = model.cost(batches * 2, np.full(3, 2.0))
    assert larger.link_bytes > slow.link_bytes
    assert (compute > cost[1]).all()


@given(drives=st.integers(1, 60), batch=st.integers(1, 300), ratio=st.sampled_from(["low", "middle", "high"]))
def test_no_batch_makes_an_array_faster_than_all_its_parts(drives: int, batch: int, ratio: Any) -> None:
    config = ArrayConfig.model_validate(
        {"name": "lab", "engine": "native", "host": {"trains": True}, "devices": [{"profile": "newport"}]}
    )
    nodes = make_nodes(config, LOAD, STORE, SyncSection(micro_batch=32), ratio, drives)
    tree = array_tree(nodes)
    tuner = make_tuner("stannis", tree, TuningSection(slow_batch=batch), 1, 1)
    run = describe_array(tree, simulate(tree, tuner, Competition(tree, []), 1))
    assert 0 < run.speedup <= (1 + drives / nodes.ratio) / 0.998
    base = host_alone(nodes, 10**6)
    assert base.link_bytes_per_record == LOAD.record_bytes


@given(
    groups=st.lists(st.tuples(st.sampled_from(PROFILES), st.integers(1, 4)), min_size=1, max_size=3),
    trains=st.booleans(),
)
def test_the_exchange_is_a_step_without_work(groups: list[tuple[str, int]], trains: bool) -> None:
    nodes = nodes_of(*groups, trains=trains, bandwidth="20 MB/s")
    unread = replace(nodes, load=replace(nodes.load, record_bytes=0))
    step = array_step(unread, np.ones(len(nodes.names), np.int64), np.zeros(len(nodes.names)))
    assert array_tree(nodes).sync_seconds() == pytest.approx(step.seconds[0], rel=1e-12)


def test_drives_are_repeated_in_turn_and_keep_the_names_of_the_file() -> None:
    nodes = nodes_of(("newport", 2), ("generic-a53", 1), drives=8)
    assert list(nodes.names) == [f"csd-{number:02d}" for number in range(8)] + [HOST]
    assert [profile.name for profile in nodes.profiles()] == ["newport", "newport", "generic-a53"] * 2 + ["newport"] * 2
    assert list(nodes_of(("newport", 3), trains=False, drives=2).names) == ["csd-00", "csd-01"]
    assert len(set(nodes_of(("newport", 7), drives=1200).names)) == 1201
    with pytest.raises(ConfigurationError, match="--drives 0: must be between 1 and"):
        nodes_of(("newport", 1), drives=0)


def test_competing_work_comes_goes_and_adds_up() -> None:
    tree = array_tree(nodes_of(("newport", 2)))
    disturb = [
        DisturbSection(device="csd-01", at_step=2, weight=100, steps=3),
        DisturbSection(device="csd-01", at_step=3, weight=50, steps=1),
        DisturbSection(device="host", at_step=4, weight=300, steps=9),
    ]
    competition = Competition(tree, disturb)
    seen = [competition(step).tolist() for step in range(1, 7)]
    assert seen == [[1, 1, 1], [1, 2, 1], [1, 2.5, 1], [1, 2, 4], [1, 1, 4], [1, 1, 4]]
    with pytest.raises(ConfigurationError, match="'csd-07' is none of the 3 simulated nodes, csd-00 to host"):
        Competition(tree, [DisturbSection(device="csd-07", at_step=1, weight=1, steps=1)])


def test_a_batch_that_does_not_fit_is_refused_by_name() -> None:
    nodes = nodes_of(("newport", 2))
    tree = array_tree(nodes)
    largest = nodes.kinds[0].speed.largest_batch
    with pytest.raises(ConfigurationError, match=f"csd-01: a batch of {largest + 1} is not between 0 and {largest}"):
        simulate(tree, FixedBatches([1, largest + 1, 1]), Competition(tree, []), 1)
    with pytest.raises(ConfigurationError, match="csd-00: a batch of -1"):
        simulate(tree, FixedBatches([-1, 1, 1]), Competition(tree, []), 1)
    with pytest.raises(ConfigurationError, match="csd-00: a batch of 65536"):
        make_tuner("none", tree, TuningSection(), 65536, 1)


class Script(FixedBatches):
    """A tuner that parks node 0 after step 2, takes it back after step 5, and writes down what it sees."""

    def __init__(self) -> None:
        super().__init__([8, 8, 8])
        self.seen: list[list[float]] = []

    def probes(self, step: int) -> Batches:
        return np.array([int(step == 4), 0, 0])

    def observe(self, step: int, compute_seconds: Floats, steps_left: int | None = None) -> Retune | None:
        self.seen.append(compute_seconds.tolist())
        if step not in (2, 5):
            return None
        return self.retune(np.array([0 if step == 2 else 4, 8, 8]), "scripted", 1.0)


def test_new_batches_hold_from_the_next_step_on_cost_what_they_are_said_to_and_probes_are_seen() -> None:
    nodes, tuner = nodes_of(("newport", 2)), Script()
    tree = array_tree(nodes)
    trace = simulate(tree, tuner, Competition(tree, []), 7, retune_cost_steps=0.5)
    free = simulate(tree, Script(), Competition(tree, []), 7)
    assert trace.records.tolist() == [24, 24, 16, 16, 16, 20, 20]
    assert [step for step, _ in trace.retunes] == [3, 6]
    assert trace.seconds / free.seconds == pytest.approx([1, 1.5, 1, 1, 1.5, 1, 1])
    assert trace.joules / free.joules == pytest.approx([1, 1.5, 1, 1, 1.5, 1, 1])
    assert sum(trace.components.values()) == pytest.approx(trace.joules.sum())
    speed = nodes.kinds[0].speed
    firsts = [seen[0] for seen in tuner.seen]
    expected = [speed.seconds(8)] * 2 + [np.nan, speed.seconds(1), np.nan] + [speed.seconds(4)] * 2
    assert firsts == pytest.approx(expected, nan_ok=True)
    assert (trace.first.tolist(), trace.last.tolist()) == ([8, 8, 8], [4, 8, 8])


def test_hypertune_wins_back_what_a_slow_drive_costs() -> None:
    tree = array_tree(nodes_of(("newport", 8)))
    disturb = [DisturbSection(device="csd-03", at_step=20, weight=100, steps=60)]
    settings = TuningSection(slow_batch=32)
    rates = {}
    for name in ("stannis", "hypertune"):
        tuner = make_tuner(name, tree, settings, 1, 100)
        trace = simulate(tree, tuner, Competition(tree, disturb), 100)
        rates[name] = [trace.records_per_second(part) for part in (slice(0, 19), slice(30, 79), slice(90, 100))]
    assert rates["hypertune"][0] == rates["stannis"][0]
    assert rates["hypertune"][1] > 1.5 * rates["stannis"][1]
    assert rates["hypertune"][2] == pytest.approx(rates["stannis"][2])


def test_ten_thousand_drives_are_simulated_step_by_step() -> None:
    tree = array_tree(nodes_of(("newport", 1), ("solana", 1), ("generic-a53", 1), drives=10_000))
    generator = np.random.default_rng(0)
    tuner = make_tuner("stannis", tree, TuningSection(slow_batch=64), 1, 20)
    trace = simulate(tree, tuner, lambda _: 1 + generator.random(10_001), 20)
    assert len(np.unique(trace.seconds)) == 20
    assert trace.records.sum() == 20 * trace.first.sum()


def test_parked_drives_are_plain_storage_that_idles() -> None:
    nodes = nodes_of(("newport", 4))
    cost = array_step(nodes, np.array([64, 0, 0, 0, 512]))
    other = replace(nodes, names=["csd-00", HOST], kind_of=np.array([0, 1]))
    alone = array_step(other, np.array([64, 512]))
    idle = 3 * nodes.kinds[0].profile.power.idle_watts.value * cost.seconds[0]
    assert cost.seconds == pytest.approx(alone.seconds)
    assert cost.joules[0] - alone.joules[0] == pytest.approx(idle, rel=1e-9)


def test_a_plan_leaves_out_the_drives_that_do_not_compute() -> None:
    tree = array_tree(nodes_of(("newport", 4)))
    some = plan(tree, TuningSection(slow_batch=16), 2)
    assert (some > 0).tolist() == [True, True, False, False, True]
    assert (plan(tree, TuningSection(slow_batch=16)) > 0).all()
