"""Scaled models with and without a cut on the wall clock, for `csd-emu reproduce placement --wall`.

Native drives of this machine behind a shaped link, as in `csd-emu bench placement`: real frames cross a link of real
bandwidth, real layers move. What a layer takes is paced to its share of what a drive is said to compute, for processes
of one machine have no speed of their own.
"""

from __future__ import annotations

import statistics

from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.communication.comm_cases import DRIVES, spec_of
from csd_lab.bench.communication.comm_runs import WallRuns, on_wall
from csd_lab.bench.harness import Bench
from csd_lab.bench.placement.placement_wall import (
    BATCH,
    COMPUTE_SECONDS,
    PlacementWallCase,
    placement_of,
    situation_of,
)
from csd_lab.reproduce.placement_result import RanPlacement
from host.policies.split.choose_cut import HEAVY, decide
from host.training.split.split_model import NONE

# Both wire-bound, as the published headlines are.
CASES = (PlacementWallCase("vgg", 4.0), PlacementWallCase("alexnet", 4.0))
_STEPS = 5
_SEED = 0


def run_scaled(paths: Paths, progress: Progress, cases: tuple[PlacementWallCase, ...] = CASES) -> list[RanPlacement]:
    """Return what each case's steps take with nothing moved and with the cut that would be made unasked.

    Raises:
        EnvironmentUnfit: drives or link cannot be had on this machine.
    """

    async def work(runs: WallRuns) -> list[RanPlacement]:
        rows = []
        for number, case in enumerate(cases):
            rows.append(await _run(runs, case))
            progress.advance((number + 1) / len(cases))
        return rows

    return on_wall(Bench("placement", paths, progress, _SEED), cases[0].bytes_per_second, work)


async def _run(runs: WallRuns, case: PlacementWallCase) -> RanPlacement:
    decision, spec = decide(situation_of(case), heavy=HEAVY), spec_of(case.model, COMPUTE_SECONDS)
    chosen, seconds = placement_of(decision), dict[str, float]()
    for placement in dict.fromkeys((NONE, chosen)):
        runs.progress.stage(f"{case}: placement {placement} (wall)")
        ran = await runs.run_placed(spec, placement, BATCH, _STEPS, case.bytes_per_second)
        seconds[placement] = statistics.median(ran)
    return RanPlacement(
        model=f"{case.model} (scaled)",
        drives=DRIVES,
        batch=BATCH,
        steps=_STEPS,
        link_bytes_per_second=case.bytes_per_second,
        wire_over_compute=case.ratio,
        layer=decision.layer,
        unmoved_seconds=seconds[NONE],
        step_seconds=seconds[chosen],
        speedup=seconds[NONE] / seconds[chosen],
        foretold_speedup=decision.gain,
    )
