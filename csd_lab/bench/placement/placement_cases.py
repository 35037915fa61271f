"""Cases of `bench placement` on the timeline: the chosen cut beside the one that the runs' own accounting likes best.

The decision (`csd_emu.perfmodel.split`) has closed forms over all cuts at once. Its judge, `CutJudge`, is what composes
the steps of real runs, asked once for every cut: `csd_emu.perfmodel.timeline` and, where the exchange overlaps what
drives compute, `csd_emu.perfmodel.overlap.overlapped_step`, event by event. Without overlap it shares no formula with
the decision; with overlap both ask the same scheduling core. It knows better: its layers take other seconds than were
measured, by `NOISE` each.
"""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import accumulate
from typing import Any

import numpy as np

from csd_emu.perfmodel.host_node import reduce_seconds
from csd_emu.perfmodel.overlap.layer_work import TensorCost
from csd_emu.perfmodel.overlap.overlapped_step import SLICE_SECONDS, OverlapComposer
from csd_emu.perfmodel.split.split_problem import LABEL_BYTES, DeviceCost, HostPlace, LayerSplitCost, SplitProblem
from csd_emu.perfmodel.timeline import Activity, Crossed, Link, compose_cut
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration.table_store import SHIPPED, CalibrationStore
from firmware_agent.common.layer_costs import LayerWork
from firmware_agent.common.models import ZOO
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.shipped_code import ShippedCode
from host.core.device_time import TableModel, gradient_seconds, host_model, micro_batch_counts
from host.policies.split.choose_cut import HEAVY, decide
from host.policies.split.cut_decision import CutDecision
from host.training.split.layer_exchange import LayerExchange, inspect_layers

# Standard deviation of what a layer takes, as a log, from what it was measured to take.
NOISE = 0.03
_FLASH = 1e9
Shares = tuple[tuple[float, ...], tuple[float, ...]]


def disturb(situation: SplitProblem, generator: np.random.Generator) -> SplitProblem:
    """Return the situation as it may be: every layer takes something else than was measured, alike everywhere."""
    factors = np.exp(generator.normal(0.0, NOISE, (2, len(situation.layers))))
    forward = [layer.forward_operations * f for layer, f in zip(situation.layers, factors[0], strict=True)]
    backward = [layer.backward_operations * f for layer, f in zip(situation.layers, factors[1], strict=True)]
    shares = tuple(forward), tuple(backward)
    return replace(
        situation,
        drives=tuple(replace(drive, layer_shares=shares) for drive in situation.drives),
        host=replace(situation.host, layer_shares=shares),
    )


class CutJudge:
    """Judges the cuts of one situation."""

    def __init__(self, situation: SplitProblem) -> None:
        """Take the situation as it is."""
        self._situation = situation
        self._pushed = list(accumulate((layer.push_bytes for layer in situation.layers), initial=0))
        self._pulled = list(accumulate((layer.pull_bytes for layer in situation.layers), initial=0))
        # By the identity of the shares that parts of the situation have in common.
        self._first: dict[int, list[tuple[float, float]]] = {}

    def seconds(self, cut: int) -> float:
        """Return how long a step takes with `cut` layers on the drives."""
        situation, moved = self._situation, cut < len(self._situation.layers)
        activities, crossed = self._step(cut)
        reduce = reduce_seconds(self._pushed[cut], len(situation.drives))
        if situation.sending is None:
            return float(compose_cut(activities, situation.link, crossed, reduce).seconds)
        kept = situation.layers[:cut]
        pairs = list(zip(*self._shares(situation.drives[0]), strict=True))
        works = tuple(
            LayerWork(layer.name, {tensor.name: tensor.size_bytes for tensor in layer.tensors}, *pair)
            for layer, pair in zip(kept, pairs[:cut], strict=True)
        )
        sizes = {tensor.name: tensor.size_bytes for layer in kept for tensor in layer.tensors}
        composer = OverlapComposer(works, sizes, situation.block_bytes, situation.barrier)
        own = crossed if moved else None
        return float(composer.compose(activities, situation.link, situation.sending, reduce, own).seconds)

    def _step(self, cut: int) -> tuple[list[Activity], Crossed]:
        layers, drives, host = self._situation.layers, self._situation.drives, self._situation.host
        moved = cut < len(layers)
        record = (layers[cut].crossing_bytes or 0) if moved else 0
        up = {drive.device: drive.batch_size * (record + LABEL_BYTES) if moved else 0 for drive in drives}
        down = {drive.device: drive.batch_size * record for drive in drives}
        forward, backward = self._of_first(host, cut)
        tail = host.forward_seconds * (1 - forward) + host.backward_seconds * (1 - backward)
        activities = [self._activity(drive, cut, up[drive.device], down[drive.device]) for drive in drives]
        stepping = reduce_seconds(self._pushed[-1] - self._pushed[cut], 0)
        return activities, Crossed(up, down, tail if moved else 0.0, step_seconds=stepping)

    def _activity(self, drive: DeviceCost, cut: int, up_bytes: int, down_bytes: int) -> Activity:
        forward, backward = self._of_first(drive, cut)
        encoded = (self._pushed[cut] + down_bytes) / self._pushed[-1]
        return Activity(
            device=drive.device,
            receive_bytes=self._pulled[cut] + down_bytes,
            read_bytes=round(drive.read_seconds * _FLASH),
            read_operations=0,
            phases={
                "forward": drive.forward_seconds * forward,
                "backward": drive.backward_seconds * backward,
                "encode": drive.encode_seconds * encoded,
            },
            send_bytes=self._pushed[cut] + up_bytes,
            flash_bytes_per_second=_FLASH,
            flash_latency_seconds=0.0,
            link_bytes_per_second=drive.link_bytes_per_second,
            link_latency_seconds=drive.link_latency_seconds,
        )

    def _of_first(self, part: DeviceCost | HostPlace, cut: int) -> tuple[float, float]:
        """Return what share of the forward and of the backward seconds the first layers take."""
        known = self._first.get(id(part.layer_shares))
        if known is None:
            forward, backward = (list(accumulate(each, initial=0.0)) for each in self._shares(part))
            known = [(f / forward[-1], b / backward[-1]) for f, b in zip(forward, backward, strict=True)]
            self._first[id(part.layer_shares)] = known
        return known[cut]

    def _shares(self, part: DeviceCost | HostPlace) -> Shares:
        if part.layer_shares is not None:
            return part.layer_shares
        layers = self._situation.layers
        return tuple(each.forward_operations for each in layers), tuple(each.backward_operations for each in layers)


MODELS = ("vgg16", "alexnet", "resnet50", "mobilenet_v2", "inception_v3")
LEFT_ALONE = ("resnet50", "mobilenet_v2")
DRIVES = (1, 3, 12, 36)
# Of these every cut is composed, whatever moves, too.
ANY_LAYER_DRIVES = (3, 36)
# Seconds of all bytes of one direction on the shared link, over seconds that a drive computes.
RATIOS = (0.1, 0.5, 2.0, 8.0, 30.0)
COMPUTE_BOUND, WIRE_BOUND = (1 / 50, 1 / 10, 1 / 5), (5.0, 10.0, 30.0)
# Of `host.policies.split.choose_cut.HEAVY`, to be tried.
THRESHOLDS = (2.0, 5.0, 15.0)
BATCH = 32
PRIORITY = TransferSettings("priority", slice_bytes=4 << 20, credit_bytes=16 << 20)
DRIVE, HOST_PROFILE = "newport", "xeon-4108"
_FAST_LINK = 1e15  # the host's side is what is narrow


@dataclass(frozen=True)
class PlacementCase:
    """A model on some drives behind a link.

    Attributes:
        model: of the zoo, at full size.
        drives: how many.
        ratio: seconds on the wire, one way, over seconds of computing.
        overlapped: whether the exchange overlaps computing with nothing moved.
        mixed: every second drive has half the speed, and half the batch.
    """

    model: str
    drives: int
    ratio: float
    overlapped: bool
    mixed: bool = False

    def situation(self) -> SplitProblem:
        """Return what the decision is told."""
        layers = layers_of(self.model)
        drives = tuple(_drive(self.model, place, self.mixed) for place in range(self.drives))
        compute = max(drive.forward_seconds + drive.backward_seconds for drive in drives)
        pushed = self.drives * sum(layer.push_bytes for layer in layers)
        return SplitProblem(
            layers,
            drives,
            _host(self.model, sum(drive.batch_size for drive in drives)),
            Link(pushed / (compute * self.ratio), 0.0),
            sending=PRIORITY if self.overlapped else None,
            cut_overlaps=self.overlapped,
            slice_seconds=SLICE_SECONDS.value,
            block_bytes=256 << 10,
        )


@cache
def layers_of(model: str) -> tuple[LayerSplitCost, ...]:
    """Return the layers of a model of the zoo at its full size."""
    return inspect_layers(ShippedCode(model), ZOO[model].input_shape, LayerExchange())


def list_cases() -> Iterator[PlacementCase]:
    """Yield the cases of `regret_worst`."""
    for model in MODELS:
        for drives in DRIVES:
            for ratio in RATIOS:
                for overlapped in (False, True)[: 2 if ratio in RATIOS[1:4] else 1]:
                    yield PlacementCase(model, drives, ratio, overlapped, mixed=drives > 1 and ratio in RATIOS[1:3])


def bound_cases(ratios: Sequence[float], exposed: bool = False) -> Iterator[PlacementCase]:
    """Yield the cases of models that are to be left alone, with these ratios of wire to compute.

    With and without overlap; `exposed`: without it alone.
    """
    for model in LEFT_ALONE:
        for drives in DRIVES:
            for overlapped in (False,) if exposed else (True, False):
                yield from (PlacementCase(model, drives, ratio, overlapped) for ratio in ratios)


def regret(case: PlacementCase, generator: np.random.Generator, heavy_alone: bool = True) -> dict[str, Any]:
    """Return a case's outcome: what was chosen, what would have been best, and by how much it is better.

    `heavy_alone`: only cuts that `relieve_wire` may make count; without, all.
    """
    seen = case.situation()
    decision = decide(seen, heavy=HEAVY) if heavy_alone else decide(seen)
    truth = disturb(seen, generator)
    allowed = [row.drive_layers for row in decision.rows if not row.refused and (row.relieves or not heavy_alone)]
    judge = CutJudge(truth)
    seconds = {cut: judge.seconds(cut) for cut in allowed}
    best = min(seconds, key=lambda cut: (seconds[cut], -cut))
    return {
        "model": case.model,
        "drives": case.drives,
        "wire_over_compute": case.ratio,
        "overlapped": case.overlapped,
        "mixed": case.mixed,
        "any_layer": not heavy_alone,
        "chosen": decision.layer,
        "best": None if best == len(seen.layers) else seen.layers[best].name,
        "chosen_seconds": seconds[decision.drive_layers],
        "best_seconds": seconds[best],
        "predicted_seconds": decision.step_seconds,
        "unmoved_seconds": seconds[len(seen.layers)],
        "traffic_ratio": traffic_ratio(decision),
        "regret": float(seconds[decision.drive_layers] / seconds[best] - 1),
    }


def rule_costs(case: PlacementCase) -> dict[str, Any]:
    """Return what it costs in a case that only late, heavy layers move (`relieve_wire`); predicted."""
    situation = case.situation()
    chosen, best = decide(situation, heavy=HEAVY), decide(situation)
    return {
        "model": case.model,
        "drives": case.drives,
        "wire_over_compute": case.ratio,
        "chosen": chosen.layer,
        "best_of_all": best.layer,
        "moved_compute_of_best": best.row.moved_compute,
        "costs": chosen.step_seconds / best.step_seconds - 1,
    }


def with_threshold(heavy: float) -> dict[str, Any]:
    """Return what would come of another threshold than `HEAVY`.

    That is `declined`, and of each model how many times as many bytes cross with nothing moved, where the wire
    dominates.
    """
    left = [decide(case.situation(), heavy=heavy).layer for case in bound_cases(COMPUTE_BOUND) if case.overlapped]
    ratios: dict[str, set[float]] = {}
    for case in bound_cases(WIRE_BOUND, exposed=True):
        ratio = traffic_ratio(decide(case.situation(), heavy=heavy))
        ratios.setdefault(case.model, set()).add(round(ratio, 3))
    return {
        "threshold": heavy,
        "declined": sum(layer is None for layer in left) / len(left),
        "traffic_ratios": {model: sorted(each) for model, each in ratios.items()},
    }


def traffic_ratio(decision: CutDecision) -> float:
    """Return how many times as many bytes cross the link with nothing moved."""
    return decision.rows[0].traffic_bytes / decision.row.traffic_bytes


def decision_seconds(layers: int = 200, drives: int = 36, repeats: int = 5) -> dict[str, float]:
    """Return the median seconds of a decision over a deep model: with and without overlap, equal and unequal drives.

    Unequal are four kinds with batches and speeds of their own: batches are planned for each profile, and so arrays
    have as many kinds as profiles. Narrow is a link on which many cuts are about as good as the best.
    """
    took = {
        name: timeit.repeat(partial(decide, each), "import gc; gc.enable()", repeat=repeats, number=1)
        for name, each in decision_cases(layers, drives).items()
    }
    return {name: statistics.median(seconds) for name, seconds in took.items()}


def decision_cases(layers: int, drives: int) -> dict[str, SplitProblem]:
    """Return what is decided in for `decision_seconds`."""
    sizes = np.linspace(20_000, 2_000_000, layers).astype(int)
    deep = tuple(
        LayerSplitCost(f"layer{place}", (TensorCost(f"layer{place}.weight", int(size)),), 1e9, 2e9, 4e6, 400_000)
        for place, size in enumerate(sizes)
    )
    plain = SplitProblem(
        deep,
        tuple(_of_kind(place, 0) for place in range(drives)),
        HostPlace(5.0, 10.0),
        Link(2e9, 0.0),
        slice_seconds=SLICE_SECONDS.value,
        block_bytes=256 << 10,
    )
    overlapped = replace(plain, sending=PRIORITY, cut_overlaps=True)
    unequal = replace(overlapped, drives=tuple(_of_kind(place, place % 4) for place in range(drives)))
    return {
        "without overlap": plain,
        "overlapped": overlapped,
        "overlapped, narrow": replace(overlapped, link=Link(5e8, 0.0)),
        "unequal, without overlap": replace(unequal, sending=None, cut_overlaps=False),
        "unequal, overlapped": unequal,
        "unequal, overlapped, narrow": replace(unequal, link=Link(5e8, 0.0)),
    }


def _of_kind(place: int, kind: int) -> DeviceCost:
    """Return one of four kinds; each has a quarter of a batch less than the one before, and is a tenth quicker."""
    quicker = 1 - kind / 10
    batch = BATCH * (4 - kind) // 4
    return DeviceCost(f"csd-{place:02d}", batch, 2.0 * quicker, 4.0 * quicker, 0.05, 0.01, 5e8, 5e-5)


def _drive(model: str, place: int, mixed: bool) -> DeviceCost:
    slow = mixed and place % 2
    batch, profile = BATCH // 2 if slow else BATCH, get_profile(DRIVE)
    seconds = _gradient(model, batch)
    return DeviceCost(
        device=f"csd-{place:02d}",
        batch_size=batch,
        forward_seconds=seconds[0] * (2 if slow else 1),
        backward_seconds=seconds[1] * (2 if slow else 1),
        encode_seconds=seconds[2],
        read_seconds=batch * 150_528 / profile.flash_bytes_per_second.value,
        link_bytes_per_second=_FAST_LINK,
        link_latency_seconds=profile.link_latency_seconds.value,
    )


@cache
def _gradient(model: str, batch: int) -> tuple[float, float, float]:
    """Return forward, backward and encoding of a batch on a drive, in parts as large as were measured."""
    table = CalibrationStore(SHIPPED).require(ShippedCode(model), ZOO[model].input_shape, DRIVE)
    at_once = min(batch, table.batches[-1])
    seconds = gradient_seconds(TableModel(table, get_profile(DRIVE)), micro_batch_counts(batch, at_once))
    return seconds.forward, seconds.backward, seconds.encode


@cache
def _host(model: str, records: int) -> HostPlace:
    table = CalibrationStore(SHIPPED).require(ShippedCode(model), ZOO[model].input_shape, DRIVE)
    seconds = host_model(table, get_profile(HOST_PROFILE)).step_seconds(records)
    return HostPlace(seconds.forward, seconds.backward)
