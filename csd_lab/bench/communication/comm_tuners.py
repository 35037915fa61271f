"""Gain of tuners of slice size and credit, in simulation: static search and AutoByte against the best possible.

The link is a drive's: at best Newport's 500 MB/s for all drives together, which is where a step's bytes take a quarter
of its computing; at worst a sixteenth of it. What a slice costs beside its bytes and a message's latency are those of a
gRPC stream to an emulated drive (docs/communication-tuning.md says how they were measured). Clock: modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, count, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.layer_work import DriveTransfers, exchange_bytes
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES
from csd_lab.bench.communication import comm_cases
from csd_lab.bench.communication.analytic_predictor import AnalyticPredictor
from csd_lab.bench.communication.comm_cases import MODELS, costs_of
from csd_lab.bench.harness import spread_over
from csd_lab.generate.autobyte.meta_network import shipped_network
from csd_lab.generate.autobyte.tuner_scenario import (
    BandwidthProcess,
    BandwidthTrace,
    ObservationNoise,
    Setup,
    Surface,
    draw_trace,
    play,
)
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.autobyte import AutoByte
from host.policies.transfer.bayesian_search import SearchRules, StaticSearch
from host.policies.transfer.link_conditions import ASSUMED_SLICE_SECONDS
from host.policies.transfer.setting_grid import candidates, default_setting
from host.policies.transfer.speedup_predictor import Predictor, SimulatedSettings
from host.policies.transfer.transfer_tuner import StepSeen, TransferTuner

DRIVES = 3
BEST_BYTES_PER_SECOND, RATIO_AT_BEST, OCTAVES = 500e6, 0.25, 4.0
LATENCY_SECONDS, SLICE_SECONDS = 5e-4, 4e-4
TRACE_PROCESS = BandwidthProcess(octaves=OCTAVES)
STEPS_ONLY = BandwidthProcess(octaves=OCTAVES, burst_gap_steps=np.inf, walk=0.0)
TRACES, STEPS_TRACES, CONSTANT_TRACES = 3, 2, 3
CONSTANT_STEPS = 500
# ByteScheduler's defaults are counted in parameters (1,000,000 and 4,000,000), these are their bytes in float32.
BYTESCHEDULER_DEFAULT = TransferSettings("priority", 4_000_000, 16_000_000)
# After a step in bandwidth a tuner has retuned when its steps are no longer than this, over those that it comes to: how
# good these are is told by the share of the gain. But none that is that much longer than the oracle's is good enough.
SETTLED, NOT_LOST = 1.02, 1.1
NOISE = ObservationNoise()
# Streams of random numbers, beside the seed.
_SEARCH, _CHANGING, _STEPS, _STEADY = range(4)

Floats = npt.NDArray[np.float64]


# A model, its number, and what it takes on the link.
Place = tuple[str, int, Surface]


@dataclass(frozen=True)
class PredictorContender:
    """A predictor behind AutoByte; the first `traces` of each model it goes through."""

    predictor: Callable[[], Predictor]
    traces: int = 1


class TracedCase(NamedTuple):
    """A trace's seconds: with the best single setting, the best at every step, AutoByte's; what these cost, and had."""

    static: float
    oracle: float
    own: float
    cpu: float
    changes: int


# Figures are made of `OWN`; the others show who predicts how well, each on the first of these traces.
CONTENDERS = {
    "model": PredictorContender(SimulatedSettings, TRACES),
    "network": PredictorContender(shipped_network),
    "analytic": PredictorContender(AnalyticPredictor),
}
# What `autobyte` is in a job file; see the page for why.
OWN = "model"


def figures(seed: int, processes: int | None = None) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the figures of tuners, and what they were made of.

    Figures: `search_over_default_mean`, step seconds with ByteScheduler's defaults over those with what the static
    search chose, mean of the cases; `autobyte_share_of_oracle_gain`, of the time that the best setting at every step
    saves over the best single setting in hindsight, what AutoByte saves, all traces together;
    `autobyte_over_best_static_changing` and `_constant`, seconds of the best single setting over AutoByte's, mean of
    the traces; `retune_steps_max`, steps from a step in bandwidth until AutoByte is within 2 % of the oracle and stays;
    `settle_steps_max`, the same until its steps are those that it comes to, within 2 %, and none is 10 % longer than
    the oracle's; `tuner_cpu_share`, its processor seconds over the steps'.

    Args:
        seed: of all random numbers.
        processes: that share the work; None for one per processor, 1 for this one alone. The figures do not depend on
            it, but for `tuner_cpu_share`.
    """
    with spread_over(processes) as spread:
        searches = spread(_search, repeat(seed), count(), comm_cases.CASES)
        surfaces = dict(zip(MODELS, spread(_surface, MODELS), strict=True))
        places = [(model, index, surfaces[model]) for index, model in enumerate(MODELS)]
        own_steady = spread(_steady, repeat(seed), places)
        own_changes = spread(_retune_steps, repeat(seed), places)
        changing = {name: spread(_changing, repeat(seed), repeat(name), places) for name in CONTENDERS}
        searched, steady = list(searches), [each for part in own_steady for each in part]
        retuned, settled = (list(chain.from_iterable(parts)) for parts in zip(*own_changes, strict=True))
        traced: dict[str, list[list[TracedCase]]] = {name: list(parts) for name, parts in changing.items()}
    own = _summed([each for part in traced[OWN] for each in part])
    found = {
        "search_over_default_mean": float(np.mean([case["over_default"] for case in searched])),
        "autobyte_share_of_oracle_gain": own["share_of_oracle_gain"],
        "autobyte_over_best_static_changing": own["over_best_static"],
        "autobyte_over_best_static_constant": float(np.mean([each["over_best_static"] for each in steady])),
        "retune_steps_max": float(max(retuned, default=0)),
        "settle_steps_max": float(max(settled, default=0)),
        "tuner_cpu_share": own["cpu_share"],
    }
    samples = {
        "weather": asdict(TRACE_PROCESS),
        "noise": asdict(NOISE),
        "search": searched,
        "autobyte": own,
        "predictors_on_first_traces": {name: _summed([part[0] for part in traced[name]]) for name in CONTENDERS},
        "constant": steady,
        "retune_steps": retuned,
        "settle_steps": settled,
    }
    return found, samples


def setup(model: str) -> Setup:
    """Return a model on three drives whose link, four octaves above level 0, is at its best."""
    size_bytes = exchange_bytes(costs_of(model, 1.0))
    compute_seconds = DRIVES * size_bytes / BEST_BYTES_PER_SECOND / RATIO_AT_BEST
    link = SharedLink(BEST_BYTES_PER_SECOND / 2**OCTAVES, LATENCY_SECONDS, SLICE_SECONDS)
    return Setup(costs_of(model, compute_seconds), DRIVES, link, BLOCK_BYTES)


def default_of(here: Setup) -> TransferSettings:
    """Return the product's default, which is not told what a slice costs."""
    part = SharedLink(here.link.bytes_per_second / here.drives, here.link.latency_seconds, ASSUMED_SLICE_SECONDS)
    return default_setting(exchange_bytes(here.costs), part)


def _search(seed: int, number: int, case: comm_cases.CommunicationCase) -> dict[str, Any]:
    """Have the static search go through a case from the product's own default; steps are noisy, the outcome is not."""
    generator = np.random.default_rng([seed, _SEARCH, number])
    here = Setup(case.costs[0], len(case.costs), case.link, BLOCK_BYTES)
    known: dict[TransferSettings, float] = {}
    own_default = default_of(here)
    tuner = StaticSearch(own_default)
    step = 0
    while not tuner.finished:
        step += 1
        sending = tuner.sending(step)
        seconds = known.setdefault(sending, 0.0) or here.step_seconds(0, sending)
        known[sending] = seconds
        seconds *= float(np.exp(NOISE.step * generator.standard_normal()))
        tuner.observe(StepSeen(step, seconds, sending, (DriveTransfers(here.costs, np.zeros((0, 4))),) * here.drives))
    chosen = tuner.sending(step + SearchRules().ahead)
    default, own = here.step_seconds(0, BYTESCHEDULER_DEFAULT), known[own_default]
    return {
        "case": str(case),
        "slice_bytes": chosen.slice_bytes,
        "credit_bytes": chosen.credit_bytes,
        "steps": step,
        "over_default": default / known[chosen],
        "over_own_default": own / known[chosen],
    }


def _surface(model: str) -> Surface:
    here = setup(model)
    return Surface(here, tuple(dict.fromkeys((*candidates(), default_of(here)))), OCTAVES)


def _changing(seed: int, name: str, place: Place) -> list[TracedCase]:
    """Run a contender on a model's traces of changing bandwidth."""
    surface, found = place[-1], []
    for trace, generator in _traces(seed, _CHANGING, place, TRACE_PROCESS, CONTENDERS[name].traces):
        played = play(surface, _autobyte(name, surface), trace.levels, generator, NOISE)
        best = float(surface.seconds[trace.levels, surface.best_static(trace.levels)].sum())
        oracle, own = float(surface.oracle_seconds(trace.levels).sum()), float(played.seconds.sum())
        found.append(TracedCase(best, oracle, own, played.cpu_seconds, len(played.changes)))
    return found


def _summed(traces: Sequence[TracedCase]) -> dict[str, float]:
    """Return what comes of all traces: sums over them, but the mean of each one's `over_best_static`."""
    static, oracle, own, cpu, changes = (sum(each) for each in zip(*traces, strict=True))
    return {
        "traces": len(traces),
        "share_of_oracle_gain": (static - own) / (static - oracle),
        "over_best_static": float(np.mean([each.static / each.own for each in traces])),
        "oracle_over_best_static": static / oracle,
        "cpu_share": cpu / own,
        "changes_per_trace": changes / len(traces),
    }


def _steady(seed: int, place: Place) -> list[dict[str, float | str]]:
    """Have AutoByte go through a model's links that never change."""
    found: list[dict[str, float | str]] = []
    model, _, surface = place
    trace_process = BandwidthProcess(CONSTANT_STEPS, np.inf, burst_gap_steps=np.inf, walk=0.0, octaves=OCTAVES)
    for trace, generator in _traces(seed, _STEADY, place, trace_process, CONSTANT_TRACES):
        played = play(surface, _autobyte(OWN, surface), trace.levels, generator, NOISE)
        best = float(surface.oracle_seconds(trace.levels).sum())
        found.append(
            {"model": model, "level": float(trace.levels[0]), "over_best_static": best / float(played.seconds.sum())}
        )
    return found


def _retune_steps(seed: int, place: Place) -> tuple[list[int], list[int]]:
    """Return for each step in bandwidth of a model's traces `retune_steps` and `settle_steps`."""
    surface = place[-1]
    retuned: list[int] = []
    settled: list[int] = []
    for trace, generator in _traces(seed, _STEPS, place, STEPS_ONLY, STEPS_TRACES):
        played = play(surface, _autobyte(OWN, surface), trace.levels, generator, NOISE)
        over = played.seconds / surface.oracle_seconds(trace.levels)
        retuned += retune_steps(over, trace)
        settled += settle_steps(over, trace)
    return retuned, settled


def retune_steps(over: Floats, trace: BandwidthTrace) -> list[int]:
    """Return for each change of a trace the steps from it to the last one, before the next, that is too long.

    Args:
        over: (steps,) step seconds over the oracle's; too long is what is more than 2 % over.
        trace: whose changes they are.
    """
    return [_last(part > SETTLED) for part in _parts(over, trace)]


def settle_steps(over: Floats, trace: BandwidthTrace) -> list[int]:
    """Return the same, where too long is what is over 10 %, or 2 % longer than what the part comes to.

    That is the median of the later half. So it says how late a retune is, apart from how good.
    """
    parts = [(part, float(np.median(part[len(part) // 2 :])) if len(part) else 1.0) for part in _parts(over, trace)]
    return [_last((part > SETTLED * come_to) | (part > NOT_LOST)) for part, come_to in parts]


def _parts(over: Floats, trace: BandwidthTrace) -> list[Floats]:
    ends = [*trace.changes[1:], len(over)]
    return [over[begin:end] for begin, end in zip(trace.changes, ends, strict=True)]


def _last(too_long: npt.NDArray[np.bool_]) -> int:
    """Return the number of the last step that is, from 1; 0 without any."""
    places = np.flatnonzero(too_long)
    return int(places[-1]) + 1 if len(places) else 0


def _autobyte(name: str, surface: Surface) -> TransferTuner:
    return AutoByte(default_of(surface.setup), CONTENDERS[name].predictor(), block_bytes=surface.setup.block_bytes)


def _traces(
    seed: int, stream: int, place: Place, trace_process: BandwidthProcess, traces: int
) -> Iterator[tuple[BandwidthTrace, np.random.Generator]]:
    """Draw so many traces for a model; each depends on the seed, the stream, the model and its number alone."""
    for number in range(traces):
        generator = np.random.default_rng([seed, stream, place[1], number])
        yield draw_trace(generator, trace_process), generator
