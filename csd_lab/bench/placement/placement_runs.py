"""Real training of cut models: gradients compared with one process, and the bytes of encoded frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from csd_lab.bench.training.bench_gradients import SMALL, WHOLE, GradientCase
from firmware_agent.common.frames.frame_fields import Frame, PhaseSeconds, TensorSpec
from firmware_agent.common.frames.session_frames import Tensors
from firmware_agent.common.frames.step_frames import Activations, Step, Stepped
from firmware_agent.common.models import ModelSpec, build_model
from firmware_agent.common.models.zoo import ZOO
from firmware_agent.common.slices import Array, cut_slices, tensor_specs
from firmware_agent.common.split.activations import LABELS, activation_specs
from firmware_agent.common.split.cutting import cut_model, list_cuts
from firmware_agent.common.weights import trained_names
from firmware_agent.common.wire import encode, pack
from host.training.sync.exchange.activation_exchange import ActivationReceiver
from host.training.sync.server_model.activation_types import ActivationGrads

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
        model = build_model(ModelSpec(name))
    images = torch.empty(1, *ZOO[name].input_shape, device="meta")
    layer = next(key for key, each in model.named_modules() if isinstance(each, nn.Linear))
    cut = cut_model(model, images, layer)
    weights = {key: np.zeros(tensor.shape, np.float32) for key, tensor in model.state_dict().items()}
    trained = set(trained_names(model))
    front = {key: weights[key] for key in cut.front.state_dict()}
    specs = activation_specs(cut.point.crossing, batch, drawn=False)
    hand = ActivationReceiver(cut.point.crossing, True, 1, _NUMBER, "csd-00", (batch,))
    back = ActivationGrads(1.0, {spec.name: np.zeros(spec.shape, spec.dtype) for spec in specs if spec.name != LABELS})
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
