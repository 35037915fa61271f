"""The baseline of a simulation: the host trains alone, as fast as it can, and the drives are plain storage."""

from __future__ import annotations

import numpy as np

from csd_emu.perfmodel.host_node import reduce_seconds, storage_of
from csd_emu.perfmodel.host_only import baseline_joules, train_on_host
from csd_emu.perfmodel.timeline import AGGREGATE
from csd_lab.simulate.nodes import Nodes
from csd_lab.simulate.simulation_figures import SimulatedBaseline

# A larger batch that gains less than this is not worth its name.
_AS_GOOD = 0.999


def host_alone(nodes: Nodes, records: int) -> SimulatedBaseline:
    """Return how the host does on `records` records; see `csd_emu.perfmodel.host_only`.

    Its batch is the smallest at which it is as good as fastest. It packs no gradients, and its optimiser costs what
    `host_node.reduce_seconds` says. It has all drives of `nodes`, which idle but for its reads; every record is read
    once each time it is trained on.
    """
    host, load = nodes.host, nodes.load
    optimiser = reduce_seconds(load.gradient_bytes, 0)
    batches = np.arange(1, host.speed.largest_batch + 1)
    compute = host.speed.step_seconds - host.encode_seconds
    rates = batches / (compute + optimiser)
    best = int(np.flatnonzero(rates >= _AS_GOOD * rates.max())[0])
    batch = best + 1
    phases = {"forward": records * float(compute[best]) / batch, AGGREGATE: records * optimiser / batch}
    profiles = nodes.profiles()
    # It reads as much at a time as it computes at once.
    at_once = min(batch, host.costs.micro_batch)
    base = train_on_host(records, load.record_bytes, at_once, phases, storage_of(host.profile, profiles))
    joules = baseline_joules(base, host.profile, profiles, phases)
    return SimulatedBaseline(batch, records / base.seconds, joules / records, base.bytes / records)
