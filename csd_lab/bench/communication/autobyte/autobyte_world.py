"""AutoByte on drives and links that change, in a world that shares no code with the product's timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from csd_emu.perfmodel.overlap.layer_work import Costs, DriveTransfers, LayerCost, TensorCost
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.communication.autobyte import autobyte_development_seeds, autobyte_final_seeds
from csd_lab.bench.communication.autobyte.changing_cases import DrivesState, draw_case
from csd_lab.bench.communication.autobyte.changing_world import ChangingWorld, SeenSlices, blur
from csd_lab.bench.communication.bytescheduler.event_world import Setting
from csd_lab.bench.harness import Bench, spread_over
from csd_lab.bench.intervals import lower_end
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.autobyte import AutoByte
from host.policies.transfer.link_conditions import ASSUMED_SLICE_SECONDS
from host.policies.transfer.setting_grid import default_setting
from host.policies.transfer.transfer_tuner import StepSeen, TransferTuner

# The share of the oracle's gain counts where the oracle is so much faster than the setting found beforehand.
LEAST_GAIN = 0.05
RATIOS = ("over_static_beforehand", "over_hindsight", "over_untuned", "over_oracle", "oracle_over_hindsight")


def bench_autobyte_world(bench: Bench, quick: bool = False) -> BenchReport:
    """AutoByte against the oracle and static settings, on drives and links that change, in a world of its own.

    Models, unlike drives, links, and what changes when are drawn; ranges and seeds are in the package's files.
    Everything is simulated. AutoByte sees what a host sees: noisy steps, layers and slices. `quick` takes the cases
    that it was developed on.

    Figures are ratios of rates over all steps of a case, means over the cases, each with `_low`, the lower end of the
    mean's 95 % interval. `share_of_oracle_gain`: of what the best setting at every step gains over the best one found
    beforehand, in the first state, what AutoByte gains, in those cases where that is 5 % or more, `gaining_cases`.
    `over_static_beforehand`, over that setting, and `over_static_beforehand_gaining`, in those cases alone.
    `over_hindsight`: over the best single setting of the whole case, and `oracle_over_hindsight`, what there was to
    gain. `over_untuned`, over the product's default, and `worst_over_untuned`; `over_oracle`; `changes` per case.
    """
    seeds = [bench.seed + seed for seed in (autobyte_development_seeds if quick else autobyte_final_seeds).SEEDS]
    bench.progress.stage(f"{len(seeds)} drawn cases, AutoByte and all that it is held against by event simulation")
    with spread_over(None) as spread:
        judged = list(spread(judge, seeds))
    bench.progress.stage("")
    return bench.report("modelled", figures_of(judged, bench.seed), {"cases": judged}, engine="simulation")


def figures_of(judged: Sequence[dict[str, Any]], seed: int) -> dict[str, float]:
    """Return the figures of judged cases; `seed` is of the intervals' draws."""
    gaining = [each for each in judged if each["oracle_gain"] >= LEAST_GAIN]
    samples = {name: [each[name] for each in judged] for name in RATIOS}
    samples["share_of_oracle_gain"] = [each["share_of_oracle_gain"] for each in gaining]
    samples["over_static_beforehand_gaining"] = [each["over_static_beforehand"] for each in gaining]
    figures: dict[str, float] = {}
    for name, values in samples.items():
        if values:
            figures |= {name: float(np.mean(values)), f"{name}_low": lower_end(values, seed)}
    figures["gaining_cases"] = float(len(gaining))
    figures["worst_over_untuned"] = float(min(samples["over_untuned"]))
    figures["changes"] = float(np.mean([each["changes"] for each in judged]))
    return figures


def judge(seed: int) -> dict[str, Any]:
    """Return what AutoByte makes of a case, and what it is held against."""
    return judge_in(ChangingWorld(draw_case(seed)), AutoByte)


def judge_in(world: ChangingWorld, make: Callable[[TransferSettings], TransferTuner]) -> dict[str, Any]:
    """Return the same of any tuner that begins with the setting it is given."""
    case = world.case
    first = case.states[0]
    default = default_setting(first.model_bytes, told_link(first))
    beforehand = world.best_beforehand(as_setting(default))
    own, changes = play(world, make(default))
    oracle = world.oracle_seconds()
    hindsight, hindsight_seconds = world.best_in_hindsight()
    static, untuned = world.total_seconds(beforehand), world.total_seconds(as_setting(default))
    return {
        "seed": case.seed,
        "model_bytes": first.model_bytes,
        "drives": len(first.slowdowns),
        "states": len(case.states),
        "oracle_gain": static / oracle - 1,
        "share_of_oracle_gain": (static - own) / (static - oracle) if static > oracle else 1.0,
        "over_static_beforehand": static / own,
        "over_hindsight": hindsight_seconds / own,
        "over_untuned": untuned / own,
        "over_oracle": oracle / own,
        "oracle_over_hindsight": hindsight_seconds / oracle,
        "changes": changes,
        "default": [default.slice_bytes, default.credit_bytes],
        "beforehand": [beforehand.slice_bytes, beforehand.credit_bytes],
        "hindsight": [hindsight.slice_bytes, hindsight.credit_bytes],
    }


def play(world: ChangingWorld, tuner: TransferTuner) -> tuple[float, int]:
    """Have a tuner go through a case; return the seconds of all its steps, and how often it changed."""
    case, generator, total, changes = world.case, world.generator(), 0.0, 0
    for step, (state, factor) in enumerate(zip(case.at, case.step_noise, strict=True), 1):
        sending = tuner.sending(step)
        setting = as_setting(sending)
        seconds = world.seconds(state, setting) * float(factor)
        total += seconds
        slices = [blur(each, case.late_seconds, float(factor), generator) for each in world.slices(state, setting)]
        layer_noise = np.exp(case.layer_noise * generator.standard_normal(len(case.states[state].slowdowns)))
        here = case.states[state]
        drives = [_see_drive(here, drive, slices, noise * factor) for drive, noise in enumerate(layer_noise)]
        changes += tuner.observe(StepSeen(step, seconds, sending, tuple(drives))) is not None
    return total, changes


def as_setting(sending: TransferSettings) -> Setting:
    """Return the product's settings as the world has them."""
    return Setting(sending.slice_bytes or 1 << 40, sending.credit_bytes or 1 << 40)


def told_link(state: DrivesState) -> SharedLink:
    """Return what an array file says of the slowest drive's part of the link; what a slice costs is assumed."""
    part = min(*state.own_bytes_per_second, state.shared_bytes_per_second / len(state.slowdowns))
    return SharedLink(part, state.latency_seconds, ASSUMED_SLICE_SECONDS)


def _see_drive(state: DrivesState, drive: int, slices: Sequence[SeenSlices], factor: float) -> DriveTransfers:
    """Return what the host measures of a drive; `factor`: of its computing."""
    own = [each for each in slices if each.drive == drive]
    columns = [
        np.column_stack(
            [np.full(len(each.size_bytes), each.push), each.size_bytes, each.begin_seconds, each.end_seconds]
        )
        for each in own
    ]
    return DriveTransfers(_costs(state, state.slowdowns[drive] * factor), np.concatenate(columns).astype(np.float64))


def _costs(state: DrivesState, factor: float) -> Costs:
    return tuple(
        LayerCost(
            f"layer{number}",
            (TensorCost(f"layer{number}.weight", layer.size_bytes),),
            factor * layer.forward_seconds,
            factor * layer.backward_seconds,
        )
        for number, layer in enumerate(state.layers)
    )
