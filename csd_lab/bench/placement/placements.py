"""Cuts of models, measured: frames, gradients and wall clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.communication.comm_runs import WallRuns, on_wall
from csd_lab.bench.harness import Bench
from csd_lab.bench.placement import placement_cases, placement_wall
from csd_lab.bench.placement.placement_cases import (
    ANY_LAYER_DRIVES,
    COMPUTE_BOUND,
    THRESHOLDS,
    WIRE_BOUND,
    PlacementCase,
    bound_cases,
    list_cases,
)
from csd_lab.bench.training.bench_gradients import SMALL, WHOLE, GradientCase, measure_errors
from firmware_agent.common.frames.frame_fields import Frame, PhaseSeconds, TensorSpec
from firmware_agent.common.frames.session_frames import Tensors
from firmware_agent.common.frames.step_frames import Activations, Step, Stepped
from firmware_agent.common.models import build_model
from firmware_agent.common.models.zoo import ZOO
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array, cut_slices, tensor_specs
from firmware_agent.common.split.activations import LABELS, activation_specs
from firmware_agent.common.split.cutting import cut_model, list_cuts
from firmware_agent.common.weights import trained_names
from firmware_agent.common.wire import encode, pack
from host.policies.split.choose_cut import HEAVY, decide
from host.training.sync.exchange.activation_exchange import ActivationReceiver
from host.training.sync.server_model.activation_types import ActivationBatch, ActivationGrads, HandOver

# The published arithmetic's models and batches: traffic without a cut over traffic with the linear layers on the host.
PUBLISHED = {"vgg16": (32, 8.9), "alexnet": (128, 16.7)}
# With small images, and VGG-16 and AlexNet with narrow linear layers: see `csd_lab.bench.training.bench_gradients`.
MODELS = ("vgg16", "alexnet", "resnet50", "mobilenet_v2", "inception_v3")
# The one that is cut with every kind of normalisation.
_VARIED = "mobilenet_v2"
_NUMBER = 7
_VALUE_BYTES = 4


def gradient_cases() -> Iterator[GradientCase]:
    """Yield each model cut early and late, the late ones with records in parts; one with each kind of normalisation."""
    for model in MODELS:
        layers = _cuttable(model)
        early, middle, late = layers[len(layers) // 4], layers[len(layers) // 2], layers[-1]
        yield GradientCase(model, "device", WHOLE, early)
        yield GradientCase(model, "device", SMALL, late)
        if model == _VARIED:
            yield GradientCase(model, "device", SMALL, middle)
            yield GradientCase(model, "synchronised", WHOLE, middle)
            yield GradientCase(model, "frozen", SMALL, early)


def _cuttable(model: str) -> list[str]:
    with torch.device("meta"):
        whole, images = build_model(GradientCase(model, "", 0).spec), torch.empty(1, 1, 8, 8)
    return [point.layer for point in list_cuts(whole, images) if not point.reason]


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
        """The largest relative error of the counted bytes and of their ratio, against those of the formula."""
        pairs = (
            (self.whole_bytes, self.formula_whole_bytes),
            (self.cut_bytes, self.formula_cut_bytes),
            (self.ratio, self.formula_whole_bytes / self.formula_cut_bytes),
        )
        return max(abs(counted / formula - 1) for counted, formula in pairs)


def count_wire(name: str, batch: int) -> WireCount:
    """Return what a step of a full-size model of the zoo puts on the wire: every frame is encoded, nothing is computed.

    Args:
        name: of the model; it is cut before its first linear layer.
        batch: records of the drive.
    """
    with torch.device("meta"):
        model = build_model(ShippedCode(name))
    images = torch.empty(1, *ZOO[name].input_shape, device="meta")
    layer = next(key for key, each in model.named_modules() if isinstance(each, nn.Linear))
    cut = cut_model(model, images, layer)
    weights = {key: np.zeros(tensor.shape, np.float32) for key, tensor in model.state_dict().items()}
    trained = set(trained_names(model))
    front = {key: weights[key] for key in cut.front.state_dict()}
    specs = activation_specs(cut.point.crossing, batch, drawn=False)
    hand = ActivationReceiver(HandOver(cut.point.crossing, True, 1), _NUMBER, "csd-00", (batch,), _nobody_adds)
    back = ActivationGrads(1.0, {spec.name: np.zeros(spec.shape, spec.dtype) for spec in specs if spec.name != LABELS})
    crossing = sum(map(len, hand.answer(back).messages(_NUMBER))) + _bytes(_activations(specs))
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


def bench_placement(bench: Bench) -> BenchReport:
    """Cuts of models: whether they are where they should be, change nothing but time, and what they win.

    Look at placement on the timeline, on native agents, on encoded frames and on the wall clock.

    Figures on the timeline (see `on_the_timeline`): `declined`, `chosen_when_wire_bound`, `regret_worst` and
    `decision_seconds`. Of execution: `gradient_error`,
    `wire_error_vgg16` and `wire_error_alexnet`; on the wall clock (see `csd_lab.bench.placement.placement_wall`)
    `speedup_vgg_like` and `regret_measured`.
    """
    figures, samples = on_the_timeline(bench)
    bench.progress.stage("bytes of encoded frames")
    for model, (batch, published) in PUBLISHED.items():
        count = count_wire(model, batch)
        figures[f"wire_error_{model}"] = count.error
        samples[f"wire_{model}"] = {
            "batch": batch,
            "counted_whole_bytes": count.whole_bytes,
            "counted_cut_bytes": count.cut_bytes,
            "formula_whole_bytes": count.formula_whole_bytes,
            "formula_cut_bytes": count.formula_cut_bytes,
            "counted_ratio": count.ratio,
            "derived_ratio": published,
        }
    bench.progress.stage("gradients of cut models")
    errors = measure_errors(bench, list(gradient_cases()))
    samples["gradients"] = {case: {kind: each[kind] for kind in ("worst", "median")} for case, each in errors.items()}
    figures["gradient_error"] = max(each["worst"] for each in errors.values())

    async def work(runs: WallRuns) -> None:
        figures["speedup_vgg_like"], samples["speedup"] = await placement_wall.speedup(runs)
        figures["regret_measured"], samples["measured"] = await placement_wall.regret(runs)

    on_wall(bench, placement_wall.SPEEDUP_CASE.bytes_per_second, work)
    return bench.report("wall", figures, samples, "native")


def on_the_timeline(bench: Bench) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the figures that need nothing but arithmetic, and what they rest on.

    * `regret_worst`: the largest chosen / best - 1, best of the cuts that may be chosen, as its judge has them.
    * `declined`: share of the cases in which computing takes five times as long as the wire and the exchange overlaps
      it, and nothing moves. `declined_without_overlap`: the same where all of the wire is exposed.
    * `chosen_when_wire_bound`: share of the cases in which the wire takes five times as long as computing, with and
      without overlap, and the choice is the very best of the cuts that may be chosen, as its judge has them.
      `chosen_of_all_when_wire_bound`: the same of all cuts, where any layer may move; without overlap alone.
    * `rule_costs_median`, `rule_costs_worst`: chosen / best of all cuts - 1, as predicted, without overlap: what it
      costs that only late, heavy layers move, for the wire's sake alone (`relieve_wire`).
    * `decision_seconds`: of a decision over 200 layers, with overlap or without, of equal drives or unequal ones,
      whichever takes longest.
    """
    progress, generator = bench.progress, np.random.default_rng(bench.seed)
    progress.stage("layers of full-size models")
    for number, model in enumerate(placement_cases.MODELS):
        placement_cases.layers_of(model)  # which are kept at hand
        progress.advance((number + 1) / len(placement_cases.MODELS))
    progress.stage("cuts on the timeline")
    cases = [placement_cases.regret(case, generator) for case in list_cases()]
    exposed = [case for case in list_cases() if not case.overlapped]
    few = [case for case in exposed if case.drives in ANY_LAYER_DRIVES]
    any_layer = [placement_cases.regret(case, generator, False) for case in few]
    costs = [placement_cases.rule_costs(case) for case in exposed]
    progress.stage("cuts where wire or compute dominates")
    left = [(case, decide(case.situation(), heavy=HEAVY).layer) for case in bound_cases(COMPUTE_BOUND)]
    wired = [placement_cases.regret(case, generator) for case in bound_cases(WIRE_BOUND)]
    wired_any = [placement_cases.regret(case, generator, False) for case in bound_cases(WIRE_BOUND, exposed=True)]
    progress.stage("how long a decision takes")
    seconds = placement_cases.decision_seconds()
    figures = {
        "declined": _share(layer is None for case, layer in left if case.overlapped),
        "declined_without_overlap": _share(layer is None for case, layer in left if not case.overlapped),
        "chosen_when_wire_bound": _share(each["chosen"] == each["best"] for each in wired),
        "chosen_of_all_when_wire_bound": _share(each["chosen"] == each["best"] for each in wired_any),
        "regret_worst": float(max(each["regret"] for each in (*cases, *any_layer, *wired, *wired_any))),
        "rule_costs_median": statistics.median(each["costs"] for each in costs),
        "rule_costs_worst": max(each["costs"] for each in costs),
        "decision_seconds": max(seconds.values()),
    }
    samples = {
        "cases": cases,
        "any_layer": any_layer,
        "rule_costs": costs,
        "thresholds": [placement_cases.with_threshold(heavy) for heavy in THRESHOLDS],
        "compute_bound": [_left_alone(case, layer) for case, layer in left],
        "wire_bound": wired,
        "wire_bound_any_layer": wired_any,
        "decision_seconds": seconds,
    }
    return figures, samples


def _left_alone(case: PlacementCase, layer: str | None) -> dict[str, Any]:
    """Return the sample of a case in which computing takes longest, and the layer chosen in it."""
    return {
        "model": case.model,
        "drives": case.drives,
        "wire_over_compute": case.ratio,
        "overlapped": case.overlapped,
        "chosen": layer,
    }


def _share(held: Iterable[bool]) -> float:
    each = list(held)
    return sum(each) / len(each)


async def _nobody_adds(_: int, __: ActivationBatch) -> ActivationGrads:
    raise AssertionError("nothing is handed over")
