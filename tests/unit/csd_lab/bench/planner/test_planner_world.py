"""The hidden world: it composes steps as the timeline does, repeats for a seed, and its noise averages to the truth."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.host_node import host_activity, reduce_seconds, storage_of
from csd_emu.perfmodel.power import device_energy, host_energy
from csd_emu.perfmodel.timeline import Activity, Link, compose
from csd_emu.util.node_names import HOST
from csd_lab.bench.planner.planner_cases import TUNING, list_cases, make_cluster, make_world
from csd_lab.bench.planner.planner_draws import Draws, draw, draw_noise, no_noise
from csd_lab.bench.planner.planner_world import World, stannis_batches
from host.policies.selection.cluster import Cluster
from tests.support.examples import examples

CASES = list_cases()
CLUSTER = make_cluster("alexnet", 125e6)
seeds = st.integers(0, 2**32)


def plain(draws: Draws) -> Draws:
    """Draws whose watts are the profiles', and that poll nothing: what the project's own power model can say."""
    ones = np.ones_like(draws.idle)
    watts = {"idle": ones, "core": ones, "dram": ones, "host_idle": 1.0, "host_core": 1.0}
    return replace(draws, **watts, polling=0.0, host_polling=0.0)


def some_batches(world: World, generator: np.random.Generator) -> dict[str, int]:
    chosen = [node for node in world.nodes if generator.random() < 0.6] or [world.nodes[0]]
    return {node: int(generator.integers(1, 200)) for node in chosen}


def activity_of(world: World, node: str, records: int, compute: float) -> Activity:
    cluster, draws = world.cluster, world.draws
    number, kind = next((n, kind) for n, kind in enumerate(cluster.kinds) if node in kind.nodes)
    profile = kind.profile
    if kind.local:
        drives = [each.profile for each in cluster.kinds if not each.local for _ in each.nodes]
        return host_activity(records, cluster.record_bytes, {"forward": compute}, storage_of(cluster.host, drives))
    return Activity(
        device=node,
        receive_bytes=cluster.state_bytes,
        read_bytes=records * cluster.record_bytes,
        read_operations=1,
        phases={"forward": compute},
        send_bytes=cluster.state_bytes,
        flash_bytes_per_second=profile.flash_bytes_per_second.value,
        flash_latency_seconds=profile.flash_latency_seconds.value,
        link_bytes_per_second=profile.link_bytes_per_second.value * draws.own_link[number],
        link_latency_seconds=profile.link_latency_seconds.value * draws.latency,
    )


@given(seeds, st.booleans())
@settings(max_examples=examples(30), deadline=None)
def test_a_step_takes_what_the_timeline_composes(seed: int, shared: bool) -> None:
    generator = np.random.default_rng(seed)
    cluster = replace(CLUSTER, link=replace(CLUSTER.link, shared=shared))
    world = World(cluster, draw(cluster, generator))
    batches = some_batches(world, generator)
    noise = draw_noise(world.draws, 3, generator)
    done, draws = world.run(batches, noise), world.draws
    trains, drives = HOST in batches, len(batches) - (HOST in batches)
    rate = cluster.link.bytes_per_second * draws.efficiency / (1 + draws.crowding * max(0, drives - 1))
    rate *= 1 - draws.training_link * trains
    reduce = reduce_seconds(cluster.gradient_bytes, len(batches)) * draws.reduce * (1 + draws.training_sum * trains)
    for step in range(3):
        link = Link(rate / noise.link[step], cluster.link.latency_seconds * draws.latency, shared)
        computed = zip(done.nodes, done.compute_seconds[step].tolist(), strict=True)
        activities = [activity_of(world, node, batches[node], compute) for node, compute in computed]
        assert done.seconds[step] == pytest.approx(compose(activities, link, reduce).seconds, rel=1e-9)


@given(seeds, st.booleans())
@settings(max_examples=examples(30), deadline=None)
def test_energy_is_that_of_the_power_model_and_polling_adds_to_it(seed: int, powered: bool) -> None:
    generator = np.random.default_rng(seed)
    drawn = draw(CLUSTER, generator, 0.0)
    world = World(CLUSTER, plain(drawn), powered)
    batches = some_batches(world, generator)
    done = world.run(batches, no_noise(len(world.nodes)))
    seconds = float(done.seconds[0])
    computed = dict(zip(done.nodes, done.compute_seconds[0].tolist(), strict=True))
    read, state, total, drives = batches.get(HOST, 0) * CLUSTER.record_bytes, CLUSTER.state_bytes, 0.0, 0
    all_drives = sum(len(kind.nodes) for kind in CLUSTER.kinds if not kind.local)
    for kind in CLUSTER.kinds:
        for node in () if kind.local else kind.nodes:
            own = computed.get(node, 0.0)
            serial = min(own, kind.encode_seconds)
            moved, bytes_read = (2 * state, batches[node] * CLUSTER.record_bytes) if node in batches else (0, 0)
            cores = kind.profile.cores.value * (own - serial) + serial
            elapsed = seconds if powered or node in batches else 0.0
            plain_read = read / all_drives
            power = kind.profile.power
            each = device_energy(power, elapsed, cores, own, bytes_read + plain_read, moved + plain_read)
            total += sum(each.values())
            drives += node in batches
    own = computed.get(HOST, 0.0)
    serial = min(own, CLUSTER.kinds[-1].encode_seconds)
    reduce = world._reduce_seconds(len(batches), HOST in batches)
    cores = CLUSTER.host.cores.value * (own - serial) + serial + reduce
    total += sum(host_energy(CLUSTER.host, seconds, cores, own + reduce, 2 * drives * state).values())
    assert done.joules[0] == pytest.approx(total, rel=1e-9)
    polls = World(CLUSTER, replace(world.draws, polling=0.5, host_polling=2.0), powered)
    assert (polls.run(batches, no_noise(len(world.nodes))).joules[0] > total) == (drives > 0)


def test_a_world_is_the_same_for_a_seed_and_another_for_another() -> None:
    case = CASES[7]
    same, again, other = (make_world(case, seed) for seed in (3, 3, 4))
    nodes = dict.fromkeys(same.nodes, 20)
    first, second, third = (world.take(nodes, 4, np.random.default_rng(1)) for world in (same, again, other))
    assert first == second
    assert first != third
    assert make_world(CASES[8], 3).draws.device.tolist() != same.draws.device.tolist()


def test_noise_changes_nothing_else_and_without_it_every_step_is_the_same() -> None:
    still, noisy = (make_world(CASES[7], 3, noise) for noise in (0.0, 0.05))
    nodes = dict.fromkeys(still.nodes, 20)
    steps = still.take(nodes, 5, np.random.default_rng(1))
    assert all(step == steps[0] for step in steps)
    assert still.draws.curves == noisy.draws.curves
    assert len({step.step_seconds for step in noisy.take(nodes, 5, np.random.default_rng(1))}) == 5


@pytest.mark.parametrize("number", [0, 20, 45])
def test_noise_averages_to_the_truth(number: int) -> None:
    """Compute seconds in the mean are those without noise, spikes aside; other noise, the same mean of steps."""
    world = make_world(CASES[number], 1)
    world = World(world.cluster, replace(world.draws, spike_share=0.0, link_noise=0.0))
    nodes = dict.fromkeys(world.nodes, 30)
    steps = 4000
    many, more = (world.run(nodes, draw_noise(world.draws, steps, np.random.default_rng(s))) for s in (1, 2))
    quiet = world.run(nodes, no_noise(len(world.nodes)))
    bound = 5 * float(world.draws.step_noise.max()) / steps**0.5
    assert many.compute_seconds.mean(axis=0) == pytest.approx(quiet.compute_seconds[0], rel=bound)
    assert many.seconds.mean() == pytest.approx(more.seconds.mean(), rel=0.005)
    assert many.joules.mean() == pytest.approx(more.joules.mean(), rel=0.005)
    # The slowest of many sets the pace, so noise makes a step longer.
    assert many.seconds.mean() > quiet.seconds[0] * 0.9995


@given(seeds)
@settings(max_examples=examples(30), deadline=None)
def test_more_to_do_never_takes_less(seed: int) -> None:
    generator = np.random.default_rng(seed)
    world = World(CLUSTER, draw(CLUSTER, generator))
    noise = draw_noise(world.draws, 5, generator)
    batches = some_batches(world, generator)
    before = world.run(batches, noise)
    grown = world.run({node: batch + int(generator.integers(0, 50)) for node, batch in batches.items()}, noise)
    slower = replace(CLUSTER, link=replace(CLUSTER.link, bytes_per_second=CLUSTER.link.bytes_per_second / 2))
    slowed = World(slower, world.draws).run(batches, noise)
    larger = World(replace(CLUSTER, state_bytes=2 * CLUSTER.state_bytes), world.draws).run(batches, noise)
    for other in (grown, slowed, larger):
        assert (other.seconds >= before.seconds * (1 - 1e-12)).all()
    off = World(CLUSTER, world.draws, unused_powered=False).run(batches, noise)
    assert (off.joules <= before.joules).all()
    assert (off.seconds == before.seconds).all()


def test_true_tables_are_off_the_nominal_ones_and_devices_of_a_kind_are_not_equal() -> None:
    ratios = []
    for case in CASES:
        world = make_world(case, 0)
        for kind, table in zip(world.cluster.kinds, world.tables, strict=True):
            assert kind.speed is not None
            ratios.append(table.seconds(32) / kind.speed.seconds(32))
    assert 0.15 < np.std(np.log(ratios)) < 0.45
    world = make_world(CASES[0], 0)
    seen = world.run(dict.fromkeys(world.cluster.kinds[0].nodes, 10), no_noise(len(world.nodes)))
    spread = np.ptp(seen.compute_seconds[0]) / seen.compute_seconds[0].mean()
    assert 0 < spread < 0.1


def test_stannis_plans_one_batch_for_each_kind_that_takes_part() -> None:
    world = make_world(CASES[0], 0)
    cluster: Cluster = world.cluster
    batches = world.best_batches((2, 0, 1, 0, 1), TUNING)
    assert [batch > 0 for batch in batches] == [True, False, True, False, True]
    assert stannis_batches(world.tables, (0, 0, 0, 0, 1), TUNING, 0.0)[4] > 0
    assert world.first_nodes((2, 0, 1, 0, 1)) == (*cluster.kinds[0].nodes[:2], cluster.kinds[2].nodes[0], HOST)
    assert world.spread(("newport-01", HOST), batches) == {"newport-01": batches[0], HOST: batches[4]}


@given(seeds, st.floats(0.8, 1.25))
@settings(max_examples=examples(10), deadline=None)
def test_known_batches_are_those_of_the_curves_where_devices_are_as_these_say(seed: int, pace: float) -> None:
    """Where all are faster by one factor too; where the host alone is, it has other batches."""
    draws = draw(CLUSTER, np.random.default_rng(seed))
    alike = World(CLUSTER, replace(draws, device=np.full_like(draws.device, pace)))
    best = alike.best_batches(CLUSTER.counts, TUNING)
    assert alike.known_batches(CLUSTER.counts, TUNING) == best
    own = np.ones_like(draws.device)
    own[-1] = 0.8
    assert World(CLUSTER, replace(draws, device=own)).known_batches(CLUSTER.counts, TUNING)[-1] > best[-1]
