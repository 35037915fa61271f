"""AutoByte on drives and links that change, in a world that shares no code with the product's timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from csd_emu.perfmodel.overlap.layer_work import Costs, LayerCost, TensorCost
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_lab.bench.communication.autobyte.changing_cases import DrivesState, draw_case
from csd_lab.bench.communication.autobyte.changing_world import ChangingWorld, SeenSlices, blur
from csd_lab.bench.communication.bytescheduler.event_world import Setting
from firmware_agent.common.send_queue import TransferSettings
from host.core.slice_record import SliceRecord
from host.policies.transfer.autobyte import AutoByte
from host.policies.transfer.link_conditions import ASSUMED_SLICE_SECONDS
from host.policies.transfer.setting_grid import default_setting
from host.policies.transfer.transfer_tuner import StepSeen, TransferTuner
from host.training.sync.run_transfers import bandwidth, round_trip

# The share of the oracle's gain counts where the oracle is so much faster than the setting found beforehand.
LEAST_GAIN = 0.05


def judge(seed: int, make: Callable[[TransferSettings], TransferTuner] = AutoByte) -> dict[str, Any]:
    """Return what a tuner makes of a case, and what it is held against."""
    world = ChangingWorld(draw_case(seed))
    return judge_in(world, make)


def judge_in(world: ChangingWorld, make: Callable[[TransferSettings], TransferTuner]) -> dict[str, Any]:
    case = world.case
    first = case.states[0]
    default = default_setting(first.model_bytes, told_link(first))
    own, chosen = play(world, make(default))
    beforehand = world.best(0)[0]
    oracle = world.oracle_seconds()
    hindsight, hindsight_seconds = world.best_in_hindsight()
    static, untuned = world.total_seconds(beforehand), world.total_seconds(as_setting(default))
    return {
        "seed": case.seed,
        "model_bytes": first.model_bytes,
        "drives": len(first.slowdowns),
        "states": len(case.states),
        "oracle_gain": static / oracle - 1,
        "share_of_oracle_gain": (static - own) / (static - oracle) if static > oracle else np.nan,
        "over_static_beforehand": static / own,
        "over_hindsight": hindsight_seconds / own,
        "over_untuned": untuned / own,
        "over_oracle": oracle / own,
        "changes": chosen,
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
        seen = _seen(case.states[state], step, sending, seconds, slices, layer_noise * factor)
        changes += tuner.observe(seen) is not None
    return total, changes


def as_setting(sending: TransferSettings) -> Setting:
    """Return the product's settings as the world has them."""
    return Setting(sending.slice_bytes or 1 << 40, sending.credit_bytes or 1 << 40)


def told_link(state: DrivesState) -> SharedLink:
    """Return what an array file says of the slowest drive's part of the link; what a slice costs is assumed."""
    part = min(*state.own_bytes_per_second, state.shared_bytes_per_second / len(state.slowdowns))
    return SharedLink(part, state.latency_seconds, ASSUMED_SLICE_SECONDS)


def _seen(
    state: DrivesState,
    step: int,
    sending: TransferSettings,
    seconds: float,
    slices: Sequence[SeenSlices],
    compute_factors: Sequence[float],
) -> StepSeen:
    costs = [_costs(state, slow * factor) for slow, factor in zip(state.slowdowns, compute_factors, strict=True)]
    slowest = int(np.argmax(np.array(state.slowdowns) * compute_factors))
    records = [
        [r for group in slices if group.drive == drive for r in _records(group)]
        for drive in range(len(state.slowdowns))
    ]
    rates = [bandwidth(each) for each in records]
    rtts = [round_trip(each, rate) for each, rate in zip(records, rates, strict=True)]
    return StepSeen(step, seconds, sending, costs[slowest], tuple(rates), tuple(rtts))


def _records(group: SeenSlices) -> list[SliceRecord]:
    return [
        SliceRecord(
            step=1,
            device="",
            direction="push" if group.push else "pull",
            tensor="",
            offset=0,
            size_bytes=int(size),
            ready_seconds=float(begin),
            begin_seconds=float(begin),
            end_seconds=float(end),
        )
        for size, begin, end in zip(group.size_bytes, group.begin_seconds, group.end_seconds, strict=True)
    ]


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
