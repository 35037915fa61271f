"""What tuners of slice size and credit win, in simulation: static search and AutoByte against the best that could be.

The link is a drive's: at best Newport's 500 MB/s for all drives together, which is where a step's bytes take a quarter
of its computing; at worst a sixteenth of it. What a slice costs beside its bytes and a message's latency are those of a
gRPC stream to an emulated drive (docs/communication-tuning.md says how they were measured). Clock: modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from csd_emu.communication.blocks import BLOCK_BYTES
from csd_emu.communication.costs import exchange_bytes
from csd_emu.communication.link import SharedLink
from firmware_agent.send_queue import Sending
from host.bench import comm_cases
from host.bench.comm_models import MODELS, costs_of
from host.communication.autobyte import AutoByte
from host.communication.base import StepSeen, Tuner
from host.communication.network import shipped_network
from host.communication.predictor import AnalyticPredictor, Predictor, SimulatedShortlist
from host.communication.scenario import Noise, Setup, Surface, play
from host.communication.search import SearchRules, StaticSearch
from host.communication.settings import BYTESCHEDULER_DEFAULT, DEFAULT, candidates
from host.communication.weather import Trace, Weather, draw_trace

DRIVES = 3
BEST_BYTES_PER_SECOND, RATIO_AT_BEST, OCTAVES = 500e6, 0.25, 4.0
LATENCY_SECONDS, SLICE_SECONDS = 5e-4, 4e-4
WEATHER = Weather(octaves=OCTAVES)
STEPS_ONLY = Weather(octaves=OCTAVES, burst_gap_steps=np.inf, walk=0.0)
TRACES, STEPS_TRACES, CONSTANT_TRACES = 3, 2, 3
CONSTANT_STEPS = 500
# After a step in bandwidth a tuner has retuned when its steps are no longer than this, over those that it comes to: how
# good these are is told by the share of the gain. But none that is that much longer than the oracle's is good enough.
SETTLED, NOT_LOST = 1.02, 1.1
NOISE = Noise()
# Streams of random numbers, beside the seed.
_SEARCH, _CHANGING, _STEPS, _STEADY = range(4)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Contender:
    """A predictor behind AutoByte; `traces` of each model it goes through."""

    predictor: Callable[[], Predictor]
    traces: int = TRACES


CONTENDERS = {
    "network and simulation": Contender(lambda: SimulatedShortlist(shipped_network())),
    "analytic and simulation": Contender(lambda: SimulatedShortlist(AnalyticPredictor())),
    "network": Contender(shipped_network),
    "analytic": Contender(AnalyticPredictor),
}
# What `autobyte` is in a job file; see the page for why.
OWN = "analytic and simulation"


def figures(seed: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the figures of tuners, and what they were made of.

    Figures: `search_over_default_mean`, step seconds with ByteScheduler's defaults over those with what the static
    search chose, mean of the cases; `autobyte_share_of_oracle_gain`, of the time that the best setting at every step
    saves over the best single setting in hindsight, what AutoByte saves, all traces together;
    `autobyte_over_best_static_changing` and `_constant`, seconds of the best single setting over AutoByte's, mean of
    the traces; `retune_steps_max`, steps from a step in bandwidth until AutoByte is within 2 % of the oracle and stays;
    `settle_steps_max`, the same until its steps are those that it comes to, within 2 %, and none is 10 % longer than
    the oracle's; `tuner_cpu_share`, its processor seconds over the steps'.
    """
    searched = [_search(seed, number, case) for number, case in enumerate(comm_cases.CASES)]
    surfaces = {model: Surface(setup(model), candidates(), OCTAVES) for model in MODELS}
    changing = {name: _changing(seed, surfaces, contender) for name, contender in CONTENDERS.items()}
    steady = _steady(seed, surfaces)
    retuned, settled = _retune_steps(seed, surfaces)
    own = changing[OWN]
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
        "weather": asdict(WEATHER),
        "noise": asdict(NOISE),
        "search": searched,
        "predictors": changing,
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


def _search(seed: int, number: int, case: comm_cases.Case) -> dict[str, Any]:
    """Have the static search go through a case from ByteScheduler's defaults; steps are noisy, the outcome is not."""
    generator = np.random.default_rng([seed, _SEARCH, number])
    here = Setup(case.costs[0], len(case.costs), case.link, BLOCK_BYTES)
    known: dict[Sending, float] = {}
    tuner = StaticSearch(BYTESCHEDULER_DEFAULT, seed, SearchRules())
    step = 0
    while not tuner.finished:
        step += 1
        sending = tuner.sending(step)
        seconds = known.setdefault(sending, 0.0) or here.step_seconds(0, sending)
        known[sending] = seconds
        tuner.observe(_seen(here, step, sending, seconds * float(np.exp(NOISE.step * generator.standard_normal()))))
    chosen = tuner.sending(step + SearchRules().ahead)
    default, own = known[BYTESCHEDULER_DEFAULT], here.step_seconds(0, DEFAULT)
    return {
        "case": str(case),
        "slice_bytes": chosen.slice_bytes,
        "credit_bytes": chosen.credit_bytes,
        "steps": step,
        "over_default": default / known[chosen],
        "over_own_default": own / known[chosen],
    }


def _seen(here: Setup, step: int, sending: Sending, seconds: float) -> StepSeen:
    rate = here.link.bytes_per_second / here.drives
    return StepSeen(
        step, seconds, sending, here.costs, (rate,) * here.drives, (2 * here.link.latency_seconds,) * here.drives
    )


def _changing(seed: int, surfaces: Mapping[str, Surface], contender: Contender) -> dict[str, float]:
    """Have a contender go through changing weather; sums are over all traces, the mean over each of them."""
    static, oracle, own, cpu, ratios, changes = 0.0, 0.0, 0.0, 0.0, [], 0
    for model, trace, generator in _traces(seed, _CHANGING, surfaces, WEATHER, contender.traces):
        surface = surfaces[model]
        played = play(surface, _autobyte(contender, surface), trace.levels, generator, NOISE)
        best = float(surface.seconds[trace.levels, surface.best_static(trace.levels)].sum())
        ratios.append(best / float(played.seconds.sum()))
        static, oracle = static + best, oracle + float(surface.oracle_seconds(trace.levels).sum())
        own, cpu, changes = own + float(played.seconds.sum()), cpu + played.cpu_seconds, changes + len(played.changes)
    return {
        "share_of_oracle_gain": (static - own) / (static - oracle),
        "over_best_static": float(np.mean(ratios)),
        "oracle_over_best_static": static / oracle,
        "cpu_share": cpu / own,
        "changes_per_trace": changes / len(ratios),
    }


def _steady(seed: int, surfaces: Mapping[str, Surface]) -> list[dict[str, float | str]]:
    """Have AutoByte go through links that never change."""
    found: list[dict[str, float | str]] = []
    weather = Weather(CONSTANT_STEPS, np.inf, burst_gap_steps=np.inf, walk=0.0, octaves=OCTAVES)
    for model, trace, generator in _traces(seed, _STEADY, surfaces, weather, CONSTANT_TRACES):
        surface = surfaces[model]
        played = play(surface, _autobyte(CONTENDERS[OWN], surface), trace.levels, generator, NOISE)
        best = float(surface.oracle_seconds(trace.levels).sum())
        found.append(
            {"model": model, "level": float(trace.levels[0]), "over_best_static": best / float(played.seconds.sum())}
        )
    return found


def _retune_steps(seed: int, surfaces: Mapping[str, Surface]) -> tuple[list[int], list[int]]:
    """Return for each step in bandwidth `retune_steps` and `settle_steps`."""
    retuned, settled = [], []
    for model, trace, generator in _traces(seed, _STEPS, surfaces, STEPS_ONLY, STEPS_TRACES):
        surface = surfaces[model]
        played = play(surface, _autobyte(CONTENDERS[OWN], surface), trace.levels, generator, NOISE)
        over = played.seconds / surface.oracle_seconds(trace.levels)
        retuned += retune_steps(over, trace)
        settled += settle_steps(over, trace)
    return retuned, settled


def retune_steps(over: Floats, trace: Trace) -> list[int]:
    """Return for each change of a trace the steps from it to the last one, before the next, that is too long.

    Args:
        over: (steps,) step seconds over the oracle's; too long is what is more than 2 % over.
        trace: whose changes they are.
    """
    return [_last(part > SETTLED) for part in _parts(over, trace)]


def settle_steps(over: Floats, trace: Trace) -> list[int]:
    """Return the same, where too long is what is over 10 %, or 2 % longer than what the part comes to.

    That is the median of the later half. So it says how late a retune is, apart from how good.
    """
    parts = [(part, float(np.median(part[len(part) // 2 :])) if len(part) else 1.0) for part in _parts(over, trace)]
    return [_last((part > SETTLED * come_to) | (part > NOT_LOST)) for part, come_to in parts]


def _parts(over: Floats, trace: Trace) -> list[Floats]:
    ends = [*trace.changes[1:], len(over)]
    return [over[begin:end] for begin, end in zip(trace.changes, ends, strict=True)]


def _last(too_long: npt.NDArray[np.bool_]) -> int:
    """Return the number of the last step that is, from 1; 0 without any."""
    places = np.flatnonzero(too_long)
    return int(places[-1]) + 1 if len(places) else 0


def _autobyte(contender: Contender, surface: Surface) -> Tuner:
    return AutoByte(DEFAULT, contender.predictor(), block_bytes=surface.setup.block_bytes)


def _traces(
    seed: int, stream: int, models: Iterable[str], weather: Weather, count: int
) -> Iterator[tuple[str, Trace, np.random.Generator]]:
    """Draw so many traces for each model; each depends on the seed, the stream and its number alone."""
    for index, model in enumerate(models):
        for number in range(count):
            generator = np.random.default_rng([seed, stream, index, number])
            yield model, draw_trace(generator, weather), generator
