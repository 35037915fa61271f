"""AutoByte over real, shaped streams, against a setting made by hand: native drives, wall seconds of steps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    on_wall,
    ratio_interval,
)
from csd_lab.bench.harness import Bench, StolenTime
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.autobyte import AutoByte
from host.policies.transfer.link_conditions import ASSUMED_SLICE_SECONDS
from host.policies.transfer.setting_grid import default_setting
from host.policies.transfer.transfer_tuner import Change, FixedSending, StepSeen, TransferTuner

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
            tuner = Noting(make_contender(name))
            ran = await runs.run_tuned(spec_of(CASE.model, CASE.compute_seconds), tuner, steps, CASE.bytes_per_second)
            disturbed = {"load_average_1min": load, "stolen_share": stolen.share}
            made.append({"name": name, "step_seconds": ran.step_seconds, "changes": tuner.changes} | disturbed)
        return made

    made = on_wall(replace(bench, name="autobyte-wall"), CASE.bytes_per_second, work, shaped="auto")
    samples = {"case": str(CASE), "bytes_per_second": CASE.bytes_per_second, "runs": made}
    return bench.report("wall", figures_of(made), samples, "native")


def make_contender(name: str) -> TransferTuner:
    """Return what sends the steps of a run of that name, one of `TURN`."""
    part = SharedLink(CASE.bytes_per_second / DRIVES, SHAPED_LATENCY_SECONDS, ASSUMED_SLICE_SECONDS)
    default = default_setting(exchange_bytes(CASE.costs[0]), part)
    tuners: dict[str, TransferTuner] = {HAND_SET: FixedSending(PRIORITY), DEFAULT: FixedSending(default)}
    return tuners[name] if name in tuners else AutoByte(default)


class Noting:
    """A `TransferTuner` that does what another one does.

    Attributes:
        changes: that the other one announced, each with the step that it followed.
    """

    def __init__(self, tuner: TransferTuner) -> None:
        """Do what `tuner` does."""
        self._tuner, self.learns = tuner, tuner.learns
        self.changes: list[dict[str, Any]] = []

    def sending(self, step: int) -> TransferSettings:
        """Return the setting of a step."""
        return self._tuner.sending(step)

    def observe(self, seen: StepSeen) -> Change | None:
        """Take what a step cost, and return the change that follows."""
        change = self._tuner.observe(seen)
        if change is not None:
            sizes = {"slice_bytes": change.sending.slice_bytes, "credit_bytes": change.sending.credit_bytes}
            self.changes.append({"after_step": seen.step, **sizes, "reason": change.reason})
        return change

    def state(self) -> dict[str, Any]:
        """Return the other one's state."""
        return self._tuner.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Give the other one its state."""
        self._tuner.load_state(state)


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
