"""Random clusters for the planner's tests, and what a step of them costs event by event."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from csd_emu.perfmodel.host_node import host_activity, reduce_seconds, storage_of
from csd_emu.perfmodel.timeline import Activity, Link, compose
from csd_emu.profiles import Profile, get_profile
from csd_emu.profiles.profile import Sourced
from host.config.preference import Preference
from host.core.tuning.speed_table import SpeedTable
from host.policies.selection.cluster import Cluster, DeviceKind, Floats, Trial, TrialStep
from host.policies.selection.costs.cost_model import Model, ParameterLayout
from host.policies.selection.costs.speed_curves import PaceTables, SecondsCurve, table_of
from host.policies.selection.costs.step_costs import Figures
from host.policies.selection.search.configuration_search import Space
from host.policies.selection.search.planned_batches import knees, subset_batches
from host.policies.selection.selection_rules import SelectionRules

DRIVES = ("newport", "solana", "generic-a53")


def scaled(profile: Profile, link: float, watts: float) -> Profile:
    """A profile with another link and other watts per core."""
    power = replace(profile.power, core_watts=Sourced(profile.power.core_watts.value * watts, "test"))
    return replace(
        profile, link_bytes_per_second=Sourced(profile.link_bytes_per_second.value * link, "test"), power=power
    )


def make_cluster(
    counts: Sequence[int],
    host: bool = True,
    bandwidth: float = 5e8,
    seed: int = 0,
    state_bytes: int = 4_000_000,
    shared: bool = True,
    prefix: str = "d",
) -> Cluster:
    """Kinds of drives of different speed, and the host behind them."""
    random = np.random.default_rng(seed)
    kinds, batches = [], np.arange(1, 129)
    for number, count in enumerate(counts):
        profile = scaled(get_profile(DRIVES[number % 3]), random.uniform(0.3, 2), random.uniform(0.5, 1.5))
        first, record = random.uniform(0.01, 0.2), random.uniform(0.005, 0.05)
        names = tuple(f"{prefix}{number}-{each}" for each in range(count))
        kinds.append(DeviceKind(f"k{number}", names, profile, SpeedTable("t", first + record * batches), 0.2 * first))
    server = get_profile("xeon-4108")
    if host:
        table = SpeedTable("host", random.uniform(0.001, 0.02) + random.uniform(0.0005, 0.005) * batches)
        kinds.append(DeviceKind("host", ("host",), server, table, 0.0005, local=True))
    return Cluster(tuple(kinds), server, Link(bandwidth, 50e-6, shared), state_bytes, state_bytes, 3073)


def clusters(most: int = 4, kinds: int = 3, host: st.SearchStrategy[bool] | None = None) -> st.SearchStrategy[Cluster]:
    """Clusters with at least one device."""
    return st.builds(
        make_cluster,
        st.lists(st.integers(1, most), min_size=1, max_size=kinds),
        st.booleans() if host is None else host,
        st.sampled_from([1e7, 1e8, 1e9, 1e10]),
        st.integers(0, 10_000),
        st.integers(1, 50_000_000),
        st.booleans(),
    )


def model_of(cluster: Cluster, seed: int, powered: bool) -> tuple[Model, Space, Floats]:
    """A model with devices that differ, and numbers that are off."""
    random = np.random.default_rng(seed)
    tables = [table_of(kind) for kind in cluster.kinds]
    rules = SelectionRules(Preference(time=1))
    deviations = [random.normal(0, 0.05, len(kind.nodes)) for kind in cluster.kinds]
    knee = knees(tables, rules).tolist()
    curves = tuple(SecondsCurve(table, at, 0.1, 0.1) for table, at in zip(tables, knee, strict=True))
    model = Model(Figures.of(cluster), curves, PaceTables.of(deviations), 0.1, powered)
    batches = subset_batches(tables, cluster.counts, rules, np.zeros(1 << len(tables)))
    theta = random.normal(0, 0.1, ParameterLayout(len(tables)).size)
    return model, Space((0,) * len(tables), cluster.counts, batches), theta


def step(
    cluster: Cluster, configuration: Sequence[int], batches: Sequence[int], slowdown: float = 1.0
) -> tuple[dict[str, float], float]:
    """Compute seconds of each node and seconds of a step, composed event by event; every device is as its table."""
    activities, seconds = [], {}
    storage = storage_of(cluster.host, [kind.profile for kind in cluster.kinds if not kind.local for _ in kind.nodes])
    for kind, count, batch in zip(cluster.kinds, configuration, batches, strict=True):
        profile = kind.profile
        for node in kind.nodes[:count]:
            assert kind.speed is not None
            seconds[node] = kind.speed.seconds(batch) * slowdown
            if kind.local:
                activities.append(host_activity(batch, cluster.record_bytes, {"forward": seconds[node]}, storage))
                continue
            activities.append(
                Activity(
                    node,
                    cluster.state_bytes,
                    batch * cluster.record_bytes,
                    1,
                    {"forward": seconds[node]},
                    cluster.state_bytes,
                    profile.flash_bytes_per_second.value,
                    profile.flash_latency_seconds.value,
                    profile.link_bytes_per_second.value,
                    profile.link_latency_seconds.value,
                )
            )
    reduce = reduce_seconds(cluster.gradient_bytes, sum(configuration))
    return seconds, compose(activities, cluster.link, reduce).seconds


def take(cluster: Cluster, trial: Trial, slowdown: float = 1.0, noise: float = 0.0, seed: int = 0) -> list[TrialStep]:
    """Steps of a trial; watts are the host's idle ones and ten of each device."""
    random = np.random.default_rng(seed)
    seen = []
    for _ in range(trial.steps):
        compute, seconds = step(cluster, trial.configuration, trial.batches, slowdown)
        factors = np.exp(random.normal(0, noise, 3))
        watts = 100.0 + 10.0 * sum(trial.configuration)
        seconds *= float(factors[0])
        compute = {node: each * float(factors[0]) for node, each in compute.items()}
        seen.append(TrialStep(compute, seconds, watts * seconds * float(factors[1])))
    return seen
