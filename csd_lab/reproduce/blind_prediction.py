"""Predictions of published headlines from `blind_inputs.yaml` and drives' cycles, each with a band."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from csd_lab.reproduce.blind_server import (
    TUNING,
    BlindServer,
    CentredBand,
    Circumstances,
    combine,
    host_rate,
    middle_of,
)
from csd_lab.reproduce.hypertune_result import Influence, Prediction
from csd_lab.reproduce.scaling import BASELINE_RECORDS, measure
from csd_lab.simulate.simulated_baseline import host_alone
from csd_lab.simulate.tree import array_tree
from csd_lab.simulate.tuners import plan

HOST_RATE, DRIVE_RATE, RATIO = "host_rate", "drive_rate", "ratio"
SPEEDUP, ENERGY, TRAFFIC = "speedup", "energy_factor", "traffic"
FIGURES = (HOST_RATE, DRIVE_RATE, RATIO, SPEEDUP, ENERGY, TRAFFIC)


def evaluate(server: BlindServer, at: Circumstances) -> dict[str, float]:
    """Return each of `FIGURES` with all drives computing, batches by STANNIS: see `Prediction`."""
    nodes = server.nodes(at)
    base = host_alone(nodes, BASELINE_RECORDS)
    row = measure(nodes, plan(array_tree(nodes), TUNING), base)
    return {
        HOST_RATE: host_rate(at),
        DRIVE_RATE: server.at_once / float(server.drive_seconds(at)[-1]),
        RATIO: nodes.ratio,
        SPEEDUP: row.speedup,
        ENERGY: row.energy_factor,
        TRAFFIC: row.link_bytes_per_record / base.link_bytes_per_record,
    }


def predict(server: BlindServer) -> Iterator[Prediction]:
    """Yield each of `FIGURES` for one model: the middle with all inputs at their values, the band by `combine`."""
    at = middle_of(server.bands)
    middle = evaluate(server, at)
    ends = {
        name: [evaluate(server, {**at, name: end}) for end in (low, high)]
        for name, (low, _, high) in server.bands.items()
    }
    for figure in FIGURES:
        pairs = {name: (one[figure], other[figure]) for name, (one, other) in ends.items()}
        yield Prediction(
            server.model, figure, *combine(middle[figure], pairs), server.cycles.basis, list(_influences(pairs))
        )


def _influences(pairs: Mapping[str, tuple[float, float]]) -> Iterator[Influence]:
    """Yield what each input makes of the figure, those that matter most first; none that change nothing."""
    widths = {name: max(pair) / min(pair) for name, pair in pairs.items()}
    for name in sorted(widths, key=lambda each: -widths[each]):
        if widths[name] > 1 + 1e-9:
            yield Influence(name, *sorted(pairs[name]))


def best_of(predictions: Sequence[Prediction], figure: str) -> CentredBand:
    """Return the band of the best model, for a headline that says "up to": the largest low, middle and high of all.

    Of ``traffic`` the smallest are best.
    """
    best = min if figure == TRAFFIC else max
    rows = [row for row in predictions if row.figure == figure]
    return best(row.low for row in rows), best(row.middle for row in rows), best(row.high for row in rows)
