"""`csd-emu reproduce hypertune`: the published headlines of HyperTune and STANNIS beside our simulation of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from csd_emu.perfmodel.power import PUBLISHED
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.util.progress import Progress
from csd_lab.reproduce.hypertune_result import BatchEffect, Beside, DisturbanceFigures, HypertuneReport, Scaling
from csd_lab.reproduce.output import write_hypertune
from csd_lab.reproduce.scaling import DRIVES, MODELS, SERVER, describe_input, disturb, make_server, scale, vary_batch
from csd_lab.simulate.nodes import Nodes
from csd_lab.simulate.simulation_report import assumptions
from host.core.device_time import MODELLED
from host.monitoring.report.comparison import PublishedCheck, check_published
from host.policies.batching.device_speeds import RatioName

MIDDLE: RatioName = "middle"
# Bytes over the baseline's, and who published them.
PUBLISHED_TRAFFIC = (1 - 0.68, "ACM TECS 2022: up to 3.1x, energy -67 %, data transfer -68 % against ordinary SSDs")
NOTES = (
    "Nothing was measured on a real drive. Seconds of a step are emulated: counted in a virtual machine, and scaled to "
    "the drive by assumed figures. All else is simulated from them.",
    "The ends of the band, 11 and 21, are derived from the published speed-ups themselves (1 + N / ratio). So it "
    "confirms nothing that our speed-ups lie about them; what the exchange takes away, energy and traffic are ours.",
    "The published results do not say which model, batch and number of drives their maxima belong to, nor do they "
    "give watts. Our energy rests on assumed ones.",
    "No batch larger than calibration has measured is computed at once; more records accumulate gradients. In models "
    "with batch normalisation its statistics are of so few records (Inception v3: 2). What that, or a global batch of "
    "hundreds of records, does to accuracy is not simulated.",
    "Every step moves weights and buffers to each drive and gradients back, over one link that all share. With a "
    "drive's batch at the knee of its compute rate alone, about half of a step is spent on that; the batch decides "
    "speed, energy and traffic.",
    "STANNIS here counts the exchange in and so takes a larger batch; it looks no further than twice the knee, or 16.",
    "To move fewer bytes than a host that reads its records takes large batches: one drive's exchange is as many bytes "
    "as dozens to hundreds of records, each step.",
    "HyperTune's algorithm was not to be read; the controller is ours, the one of real runs. Here it sees seconds "
    "without noise; csd-emu bench hypertune_sim has noise, drift and deaths. A retune costs what a job file says.",
    "A disturbed node that is done early sends before the others, so the retuned rate can pass 1 - f h by a little.",
)


def reproduce_hypertune(store: CalibrationStore, output: Path | None, progress: Progress) -> HypertuneReport:
    """Simulate everything; with `output`, write tables and charts into that folder.

    Raises:
        CalibrationError: a table is missing or damaged.
        EnvironmentUnfit: the files cannot be written.
    """
    begin = time.monotonic()
    scaling: list[Scaling] = []
    batches: list[BatchEffect] = []
    disturbed: list[DisturbanceFigures] = []
    for model in MODELS:
        for ratio in get_args(RatioName):
            progress.stage(f"{model}: 0 to {DRIVES} drives, the {ratio} of the band")
            nodes = make_server(model, store, ratio)
            scaling += scale(nodes)
            if ratio == MIDDLE:
                progress.stage(f"{model}: batches and disturbances")
                batches += vary_batch(nodes)
                disturbed += disturb(nodes)
    report = HypertuneReport(
        server=SERVER,
        clock=MODELLED,
        beside=put_beside(scaling),
        needed=needed_watts(nodes, scaling),
        inputs=[describe_input(model, store) for model in MODELS],
        scaling=scaling,
        batches=batches,
        disturbed=disturbed,
        notes=list(NOTES),
        assumed=assumptions(nodes),
        files=[],
        wall_seconds=time.monotonic() - begin,
    )
    return report if output is None else write_hypertune(report, output)


def put_beside(scaling: Sequence[Scaling]) -> list[Beside]:
    """Return each published headline with ours of all drives."""
    alone = {(row.model, row.ratio): row.link_bytes_per_record for row in scaling if row.drives == 0}
    full = [row for row in scaling if row.drives == DRIVES]
    ours = {
        "speedup": [(row.ratio, row.speedup) for row in full],
        "energy_factor": [(row.ratio, row.energy_factor) for row in full],
        "traffic": [(row.ratio, row.link_bytes_per_record / alone[row.model, row.ratio]) for row in full],
    }
    rows = [
        _beside(result.source, figure, getattr(result, figure), ours[figure])
        for result in (PUBLISHED["hypertune"], PUBLISHED["stannis"])
        for figure in ("speedup", "energy_factor")
    ]
    published, source = PUBLISHED_TRAFFIC
    return [*rows, _beside(source, "traffic", published, ours["traffic"])]


def _beside(source: str, figure: str, published: float, ours: Sequence[tuple[float, float]]) -> Beside:
    """Return a row; `ours` are (ratio, value)."""
    middle = statistics.median(ratio for ratio, _ in ours)
    values = [value for _, value in ours]
    mean = statistics.fmean(value for ratio, value in ours if ratio == middle)
    return Beside(source, figure, published, min(values), mean, max(values))


def needed_watts(nodes: Nodes, scaling: Sequence[Scaling]) -> list[PublishedCheck]:
    """Return the watts that published results leave to each drive, against the same server's watts without them."""
    watts = statistics.fmean(row.watts for row in scaling if row.drives == 0)
    drive = nodes.kinds[0].profile
    added = drive.power.core_watts.value * drive.cores.value + drive.power.dram_watts.value
    return check_published(watts, DRIVES, added)
