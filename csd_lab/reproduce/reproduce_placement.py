"""`csd-emu reproduce placement`: what was published on moving late layers to the parameter server, beside ours.

With `--wall` scaled models run with and without a cut on native drives of this machine behind a shaped link, as in
`csd-emu bench placement`: real frames cross a link of real bandwidth, real layers move. What a layer takes is paced to
its share of what a drive is said to compute, for processes of one machine have no speed of their own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from csd_emu.perfmodel.overlap.overlapped_step import SLICE_SECONDS
from csd_emu.perfmodel.split.cut_costs import CutCosts
from csd_emu.perfmodel.split.split_problem import DeviceCost, HostPlace, LayerSplitCost, SplitProblem
from csd_emu.perfmodel.timeline import Link
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.communication.comm_cases import DRIVES as WALL_DRIVES
from csd_lab.bench.communication.comm_cases import spec_of
from csd_lab.bench.communication.comm_runs import WallRuns, on_wall
from csd_lab.bench.harness import Bench
from csd_lab.bench.placement.placement_wall import (
    BATCH as WALL_BATCH,
)
from csd_lab.bench.placement.placement_wall import (
    COMPUTE_SECONDS,
    PlacementWallCase,
    placement_of,
    situation_of,
)
from csd_lab.bench.placement.placements import PUBLISHED as COUNTED
from csd_lab.bench.placement.placements import count_wire
from csd_lab.reproduce.blind_server import DRIVE, HOST_PROFILE
from csd_lab.reproduce.output import check_output, write_placement
from csd_lab.reproduce.placement_result import PlacementReport, Placing, PublishedPlacement, RanPlacement, Traffic
from csd_lab.reproduce.verdict import HeadlineVerdict, undecidable
from firmware_agent.common.models import ZOO
from firmware_agent.common.shipped_code import ShippedCode
from host.core.device_time import MODELLED, TableModel, gradient_seconds, host_model, micro_batch_counts
from host.policies.split.choose_cut import HEAVY, decide
from host.training.split.layer_exchange import LayerExchange, inspect_layers
from host.training.split.split_model import NONE

# Both wire-bound, as the published headlines are.
WALL_CASES = (PlacementWallCase("vgg", 4.0), PlacementWallCase("alexnet", 4.0))
_STEPS = 5
_SEED = 0


def run_scaled(
    paths: Paths, progress: Progress, cases: tuple[PlacementWallCase, ...] = WALL_CASES
) -> list[RanPlacement]:
    """Return what each case's steps take with nothing moved and with the cut that `relieve_wire` makes.

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
        ran = await runs.run_placed(spec, placement, WALL_BATCH, _STEPS, case.bytes_per_second)
        seconds[placement] = statistics.median(ran)
    return RanPlacement(
        model=f"{case.model} (scaled)",
        drives=WALL_DRIVES,
        batch=WALL_BATCH,
        steps=_STEPS,
        link_bytes_per_second=case.bytes_per_second,
        wire_over_compute=case.ratio,
        layer=decision.layer,
        unmoved_seconds=seconds[NONE],
        step_seconds=seconds[chosen],
        speedup=seconds[NONE] / seconds[chosen],
        foretold_speedup=decision.gain,
    )


# Model -> (records of a drive's step, what the design notes derive from published sizes).
MODELS: dict[str, tuple[int, float | None]] = {
    "vgg16": (32, 8.9),
    "alexnet": (128, 16.7),
    "resnet50": (32, 1.08),
    "mobilenet_v2": (32, 1.55),
    "inception_v3": (32, None),
}
DRIVES = (1, 3, 12, 36)
# What a drive tunnels at most, and what is left where storage traffic or Ethernet takes the rest.
LINKS_BYTES_PER_SECOND = (2e9, 500e6, 125e6, 12.5e6)
PUBLISHED = (
    ("Park et al., RALP (arXiv 1901.05803; a co-author's list of publications)", "up to 2.3", 2.3),
    ("Stanza (arXiv 1812.10624, IEEE TSC 2020), V100 and 10 Gb/s", "1.34 to 13.9", 13.9),
)
NOTES = (
    "Nothing was measured on a real drive. A drive's seconds are emulated: counted in a virtual machine and scaled by "
    "assumed figures; they are shared out over the layers by arithmetic. The host's are a drive's over 15.2.",
    "Neither paper's tables of traffic and time per model could be read, nor their testbeds' batches: only the "
    "headlines stand beside ours, and these are of GPUs behind Ethernet, not of drives.",
    "Traffic is that of weights and gradients in float32, with the activations both ways; labels, buffers and frames "
    "are left out of the formula and are in what was counted.",
    "All is received, then computed, then sent, as by default; with communication: priority more of the exchange hides "
    "behind computing, and less is won. Where compute dominates the wire next to nothing is, and nothing is moved.",
    "The gains of AlexNet and VGG-16 behind fast links are the host's: it computes the moved layers sooner.",
    "The host computes the moved layers for all drives: with more drives it has more to do, and a drive does not.",
    "Batches of 32 and 128 are larger than calibration has measured at once; they are computed in parts.",
)
WALL_NOTE = (
    "The runs of scaled models are of processes on this machine, on its clock: bytes, link and layers are real, and "
    "what a layer takes is paced. So is the host, which is as fast as its three drives together."
)


def reproduce_placement(
    store: CalibrationStore, output: Path | None, progress: Progress, wall: Paths | None = None
) -> PlacementReport:
    """Work everything out; with `output`, write tables into that folder; with `wall`, run scaled models there.

    Raises:
        CalibrationError: a table is missing or damaged.
        EnvironmentUnfit: the files cannot be written, or this machine cannot run drives behind a link.
    """
    check_output(output)
    begin = time.monotonic()
    traffic, placing = [], list[Placing]()
    for model in MODELS:
        progress.stage(f"{model}: bytes of every cut")
        layers = inspect_layers(ShippedCode(model), ZOO[model].input_shape, LayerExchange(buffers=False))
        traffic.append(describe_traffic(model, layers))
        progress.stage(f"{model}: {len(DRIVES)} arrays behind {len(LINKS_BYTES_PER_SECOND)} links")
        placing += place(model, layers, store)
    ran = [] if wall is None else run_scaled(wall, progress)
    report = PlacementReport(
        clock=MODELLED,
        overlapped=False,
        beside=put_beside(placing),
        traffic=traffic,
        placing=placing,
        notes=[*NOTES, *([WALL_NOTE] if ran else [])],
        files=[],
        wall_seconds=time.monotonic() - begin,
        ran=ran,
        verdicts=judge_headlines(placing),
    )
    return report if output is None else write_placement(report, output)


def step_bytes(parameter_bytes: float, batch_size: int, crossing_bytes: float) -> float:
    """Return what one drive's step puts on the wire, both ways, labels and frames left out: 2 P + 2 b a.

    Args:
        parameter_bytes: P, of the layers that the drive keeps.
        batch_size: b.
        crossing_bytes: a, of one record at the cut; 0 with nothing moved.
    """
    return 2 * parameter_bytes + 2 * batch_size * crossing_bytes


def describe_traffic(model: str, layers: Sequence[LayerSplitCost]) -> Traffic:
    """Return what the cut before a model's linear layers does to one drive's traffic."""
    batch, derived = MODELS[model]
    cut = first_linear(layers)
    sizes = [layer.push_bytes for layer in layers]
    crossing = layers[cut].crossing_bytes or 0
    whole, kept = step_bytes(sum(sizes), batch, 0), step_bytes(sum(sizes[:cut]), batch, crossing)
    work = [layer.forward_operations + layer.backward_operations for layer in layers]
    return Traffic(
        model=model,
        batch=batch,
        layer=layers[cut].name,
        parameters=sum(sizes) // 4,
        moved_parameters=sum(sizes[cut:]) / sum(sizes),
        moved_compute=sum(work[cut:]) / sum(work),
        crossing_bytes=crossing,
        whole_bytes=whole,
        cut_bytes=kept,
        ratio=whole / kept,
        counted_ratio=count_wire(model, batch).ratio if model in COUNTED else None,
        derived_ratio=derived,
    )


def first_linear(layers: Sequence[LayerSplitCost]) -> int:
    """Return the cut before the linear layers at a model's end: those whose weights have two dimensions per record.

    They are the longest end of the model that has fewer operations than 20 for each byte that is exchanged.
    """
    cut = len(layers)
    while cut > 1:
        layer = layers[cut - 1]
        if layer.push_bytes == 0 or layer.forward_operations > 20 * layer.push_bytes:
            break
        cut -= 1
    while layers[cut].crossing_bytes is None:
        cut += 1
    return cut


def place(model: str, layers: Sequence[LayerSplitCost], store: CalibrationStore) -> Iterator[Placing]:
    """Yield one row for each number of drives and each link."""
    batch, _ = MODELS[model]
    for drives in DRIVES:
        for rate in LINKS_BYTES_PER_SECOND:
            yield place_one(model, layers, store, drives, batch, rate)


def place_one(
    model: str, layers: Sequence[LayerSplitCost], store: CalibrationStore, drives: int, batch: int, rate: float
) -> Placing:
    """Return which cut is chosen for equal drives behind a link, and what it wins."""
    profile, host = get_profile(DRIVE), get_profile(HOST_PROFILE)
    table = store.require(ShippedCode(model), ZOO[model].input_shape, DRIVE)
    at_once = min(batch, table.batches[-1])
    seconds = gradient_seconds(TableModel(table, profile), micro_batch_counts(batch, at_once))
    one = DeviceCost(
        "csd",
        batch,
        seconds.forward,
        seconds.backward,
        seconds.encode,
        0.0,
        profile.link_bytes_per_second.value,
        profile.link_latency_seconds.value,
    )
    together = gradient_seconds(host_model(table, host), micro_batch_counts(drives * batch, at_once))
    situation = SplitProblem(
        tuple(layers),
        tuple(replace(one, device=f"csd-{number:02d}") for number in range(drives)),
        HostPlace(together.forward, together.backward),
        Link(rate, host.link_latency_seconds.value),
        slice_seconds=SLICE_SECONDS.value,
    )
    decision, pushed = decide(situation, heavy=HEAVY), float(CutCosts(situation).push_bytes[-1])
    unmoved = decision.step_seconds if decision.unmoved_seconds is None else decision.unmoved_seconds
    return Placing(
        model=model,
        drives=drives,
        batch=batch,
        link_bytes_per_second=rate,
        wire_over_compute=drives * pushed / rate / (seconds.forward + seconds.backward),
        layer=decision.layer,
        unmoved_seconds=unmoved,
        step_seconds=decision.step_seconds,
        speedup=unmoved / decision.step_seconds,
        host_seconds=decision.row.host_seconds,
    )


def put_beside(placing: Sequence[Placing]) -> list[PublishedPlacement]:
    """Return the published headlines with the range of ours."""
    best = max(placing, key=lambda row: row.speedup)
    at = f"{best.model}, {best.drives} drives, {best.link_bytes_per_second / 1e6:g} MB/s"
    low = min(row.speedup for row in placing)
    return [PublishedPlacement(source, published, low, best.speedup, at) for source, published, _ in PUBLISHED]


def judge_headlines(placing: Sequence[Placing]) -> list[HeadlineVerdict]:
    """Return the verdict on each headline; what they take to be predicted could not be read."""
    low, high = min(row.speedup for row in placing), max(row.speedup for row in placing)
    missing = (
        "its networks, batches, workers and links per result could not be read, and the speed-up hangs on these: "
        f"{low:.2f} to {high:.2f} over ours"
    )
    return [undecidable(source, "speedup", published, missing) for source, _, published in PUBLISHED]
