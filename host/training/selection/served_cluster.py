"""A planner's cluster of drives that serve their host while they train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from csd_emu.perfmodel.host_load import HostLoad
from csd_emu.perfmodel.sharing import Link
from csd_emu.perfmodel.storage.served_drive import ServedDrive
from csd_emu.perfmodel.storage.steady_service import SteadyService
from csd_emu.perfmodel.timeline import Activity
from host.core.device_time import beside_traffic, gradient_seconds, growth, micro_batch_counts
from host.policies.selection.cluster import Cluster, DeviceKind
from host.training.sync_plan import SyncPlan

# Of a kind so many batches are tried, from one record to the most that it takes.
_TRIED = 6


def serve_cluster(cluster: Cluster, steady: SteadyService, plan: SyncPlan) -> tuple[Cluster, list[str]]:
    """Return the cluster beside the host's loads, and what these do to it, a sentence for each kind that has some.

    Equal drives with different loads are of different kinds. Seconds of computing have what reads wait for the host:
    so do those of devices in a run.

    Args:
        cluster: of drives that serve nobody.
        steady: the drives.
        plan: of the job.
    """
    drives, kinds, notes, link = steady.service.storage.drives, list[DeviceKind](), list[str](), cluster.link
    for kind in cluster.kinds:
        for number, nodes in enumerate(_alike(kind.nodes, [drives.get(node) for node in kind.nodes])):
            part = replace(kind, name=f"{kind.name} beside load {number}" if number else kind.name, nodes=nodes)
            if nodes and nodes[0] in drives:
                part, link, told = _serve(part, cluster, steady, plan)
                notes += [told] * (number > 0)
            kinds += [part] * bool(nodes)
    return replace(cluster, kinds=tuple(kinds), link=link), notes


def _alike(nodes: Sequence[str], drives: Sequence[ServedDrive | None]) -> list[tuple[str, ...]]:
    """Return the nodes whose drives have no load, perhaps none, and then those with the same loads together."""
    grouped: dict[tuple[object, ...], list[str]] = {(): []}
    for node, drive in zip(nodes, drives, strict=True):
        loads = [] if drive is None else [source.scheduled.load for source in drive.sources]
        key = tuple(replace(load, seed=0) if isinstance(load, HostLoad) else id(load) for load in loads)
        grouped.setdefault(key, []).append(node)
    return [tuple(group) for group in grouped.values()]


def _serve(kind: DeviceKind, cluster: Cluster, steady: SteadyService, plan: SyncPlan) -> tuple[DeviceKind, Link, str]:
    """Return a kind of drives beside its loads, the host's side of the link, and a sentence about both."""
    node, profile, speed = kind.nodes[0], kind.profile, kind.speed
    own = plan.batches[plan.nodes.index(node)]
    most = own if speed is None else speed.largest_batch
    # Where no tuner chooses, nobody has another batch.
    tried = np.array([own]) if plan.job.tuner == "none" else np.unique(np.geomspace(1, most, _TRIED).astype(np.int64))
    parts = [_reading(kind, plan, batch, cluster.record_bytes) for batch in tried.tolist()]
    work, traffic = steady.try_work(parts, cluster.link), steady.traffic[node]
    growths = [_growth(plan, node, traffic, batch) for batch in tried.tolist()]
    waits, grown = (np.interp(np.arange(1, most + 1), tried, each) for each in (work.wait_seconds, growths))
    rate, plain, link = work.link_bytes_per_second, profile.link_bytes_per_second, work.host_link
    if rate < plain.value:  # which is then no end of its band
        profile = replace(profile, link_bytes_per_second=replace(plain, value=rate, band=None))
    if speed is not None:
        speed = replace(speed, step_seconds=np.maximum.accumulate(speed.step_seconds * grown + waits))
    place = min(own, most) - 1
    told = (
        f"{kind.name} is {', '.join(kind.nodes)}: a batch of {place + 1} computes {grown[place]:.3g} times as long "
        f"(DRAM), and its reads wait {waits[place] * 1e3:.3g} ms for the host; messages have {rate / plain.value:.0%} "
        f"of the drive's side of the link, {link.bytes_per_second / cluster.link.bytes_per_second:.0%} of the host's"
    )
    return replace(kind, profile=profile, speed=speed), link, told


def _reading(kind: DeviceKind, plan: SyncPlan, batch: int, record_bytes: int) -> Activity:
    """Return what a drive of the kind reads in a step of so many records."""
    profile, reads = kind.profile, -(-batch // plan.micro_batch(kind.nodes[0]))
    return Activity(
        *(kind.nodes[0], 0, batch * record_bytes, reads, {}, 0),
        flash_bytes_per_second=profile.flash_bytes_per_second.value,
        flash_latency_seconds=profile.flash_latency_seconds.value,
        link_bytes_per_second=profile.link_bytes_per_second.value,
        link_latency_seconds=profile.link_latency_seconds.value,
    )


def _growth(plan: SyncPlan, node: str, traffic: float, batch: int) -> float:
    """Return what a batch's seconds are multiplied by if so many bytes a second move through the DRAM as well."""
    if (model := plan.expected.get(node)) is None:
        return 1.0
    batches, beside = micro_batch_counts(batch, plan.micro_batch(node)), beside_traffic(model, traffic)
    return growth(gradient_seconds(beside, batches).total, gradient_seconds(model, batches).total)
