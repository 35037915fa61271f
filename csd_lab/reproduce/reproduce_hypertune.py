"""`csd-emu reproduce hypertune`: headlines of HyperTune and STANNIS beside predictions that do not know them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from csd_emu.perfmodel.power import PUBLISHED
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.util.progress import Progress
from csd_lab.reproduce.blind_inputs import FROZEN_SHA256, BlindInputs, load_inputs
from csd_lab.reproduce.blind_prediction import ENERGY, RATIO, SPEEDUP, TRAFFIC, best_of, predict
from csd_lab.reproduce.blind_server import DRIVES, SERVER, BlindServer, middle_of
from csd_lab.reproduce.hypertune_result import (
    BatchEffect,
    Beside,
    DisturbanceFigures,
    HypertuneReport,
    ModelInput,
    Prediction,
    Scaling,
    TrafficNeed,
)
from csd_lab.reproduce.output import check_output, write_hypertune
from csd_lab.reproduce.scaling import MODELS, describe_input, disturb, scale, vary_batch
from csd_lab.reproduce.traffic import TARGET, traffic_needs
from csd_lab.reproduce.verdict import HeadlineVerdict, judge, undecidable
from csd_lab.simulate.nodes import Nodes
from csd_lab.simulate.simulation_report import assumptions
from host.core.device_time import MODELLED
from host.monitoring.report.comparison import PublishedCheck, check_published

CYCLES = "cycles"
TECS = "ACM TECS 2022: up to 3.1x, energy -67 %, data transfer -68 % against ordinary SSDs"
AUTOBYTE = "AutoByte: up to 33.2 % over ByteScheduler's best static setting"
NOTES = (
    "Nothing was measured on a real drive. Seconds of a step are emulated: counted in a virtual machine, in cycles of "
    "a core model or of an assumed ratio, and scaled to the drive. All else is simulated from them.",
    "What a host is worth is predicted: published training throughput of x86 processors, scaled to this one by peak, "
    "over the drive's rate. The inputs were frozen before the comparison; none is of a paper that is compared.",
    "A band has each input at its ends, the others at their values; logarithms add up as the root of the sum of "
    "squares. A headline 'up to' is held against the best of the models.",
    "The published results do not say which model, batch and number of drives their maxima belong to, nor do they "
    "give watts.",
    "No batch larger than calibration has measured is computed at once; more records accumulate gradients. In models "
    "with batch normalisation its statistics are of so few records. What that, or a global batch of hundreds of "
    "records, does to accuracy is not simulated.",
    "Every step moves weights and buffers to each drive and gradients back, over one link that all share; the batch "
    "decides speed, energy and traffic. STANNIS here counts the exchange in; it looks no further than twice the knee, "
    "or 16.",
    "A host that takes part reads its own records: with speed-up s that is 1 / s of them. So -68 % takes more than "
    "3.1x even if the exchange moved nothing; 1 - 1 / 3.1 is 68 %: what results if records are counted and the "
    "exchange is not.",
    "HyperTune's algorithm was not to be read; the controller is ours, the one of real runs. Here it sees seconds "
    "without noise; csd-emu bench hypertune_sim has noise, drift and deaths. A retune costs what a job file says.",
    "A disturbed node that is done early sends before the others, so the retuned rate can pass 1 - f h by a little.",
)


@dataclass
class SimulatedModels:
    """What was worked out, over all models.

    Attributes:
        predictions, scaling, batches, disturbed, inputs: as in the report.
        middles: nodes of each model in its band's middle.
    """

    predictions: list[Prediction] = field(default_factory=list)
    scaling: list[Scaling] = field(default_factory=list)
    batches: list[BatchEffect] = field(default_factory=list)
    disturbed: list[DisturbanceFigures] = field(default_factory=list)
    inputs: list[ModelInput] = field(default_factory=list)
    middles: list[Nodes] = field(default_factory=list)


def reproduce_hypertune(store: CalibrationStore, output: Path | None, progress: Progress) -> HypertuneReport:
    """Predict and simulate everything; with `output`, write tables and charts into that folder.

    Raises:
        CalibrationError: a table is missing or damaged.
        ConfigurationError: the inputs are not those that were frozen.
        EnvironmentUnfit: the files cannot be written.
    """
    check_output(output)
    begin, frozen, done = time.monotonic(), load_inputs(), SimulatedModels()
    for model in MODELS:
        simulate_model(model, store, frozen, done, progress)
    needs = list(traffic_needs(host_shares(done.scaling), drive_batches(done.scaling)))
    verdicts = list(judge_all(done.predictions, needs))
    report = HypertuneReport(
        verdicts=verdicts,
        predictions=done.predictions,
        traffic=needs,
        inputs_frozen=frozen.frozen,
        inputs_sha256=FROZEN_SHA256,
        core_model=CYCLES,
        server=SERVER,
        clock=MODELLED,
        beside=list(put_beside(verdicts)),
        needed=needed_watts(done.middles[-1], done.scaling),
        inputs=done.inputs,
        scaling=done.scaling,
        batches=done.batches,
        disturbed=done.disturbed,
        notes=list(NOTES),
        assumed=assumptions(done.middles[-1]),
        files=[],
        wall_seconds=time.monotonic() - begin,
    )
    return report if output is None else write_hypertune(report, output)


def simulate_model(
    model: str, store: CalibrationStore, frozen: BlindInputs, done: SimulatedModels, progress: Progress
) -> None:
    """Add one model to `done`: its predictions, and its scaling over the predicted band of what a host is worth."""
    server = BlindServer(model, store, frozen)
    at = middle_of(server.bands)
    progress.stage(f"{model}: predictions")
    predictions = list(predict(server))
    done.predictions += predictions
    done.inputs.append(describe_input(server, at))
    worth = next(row for row in predictions if row.figure == RATIO)
    for ratio in (worth.low, worth.middle, worth.high):
        progress.stage(f"{model}: 0 to {DRIVES} drives, a host is worth {ratio:.3g}")
        done.scaling += scale(server.nodes(at, ratio))
    progress.stage(f"{model}: batches and disturbances")
    nodes = server.nodes(at)
    done.middles.append(nodes)
    done.batches += vary_batch(nodes)
    done.disturbed += disturb(nodes)


def judge_all(predictions: Sequence[Prediction], needs: Sequence[TrafficNeed]) -> Iterator[HeadlineVerdict]:
    """Yield the verdict on each headline of these papers."""
    for name in ("hypertune", "stannis", "solana"):
        result = PUBLISHED[name]
        source = TECS if name == "solana" else result.source
        for figure in (SPEEDUP, ENERGY):
            band, depends = best_of(predictions, figure), widest_input(predictions, figure)
            yield judge(source, figure, getattr(result, figure), band, depends)
    yield judge(TECS, TRAFFIC, TARGET, best_of(predictions, TRAFFIC), f"; {describe_needs(needs)}")
    yield undecidable(
        AUTOBYTE,
        "gain",
        1.332,
        "only the abstract could be read: no network, model, processor or setting is known that it was measured with",
    )


def widest_input(predictions: Sequence[Prediction], figure: str) -> str:
    """Return the half sentence that names the inputs which matter most to the best model's figure."""
    best = max((row for row in predictions if row.figure == figure), key=lambda row: row.high)
    return f" ({best.model}; most depends on {' and '.join(each.input for each in best.influences[:2])})"


def describe_needs(needs: Sequence[TrafficNeed]) -> str:
    """Return in half a sentence at which record size and batch the published traffic holds."""
    trains = [need for need in needs if need.host_share > 0]
    alone = [need for need in needs if need.host_share == 0]
    least = min(need.host_share for need in trains)
    holding = [need for need in trains if need.holds]
    if holding:
        cases = ", ".join(f"{need.model} ({need.case}, {need.drive_batch} records a drive)" for need in holding)
        text = f"with a host that trains it holds for {cases}"
    elif least >= TARGET:
        text = f"no record size or batch gives it to a host that trains, whose own reads are {least:.0%} or more"
    else:
        text = "no record up to 10 MB and no batch up to 32,768 gives it to a host that trains"
    batches = [f"{need.drive_batch} ({need.model})" for need in alone if need.drive_batch is not None]
    return f"{text}; drives alone need batches of {', '.join(batches)}"


def host_shares(scaling: Sequence[Scaling]) -> dict[str, dict[str, float]]:
    """Return model -> who trains -> the host's share of the records with all drives."""
    shares: dict[str, dict[str, float]] = {}
    for row in (row for row in scaling if row.drives == DRIVES):
        share = row.host_batch / (row.drives * row.drive_batch + row.host_batch)
        shares.setdefault(row.model, {"drives alone": 0.0})[f"host worth {row.ratio:.3g}"] = share
    return shares


def drive_batches(scaling: Sequence[Scaling]) -> dict[str, int]:
    """Return model -> STANNIS's batch of a drive with all drives, the largest of the band."""
    batches: dict[str, int] = {}
    for row in (row for row in scaling if row.drives == DRIVES):
        batches[row.model] = max(row.drive_batch, batches.get(row.model, 0))
    return batches


def put_beside(verdicts: Sequence[HeadlineVerdict]) -> Iterator[Beside]:
    """Yield each headline with a predicted band, as releases before have it."""
    for row in verdicts:
        if row.low is not None and row.middle is not None and row.high is not None:
            yield Beside(row.source, row.figure, row.published, row.low, row.middle, row.high)


def needed_watts(nodes: Nodes, scaling: Sequence[Scaling]) -> list[PublishedCheck]:
    """Return the watts that published results leave to each drive, against the same server's watts without them."""
    watts = statistics.fmean(row.watts for row in scaling if row.drives == 0)
    drive = nodes.kinds[0].profile
    added = drive.power.core_watts.value * drive.cores.value + drive.power.dram_watts.value
    return check_published(watts, DRIVES, added)
