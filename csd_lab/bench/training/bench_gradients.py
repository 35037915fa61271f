"""Equality of gradients: unequal batches on several drives against one process that computes them all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from torch import nn

from csd_emu.util.deadline import Deadline
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import WATCHDOG_SECONDS, Bench, RunningDrives, bench_frame
from csd_lab.bench.training.gradient_reference import ReferenceParticipant, reference_step
from firmware_agent.common.datafiles.record_set import IMAGE, LABEL
from firmware_agent.common.errors import DeviceFailed
from firmware_agent.common.models import build_model
from firmware_agent.common.shard import Shard, open_shard
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array, tensor_specs
from firmware_agent.common.split.cutting import Cut, cut_model
from firmware_agent.common.weights import buffer_names, load_arrays, state_arrays, tied_names, trained_names
from host.core.evaluation import NormSum, trace_norm_sums
from host.core.tensor_sums import TensorContribution, combine
from host.fleet.device_session import DeviceSession
from host.training.sync.exchange.activation_exchange import ActivationExchange
from host.training.sync.exchange.batch_norm_sums import Reductions
from host.training.sync.exchange.gradient_buffer import GradientBuffer
from host.training.sync.exchange.step_exchange import StepExchange
from host.training.sync.exchange.step_extension import StepExtension, StepWork
from host.training.sync.exchange.weight_sender import Outbound, SentWeights
from host.training.sync.server_model.server_model import ServerModel
from host.training.tensor_ranges import TensorRange

BATCHES = (2, 5, 9)
MODELS = ("digits_cnn", "squeezenet", "mobilenet_v2", "resnet50", "inception_v3")
# Side of the images: digits, enlarged for the models that want larger ones.
SIDES = {
    **{"digits_cnn": 8, "squeezenet": 64, "mobilenet_v2": 64, "resnet50": 64, "inception_v3": 128},
    **{"vgg16": 32, "alexnet": 64},
}
# Width of the linear layers of those which have a gigabyte of them, in float64.
_HIDDEN = {"vgg16": 64, "alexnet": 64}
WHOLE, SMALL = 64, 4
# How records are normalised, and how many are computed at a time.
CASES = (("device", WHOLE), ("device", SMALL), ("synchronised", WHOLE), ("frozen", SMALL))
# Share of the whole gradient's norm below which a tensor's own is rounding.
VANISHING = 1e-12
_SOURCE = """
import torch
from torch import nn
from firmware_agent.common.models import ZOO

class Enlarged(nn.Module):
    def __init__(self, name, side, **more):
        super().__init__()
        self.side, self.channels = side, ZOO[name].input_shape[0]
        self.net = ZOO[name].builder(num_classes=10, **more)

    def forward(self, images):
        images = nn.functional.interpolate(images, size=self.side, mode="bilinear", align_corners=False)
        return self.net(images.expand(-1, self.channels, -1, -1))
"""


class Errors(NamedTuple):
    """The relative error of each tensor, and how many gradients are zero but for rounding."""

    values: dict[str, float]
    vanishing: int


@dataclass(frozen=True)
class GradientCase:
    """One step: of which model, how records are normalised, how many are computed at a time, and what the host has.

    Attributes:
        layer: that the host's part of the model begins with; None for none.
    """

    model: str
    batch_norm: str
    micro_batch: int
    layer: str | None = None

    def __str__(self) -> str:
        """Return it as a person reads it."""
        parts = "" if self.micro_batch == WHOLE else f", at most {self.micro_batch} at a time"
        cut = "" if self.layer is None else f", cut before {self.layer}"
        return f"{self.model}, batch_norm {self.batch_norm}{parts}{cut}"

    @property
    def spec(self) -> ShippedCode:
        """The model, which takes digits."""
        arguments: dict[str, int | float | str | bool] = {"name": self.model, "side": SIDES[self.model]}
        if self.model in _HIDDEN:
            arguments["hidden"] = _HIDDEN[self.model]
        return ShippedCode("enlarged.py:Enlarged", _SOURCE, arguments)


def bench_gradients(bench: Bench) -> BenchReport:
    """Equality of gradients: unequal batches on several drives against one process that computes them all.

    Take one step of each case on 3 native agents, mutual TLS on, in float64, and compare it with one process.

    Figure: `worst_relative_error`, the largest of `relative_errors` over all tensors of all cases.
    """
    samples = measure_errors(bench, list(_cases()))
    figures = {"worst_relative_error": max(each["worst"] for each in samples.values())}
    return bench.report("none", figures, {"relative_errors": samples}, "native")


def measure_errors(bench: Bench, cases: Sequence[GradientCase]) -> dict[str, dict[str, float]]:
    """Take one step of each case on three native agents, with unequal batches, in float64, and in one process.

    Returns:
        Case -> ``worst`` and ``median`` relative error over its ``tensors``, and how many are ``vanishing``.
    """

    async def work(drives: RunningDrives) -> dict[str, dict[str, float]]:
        samples: dict[str, dict[str, float]] = {}
        for number, case in enumerate(cases):
            bench.progress.stage(str(case))
            errors, vanishing = await GradientStep(case, drives, bench.seed).errors()
            worst, median = max(errors.values()), statistics.median(errors.values())
            samples[str(case)] = {"worst": worst, "median": median, "tensors": len(errors), "vanishing": vanishing}
            bench.progress.advance((number + 1) / len(cases))
        return samples

    return bench.on_processes(len(BATCHES), work)


def relative_errors(got: Mapping[str, Array], want: Mapping[str, Array], gradients: Collection[str]) -> Errors:
    """Return ||g - g_ref|| / ||g_ref|| of each tensor in `want`.

    A gradient that is zero but for rounding, as that of a bias before a normalisation, has no relative error of its
    own: where ||g_ref|| is below `VANISHING` of the norm of the whole gradient, that norm is divided by instead. Of
    other tensors that are zero the error is 0 if g is too, else infinite; so it is where g has what is no number.

    Args:
        got: name -> g.
        want: name -> g_ref.
        gradients: which of the names are gradients; the others are buffers.
    """
    whole = math.sqrt(sum(_norm(want[name]) ** 2 for name in gradients))
    vanishing = {name for name in gradients if _norm(want[name]) < VANISHING * whole}
    values = {}
    for name, array in want.items():
        difference = _norm(np.subtract(got[name], array, dtype=np.float64))
        size = whole if name in vanishing else _norm(array)
        if difference == 0:
            values[name] = 0.0
        else:
            values[name] = difference / size if size and math.isfinite(difference) else math.inf
    return Errors(values, len(vanishing))


def _norm(array: Array) -> float:
    return float(np.linalg.norm(np.asarray(array, np.float64)))


def _cases() -> Iterator[GradientCase]:
    for model in MODELS:
        normed = normalises(build_model(GradientCase(model, "", 0).spec))
        for batch_norm, micro_batch in CASES:
            if normed or batch_norm == "device":
                yield GradientCase(model, batch_norm, micro_batch)


def normalises(model: nn.Module) -> bool:
    """Return whether a model has batch normalisation."""
    return any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in model.modules())


class GradientStep:
    """One step of one case."""

    def __init__(self, case: GradientCase, drives: RunningDrives, seed: int) -> None:
        """Take the case to drives that are there."""
        self._case, self._seed, self._sessions = case, seed, drives.sessions
        self._shards = [open_shard(handle.plan.shard) for handle in drives.started.handles]
        self._generator = np.random.default_rng([seed, *str(case).encode()])
        self._number = int(self._generator.integers(1, 1000))
        base, spec = bench_frame(seed), case.spec
        base = msgspec.structs.replace(base, model=spec.name, source=spec.source, arguments=dict(spec.arguments))
        self._frame = msgspec.structs.replace(base, batch_norm=case.batch_norm, precision="float64", cut=case.layer)
        self._image = self._images(self._shards[0], np.arange(1))

    async def errors(self) -> Errors:
        """Take the step by both ways."""
        records = [
            self._generator.choice(shard.samples, size, replace=False).astype(np.uint32)
            for shard, size in zip(self._shards, BATCHES, strict=True)
        ]
        model = self._trained_a_little()
        weights = {name: array.copy() for name, array in state_arrays(model).items()}
        names = trained_names(model) + ([] if self._case.batch_norm == "frozen" else buffer_names(model))
        got = await self._by_drives(weights, names, records)
        groups = [self._group(*each) for each in zip(self._sessions, self._shards, records, strict=True)]
        load_arrays(model, weights)
        want = reference_step(model, self._case.batch_norm, groups, self._seed, self._number)
        return relative_errors(got, {name: want[name] for name in names}, trained_names(model))

    def _model(self) -> nn.Module:
        return build_model(self._case.spec).double().train()

    def _trained_a_little(self) -> nn.Module:
        """Return the model with statistics and affine parts as they are within a training: not zero and one."""
        torch.manual_seed(self._seed)
        model = self._model()
        norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, 0.0, 0.1)
        if norms:
            with torch.no_grad():
                model(self._images(self._shards[0], np.arange(self._shards[0].samples)[:16]))
        return model

    async def _by_drives(
        self, weights: Mapping[str, Array], names: Sequence[str], records: Sequence[Array]
    ) -> dict[str, Array]:
        """Return gradients and buffers as the host has them after the exchange with the drives.

        Raises:
            DeviceFailed: a drive did not return its part.
        """
        total: dict[str, Array] = {}

        def apply(block: TensorRange, contributions: Sequence[TensorContribution]) -> None:
            total[block.tensor] = combine(block.tensor, contributions).reshape(weights[block.tensor].shape)

        works = [
            StepWork(s, np.asarray(r, np.uint32), self._case.micro_batch)
            for s, r in zip(self._sessions, records, strict=True)
        ]
        sizes = {work.device: size for work, size in zip(works, BATCHES, strict=True)}
        tail, sent, crossings = self._tail(weights), weights, None
        extensions: list[StepExtension] = [Reductions(self._number, sizes, self._sums())]
        if tail is not None:
            names = [*tail.split.front_trained, *(name for name in tail.split.front_buffers if name in set(names))]
            sent = {name: weights[name] for name in tail.split.front}
            crossings = ActivationExchange(tail, self._number, {work.session.device: work.parts for work in works})
            extensions.append(crossings)
        gathering = GradientBuffer(tensor_specs({name: weights[name] for name in names}), sizes, apply, barrier=False)
        exchange = StepExchange(self._frame, WATCHDOG_SECONDS, lambda *_: None, _leave_alone)
        outbound = Outbound(self._number, SentWeights(sent))
        for outcome in await exchange.visit(outbound, works, gathering, (), extensions):
            if outcome.error is not None:
                raise DeviceFailed(f"{self._case}: {outcome.error}") from outcome.error
        await gathering.finish()
        if crossings is not None:
            total |= crossings.passing.gradients() | crossings.passing.buffers()
        return total

    def _sums(self) -> tuple[NormSum, ...]:
        """Return the sums of a step with synchronised batch normalisation."""
        if self._case.batch_norm != "synchronised":
            return ()
        cut = self._cut()
        return trace_norm_sums(self._model() if cut is None else cut.front, self._image)

    def _tail(self, weights: Mapping[str, Array]) -> ServerModel | None:
        """Return the host's part, on a copy of the weights."""
        if (cut := self._cut()) is None:
            return None
        model, copies = self._model(), {name: array.copy() for name, array in weights.items()}
        return ServerModel(cut, copies, trained_names(model), tied_names(model), self._case.batch_norm, self._seed)

    def _cut(self) -> Cut | None:
        layer = self._case.layer
        return None if layer is None else cut_model(self._model(), self._image, layer)

    def _group(self, session: DeviceSession, shard: Shard, records: Array) -> ReferenceParticipant:
        parts = _parts(len(records), self._case.micro_batch)
        return ReferenceParticipant(
            session.device, self._images(shard, records), torch.from_numpy(shard.fields[LABEL][records]), parts
        )

    def _images(self, shard: Shard, records: Array) -> torch.Tensor:
        return torch.from_numpy(np.array(shard.fields[IMAGE][records])).double() * self._frame.input_scale


def _parts(records: int, micro_batch: int) -> tuple[int, ...]:
    """Return sizes that differ by at most one, the larger ones first, none above `micro_batch`."""
    count = math.ceil(records / micro_batch)
    small, larger = divmod(records, count)
    return (small + 1,) * larger + (small,) * (count - larger)


async def _leave_alone(session: DeviceSession, step: int, deadline: Deadline) -> None:
    """Say nothing to a device before its step."""
