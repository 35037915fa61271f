"""A planner's cluster of drives that serve their host while they train: loads are tried on the drives before a run."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from csd_emu.perfmodel.host_load import HostLoad
from csd_emu.perfmodel.storage.drive_service import DriveService
from csd_emu.perfmodel.timeline import Activity, Link
from csd_emu.profiles.flash_geometry import SECOND
from host.core.device_time import beside_traffic, gradient_seconds, growth, micro_batch_counts
from host.policies.selection.cluster import Cluster, DeviceKind, Floats
from host.training.sync_plan import SyncPlan

# Queues, and loads with a queue depth, settle before anything is tried. Then so many batches of a kind are, from one
# record to the most that it takes, after gaps of one to two milliseconds, so often that the largest reads about so many
# bytes, within these numbers of times.
_SETTLE_SECONDS, _BATCHES, _GAP_SECONDS, _GOLDEN, _BYTES, _TIMES = 0.05, 6, 1e-3, 0.6180339887, 1 << 25, (4, 32)


def serve_cluster(cluster: Cluster, service: DriveService | None, plan: SyncPlan) -> tuple[Cluster, list[str]]:
    """Return the cluster beside the host's loads, and what these do to it, in sentences.

    Equal drives with different loads are of different kinds. Seconds of computing have what reads wait for the host:
    so do those of devices in a run.

    Args:
        cluster: of drives that serve nobody.
        service: the drives, which nothing else may use, at time 0; none of their loads begins late or ends. None if
            they serve nobody.
        plan: of the job.
    """
    if service is None:
        return cluster, []
    service.begin_step(0)
    service.storage.end(_SETTLE_SECONDS)
    traffic, kinds, notes, link = service.begin_step(0), list[DeviceKind](), list[str](), cluster.link
    for kind in cluster.kinds:
        grouped: dict[tuple[object, ...], list[str]] = {(): []}
        for node in kind.nodes:
            sources = service.storage.drives[node].sources if node in traffic else []
            loads = [source.scheduled.load for source in sources]
            alike = (replace(load, seed=0) if isinstance(load, HostLoad) else id(load) for load in loads)
            grouped.setdefault(tuple(alike), []).append(node)
        for number, nodes in enumerate(grouped.values()):
            part = replace(kind, name=f"{kind.name} beside load {number}" if number else kind.name, nodes=tuple(nodes))
            if nodes and nodes[0] in traffic:
                part, link, told = _serve(part, cluster, service, traffic[nodes[0]], plan)
                notes += [told] * (number > 0)
            kinds += [part] * bool(nodes)
    lasting = "host_io counts as if each load lasted from begin to end, at its mean rate"
    return replace(cluster, kinds=tuple(kinds), link=link), ["; ".join([lasting, *notes])] * bool(notes)


def _serve(
    kind: DeviceKind, cluster: Cluster, service: DriveService, traffic: float, plan: SyncPlan
) -> tuple[DeviceKind, Link, str]:
    """Return a kind of drives beside its loads, the host's side of the link, and a sentence about both."""
    node, profile, speed = kind.nodes[0], kind.profile, kind.speed
    own, model, micro_batch = plan.batches[plan.nodes.index(node)], plan.expected.get(node), plan.micro_batch(node)
    most = own if speed is None else speed.largest_batch
    # Where no tuner chooses, nobody has another batch.
    tried = [own] if plan.job.tuner == "none" else np.unique(np.geomspace(1, most, _BATCHES).astype(np.int64)).tolist()
    idle = Activity(
        *(node, 0, 0, 0, {}, 0, profile.flash_bytes_per_second.value, profile.flash_latency_seconds.value),
        *(profile.link_bytes_per_second.value, profile.link_latency_seconds.value),
    )
    parts = [replace(idle, read_bytes=n * cluster.record_bytes, read_operations=-(-n // micro_batch)) for n in tried]
    means, loaded, link = mean_waits(parts, cluster.link, service)
    ratios = [1.0] * len(tried)
    if model is not None:
        passes = [micro_batch_counts(n, micro_batch) for n in tried]
        beside: Any = beside_traffic(model, traffic)
        ratios = [growth(gradient_seconds(beside, each).total, gradient_seconds(model, each).total) for each in passes]
    waits, grown = (np.interp(np.arange(1, most + 1), tried, each) for each in (means, ratios))
    if (rate := loaded.link_bytes_per_second) < idle.link_bytes_per_second:  # which is then no end of its band
        figure = replace(profile.link_bytes_per_second, value=rate, band=None)
        profile = replace(profile, link_bytes_per_second=figure)
    if speed is not None:
        speed = replace(speed, step_seconds=np.maximum.accumulate(speed.step_seconds * grown + waits))
    place = min(own, most) - 1
    told = (
        f"{kind.name} is {', '.join(kind.nodes)}: a batch of {place + 1} computes {grown[place]:.3g} times as long "
        f"(DRAM), and its reads wait {waits[place] * 1e3:.3g} ms for the host; messages have "
        f"{rate / idle.link_bytes_per_second:.0%} of the drive's side of the link, "
        f"{link.bytes_per_second / cluster.link.bytes_per_second:.0%} of the host's"
    )
    return replace(kind, profile=profile, speed=speed), link, told


def mean_waits(parts: list[Activity], link: Link, service: DriveService) -> tuple[Floats, Activity, Link]:
    """Return (parts,) mean waits of a drive's work beside its host, that never fall; such work, and the host's link.

    Args:
        parts: each reads more than the one before.
        link: the host's side, without other data.
        service: of the drive.
    """
    drive, loaded, beside = service.storage.drives[parts[0].device], parts[0], link
    waits = np.zeros((int(np.clip(_BYTES // parts[-1].read_bytes, *_TIMES)), len(parts)))
    for place, part in product(range(len(waits)), range(len(parts))):
        begin = drive.now_ns / SECOND + _GAP_SECONDS * (1 + (place + part) * _GOLDEN % 1)
        (loaded,), beside = service.load([parts[part]], link, begin, {}, True)
        waits[place, part] = loaded.read_seconds - parts[part].read_seconds
    return rising(waits.mean(axis=0)), loaded, beside


def rising(values: Floats) -> Floats:
    """Return the values, (n,), that never fall and are nearest to these in the sum of squares (isotonic regression).

    Each is the largest, over where a stretch around it may begin, of the least mean of such a stretch: for small n.
    """
    places = range(len(values))
    return np.array([max(min(values[a : b + 1].mean() for b in places[n:]) for a in places[: n + 1]) for n in places])
