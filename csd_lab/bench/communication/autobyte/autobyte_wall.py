"""AutoByte over real, shaped streams, against a setting made by hand: native drives, wall seconds of steps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from csd_emu.perfmodel.overlap.layer_work import exchange_bytes
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.communication.comm_cases import DRIVES, PRIORITY, CommunicationCase, spec_of
from csd_lab.bench.communication.comm_runs import (
    DROPPED_STEPS,
    SHAPED_LATENCY_SECONDS,
    WallRuns,
    WallSteps,
    on_wall,
    ratio_interval,
)
from csd_lab.bench.harness import Bench, StolenTime
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.autobyte import AutoByte
from host.policies.transfer.link_conditions import ASSUMED_SLICE_SECONDS
from host.policies.transfer.setting_grid import default_setting
from host.policies.transfer.transfer_tuner import FixedSending, TransferTuner

# All bytes of one direction take as long as a drive computes: schedules differ most there.
CASE = CommunicationCase("alexnet", 1.0)
HAND_SET, AUTOBYTE, DEFAULT = "hand_set", "autobyte", "default"
# Runs of a turn; the next turn has them the other way round.
TURN = (HAND_SET, AUTOBYTE, DEFAULT)
STEPS, TURNS = 60, 4
QUICK_STEPS, QUICK_TURNS = 20, 2


def bench_autobyte_wall(bench: Bench, quick: bool = False) -> BenchReport:
    """AutoByte over real, shaped streams, against a setting made by hand, on the wall clock.

    Runs of 3 native drives, computing paced, communication real: in a network namespace where this process may make
    one, behind a relay elsewhere. Each run begins anew, AutoByte's with the product's default. By hand it is
    `comm_cases.PRIORITY`. The machine's load is in each sample. `quick` makes fewer and shorter runs.

    Figures are ratios of rates. `wall_over_hand_set`: AutoByte's over that of the setting made by hand, by the median
    of the runs' seconds, trials counted; `wall_over_hand_set_low` and `_high`, the ends of the 95 % interval of the
    ratio over pairs of runs. `settled_over_hand_set`: the same by the median step of each run's later half.
    `default_over_hand_set`: as the first one, of the product's default.
    """
    steps, turns = (QUICK_STEPS, QUICK_TURNS) if quick else (STEPS, TURNS)
    order = [name for turn in range(turns) for name in TURN[:: -1 if turn % 2 else 1]]

    async def work(runs: WallRuns) -> list[dict[str, Any]]:
        made = list[dict[str, Any]]()
        for name in order:
            bench.progress.stage(f"run {len(made) + 1} of {len(order)}: {name}")
            load, stolen = os.getloadavg()[0], StolenTime()
            model = spec_of(CASE.model, CASE.compute_seconds)
            ran = await runs.run_tuned(model, make_contender(name), steps, CASE.bytes_per_second)
            made.append(sample_of(name, ran) | {"load_average_1min": load, "stolen_share": stolen.share})
        return made

    made = on_wall(bench, CASE.bytes_per_second, work, shaped="auto")
    samples = {"case": str(CASE), "bytes_per_second": CASE.bytes_per_second, "runs": made}
    return bench.report("wall", figures_of(made), samples, "native")


def make_contender(name: str) -> TransferTuner:
    """Return what sends the steps of a run of that name, one of `TURN`."""
    part = SharedLink(CASE.bytes_per_second / DRIVES, SHAPED_LATENCY_SECONDS, ASSUMED_SLICE_SECONDS)
    default = default_setting(exchange_bytes(CASE.costs[0]), part)
    tuners: dict[str, TransferTuner] = {HAND_SET: FixedSending(PRIORITY), DEFAULT: FixedSending(default)}
    return tuners[name] if name in tuners else AutoByte(default)


def sample_of(name: str, ran: WallSteps) -> dict[str, Any]:
    """Return what is kept of a run: each step's seconds, and the settings, each with the first step that had it."""
    settings = [TransferSettings("fifo") if each is None else each for each in ran.sendings]
    sizes = [(each.slice_bytes, each.credit_bytes) for each in settings]
    changes = [(step, *now) for step, (before, now) in enumerate(zip([None, *sizes], sizes, strict=False), 1) if now != before]
    return {"name": name, "step_seconds": ran.step_seconds, "settings": changes}


def figures_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of the bench's runs, as many of each name, in pairs in the order in which they were made."""
    kept = {name: [run["step_seconds"][DROPPED_STEPS:] for run in runs if run["name"] == name] for name in TURN}
    totals = {name: [sum(steps) for steps in made] for name, made in kept.items()}
    later = {name: [median(steps[len(steps) // 2 :]) for steps in made] for name, made in kept.items()}
    by_hand = median(totals[HAND_SET])
    _, low, high = ratio_interval([[each] for each in totals[HAND_SET]], [[each] for each in totals[AUTOBYTE]])
    return {
        "wall_over_hand_set": by_hand / median(totals[AUTOBYTE]),
        "wall_over_hand_set_low": low,
        "wall_over_hand_set_high": high,
        "settled_over_hand_set": median(later[HAND_SET]) / median(later[AUTOBYTE]),
        "default_over_hand_set": by_hand / median(totals[DEFAULT]),
    }
