"""Models that are cut, in earnest: gradients against one process, bytes of encoded frames, wall seconds of steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from csd_emu.communication.costs import exchange_bytes
from csd_emu.engines import Engine, NativeEngine, make_engine
from csd_emu.paths import Paths
from csd_emu.placement.costs import DrivePlace, HostPlace, LayerPlace, Situation
from csd_emu.placement.decide import HEAVY, decide
from csd_emu.progress import Progress
from csd_emu.timeline import Link
from firmware_agent.crossing import LABELS, activation_specs
from firmware_agent.cutting import cut_model, list_cuts
from firmware_agent.exchange import Array, cut_slices, tensor_specs
from firmware_agent.layer_costs import trace_layers
from firmware_agent.models import ModelSpec, build_model
from firmware_agent.models.zoo import ZOO
from firmware_agent.weights import trained_names
from firmware_agent.wire import Activations, Frame, PhaseSeconds, Step, Stepped, Tensors, TensorSpec, encode, pack
from host.bench.comm_cases import DRIVES, LATENCY_SECONDS
from host.bench.comm_models import costs_of, spec_of
from host.bench.comm_nets import INPUT_SHAPE, NETS
from host.bench.comm_runs import WallRuns
from host.bench.gradients import BATCHES, CASES, MODELS, WHOLE, normalises
from host.bench.gradients import Case as GradientCase
from host.bench.gradients import Step as GradientStep
from host.bench.harness import bench_config
from host.lifecycle import ArrayRequest, StartedArray
from host.machines import run_on_engine
from host.requests import DEFAULT_DATA
from host.sync.crossing import Hand
from host.sync.placing import NONE
from host.sync.tail import Back

# The published arithmetic's models and batches: traffic without a cut over traffic with the linear layers on the host.
PUBLISHED = {"vgg16": (32, 8.9), "alexnet": (128, 16.7)}
BATCH = 32
# What a drive computes for in a step of the whole model.
COMPUTE_SECONDS = 0.2
_SPEEDUP_STEPS = 8
_REGRET_STEPS = 5
_NUMBER = 7
_VALUE_BYTES = 4
# Only the shared side of the link is shaped.
_OWN_BYTES_PER_SECOND = 1e12


@dataclass(frozen=True)
class Case:
    """A scaled model on three paced drives that share a link.

    Attributes:
        model: its name.
        ratio: seconds of all bytes of one direction on the shared link over seconds that a drive computes, with nothing
            moved.
    """

    model: str
    ratio: float

    def __str__(self) -> str:
        """Return it as a person reads it."""
        return f"{self.model}, wire/compute {self.ratio:g}"

    @property
    def bytes_per_second(self) -> float:
        """The link's bandwidth, each way."""
        return DRIVES * exchange_bytes(costs_of(self.model, COMPUTE_SECONDS)) / (COMPUTE_SECONDS * self.ratio)


SPEEDUP_CASE = Case("vgg", 4.0)
# Four cases with three placements each: twelve runs.
REGRET_CASES = (Case("vgg", 4.0), Case("alexnet", 1.0), Case("resnet", 1.0), Case("transformer", 4.0))


def gradient_errors(paths: Paths, progress: Progress, seed: int) -> dict[str, dict[str, float]]:
    """Return the errors of one step of each model and cut, on three native agents, against one uncut process.

    In float64, with unequal batches and the same groups; statistics of normalisation of each kind, and records computed
    in parts. `gradient_error` is the largest `worst`.

    Returns:
        Case -> ``worst`` and ``median`` relative error over its tensors.
    """
    config = bench_config("placement", len(BATCHES), "native")

    async def work(started: StartedArray, _: Engine) -> dict[str, dict[str, float]]:
        samples, cases = {}, list(gradient_cases())
        for number, case in enumerate(cases):
            progress.stage(str(case))
            errors = (await GradientStep(case, started, seed).errors()).values
            samples[str(case)] = {"worst": max(errors.values()), "median": statistics.median(errors.values())}
            progress.advance((number + 1) / len(cases))
        return samples

    request = ArrayRequest(config, DEFAULT_DATA, seed)
    return run_on_engine(make_engine(config, paths), request, paths, progress, work)


def gradient_cases() -> Iterator[GradientCase]:
    """Yield of each model an early, a middle and the last cut, each with another way to normalise."""
    for model in MODELS:
        whole = build_model(GradientCase(model, "", 0).spec)
        points = [point.layer for point in list_cuts(whole, torch.rand(1, 1, 8, 8)) if not point.reason]
        layers = [points[len(points) // 4], points[len(points) // 2], points[-1]]
        kinds = CASES if normalises(whole) else CASES[:2]
        for number, (batch_norm, micro_batch) in enumerate(kinds):
            yield GradientCase(model, batch_norm, micro_batch, layers[number % len(layers)])
        if micro_batch != WHOLE:
            yield GradientCase(model, "device", WHOLE, layers[-1])


@dataclass(frozen=True)
class WireCount:
    """Bytes of one drive's step, both ways, as messages that a stream takes; and what arithmetic says of them.

    Attributes:
        whole_bytes, cut_bytes: counted, with nothing moved and with the linear layers on the host.
        formula_whole_bytes, formula_cut_bytes: 2 P, and 2 P' + 2 b a (algorithms section 4 of the design notes).
    """

    whole_bytes: int
    cut_bytes: int
    formula_whole_bytes: int
    formula_cut_bytes: int

    @property
    def ratio(self) -> float:
        """How many times as much crosses without the cut."""
        return self.whole_bytes / self.cut_bytes

    @property
    def error(self) -> float:
        """Of the counted ratio against that of the formula."""
        return abs(self.ratio / (self.formula_whole_bytes / self.formula_cut_bytes) - 1)


def count_wire(name: str, batch: int) -> WireCount:
    """Return what a step of a full-size model of the zoo puts on the wire: every frame is encoded, nothing is computed.

    Args:
        name: of the model; it is cut before its first linear layer.
        batch: records of the drive.
    """
    with torch.device("meta"):
        model = build_model(ModelSpec(name))
    images = torch.empty(1, *ZOO[name].input_shape, device="meta")
    layer = next(key for key, each in model.named_modules() if isinstance(each, nn.Linear))
    cut = cut_model(model, images, layer)
    weights = {key: np.zeros(tensor.shape, np.float32) for key, tensor in model.state_dict().items()}
    trained = set(trained_names(model))
    front = {key: weights[key] for key in cut.front.state_dict()}
    specs = activation_specs(cut.point.crossing, batch, drawn=False)
    hand = Hand(cut.point.crossing, True, 1, _NUMBER, "csd-00", (batch,))
    back = Back(1.0, {spec.name: np.zeros(spec.shape, spec.dtype) for spec in specs if spec.name != LABELS})
    crossing = sum(map(len, hand.answer(back).messages())) + _bytes(_activations(specs))
    kept = sum(front[key].size for key in front if key in trained)
    return WireCount(
        whole_bytes=_step_bytes(weights, trained, batch),
        cut_bytes=_step_bytes(front, trained, batch) + crossing,
        formula_whole_bytes=2 * _VALUE_BYTES * sum(weights[key].size for key in trained),
        formula_cut_bytes=2 * _VALUE_BYTES * kept + 2 * batch * cut.point.record_bytes,
    )


def _step_bytes(weights: dict[str, Array], trained: set[str], batch: int) -> int:
    """Return the bytes of a step's frames without what crosses a cut: weights and records out, gradients back."""
    gradients = {key: array for key, array in weights.items() if key in trained}
    buffers = {key: array for key, array in weights.items() if key not in trained}
    records = np.zeros(batch, "<u4").tobytes()
    report = Stepped(_NUMBER, batch, 1.0, PhaseSeconds(1.0, 1.0, 0.0, 1.0), 0)
    out = _bytes([Tensors(_NUMBER, tensor_specs(weights)), *cut_slices(_NUMBER, weights)])
    back = _bytes([Tensors(_NUMBER, tensor_specs(gradients | buffers)), *cut_slices(_NUMBER, gradients | buffers)])
    return out + _bytes([Step(_NUMBER, records, batch)]) + back + _bytes([report])


def _activations(specs: Sequence[TensorSpec]) -> Iterator[Frame]:
    yield Activations(_NUMBER, 0, list(specs))
    yield from cut_slices(_NUMBER, {spec.name: np.zeros(spec.shape, spec.dtype) for spec in specs})


def _bytes(frames: Iterable[Frame]) -> int:
    return sum(map(len, pack(map(encode, frames))))


async def speedup(runs: WallRuns, progress: Progress) -> tuple[float, dict[str, Any]]:
    """Return how many times as long a step of the scaled VGG takes with nothing moved as with the cut that is chosen.

    Medians of wall seconds, three paced drives behind the relay, 32 records each, nothing overlapping in either. The
    host's layers take their paced seconds too, once for all drives. The cut before the linear layers is run as well,
    for it is the published one.
    """
    case, chosen = SPEEDUP_CASE, choose(SPEEDUP_CASE)
    spec, seconds = spec_of(case.model, COMPUTE_SECONDS), dict[str, list[float]]()
    for placement in dict.fromkeys((NONE, chosen, _first_linear(case.model))):
        progress.stage(f"{case}: placement {placement}")
        seconds[placement] = await runs.run_placed(spec, placement, BATCH, _SPEEDUP_STEPS, case.bytes_per_second)
    unmoved, moved = statistics.median(seconds[NONE]), statistics.median(seconds[chosen])
    return unmoved / moved, {"case": str(case), "chosen": chosen, "step_seconds": seconds}


async def regret(runs: WallRuns, progress: Progress) -> tuple[float, list[dict[str, Any]]]:
    """Return the largest measured chosen / best - 1, and what was seen of each case.

    A case runs with nothing moved, with the layers of its classifier moved, and with what is chosen, or a cut in the
    middle if that is one of these. Chosen is what `csd_emu.placement.decide` says of the figures that the drives are
    paced to, any layer allowed to move: the host is paced to be as fast as all three drives together.
    """
    cases, worst = [], 0.0
    for number, case in enumerate(REGRET_CASES):
        chosen = choose(case, heavy=0.0)
        seconds: dict[str, float] = {}
        for placement in _candidates(case, chosen):
            progress.stage(f"{case}: placement {placement}")
            spec = spec_of(case.model, COMPUTE_SECONDS)
            ran = await runs.run_placed(spec, placement, BATCH, _REGRET_STEPS, case.bytes_per_second)
            seconds[placement] = statistics.median(ran)
        lost = seconds[chosen] / min(seconds.values()) - 1
        worst = max(worst, lost)
        cases.append({"case": str(case), "chosen": chosen, "step_seconds": seconds, "regret": lost})
        progress.advance((number + 1) / len(REGRET_CASES))
    return worst, cases


def situation_of(case: Case) -> Situation:
    """Return what the drives and the host of a case are paced to, for a decision about where its model is cut."""
    net = NETS[case.model]()
    images = torch.rand(1, *INPUT_SHAPE)
    costs = {layer.name: layer for layer in costs_of(case.model, COMPUTE_SECONDS)}
    points = {point.layer: point for point in list_cuts(net.model, images)}
    works = trace_layers(net.model, images)
    layers = tuple(
        LayerPlace(
            name=work.name,
            tensors=costs[work.name].tensors,
            forward_operations=net.operations[work.name],
            backward_operations=2 * net.operations[work.name],
            tail_bytes=0.0,
            crossing_bytes=None if place == 0 or points[work.name].reason else points[work.name].record_bytes,
            reason="" if place == 0 else points[work.name].reason,
        )
        for place, work in enumerate(works)
    )
    shares = (
        tuple(costs[work.name].forward_seconds for work in works),
        tuple(costs[work.name].backward_seconds for work in works),
    )
    forward, backward = map(sum, shares)
    drives = tuple(
        DrivePlace(
            *(f"csd-{number:02}", BATCH, forward, backward, 0.0, 0.0, _OWN_BYTES_PER_SECOND, 0.0),
            layer_shares=shares,
        )
        for number in range(DRIVES)
    )
    host = HostPlace(forward, backward, layer_shares=shares)
    return Situation(layers, drives, host, Link(case.bytes_per_second, LATENCY_SECONDS))


def choose(case: Case, heavy: float = HEAVY) -> str:
    """Return the placement that is chosen for a case, a layer or ``none``; see `csd_emu.placement.decide`."""
    layer = decide(situation_of(case), heavy=heavy).layer
    return NONE if layer is None else layer


def _candidates(case: Case, chosen: str) -> list[str]:
    layers = [layer.name for layer in situation_of(case).layers if layer.crossing_bytes is not None]
    wanted = dict.fromkeys([NONE, _first_linear(case.model), chosen, layers[len(layers) // 2], layers[-1]])
    return list(wanted)[:3]


def _first_linear(model: str) -> str:
    """Return the first linear layer behind the last convolution; of a model without one the last layer."""
    names = [work.name for work in trace_layers(NETS[model]().model, torch.rand(1, *INPUT_SHAPE))]
    linear = [name for name in names if name.startswith("fc")]
    return linear[0] if linear else names[-1]


def native_engine(engine: Engine) -> NativeEngine:
    """Return the engine of the wall-clock runs as what it is.

    Raises:
        TypeError: it is another.
    """
    if not isinstance(engine, NativeEngine):
        raise TypeError("drives behind a shaped link are native ones")
    return engine
