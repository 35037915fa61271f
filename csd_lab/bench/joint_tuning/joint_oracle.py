"""The best fixed choice of cut, drives, batches and transfers in a scenario, by enumeration; without the tuners' code.

The step is that of the array's own model of time, by which the simulated runs are timed too: what is asked is how much
of what this model allows the tuners find, not whether the model is right.

For each cut, with all drives, every drive gets as many records as it computes in a time T, for times over five decades;
steps in which nothing overlaps are worked out for all of these. With the best few cuts the same is done for other
numbers of drives per profile (all, none and half of each) and more times. The best few of these are composed as steps
whose slices cross while drives compute, at several slices and credits. The best of all is taken. Before and after what
happens in a scenario the oracle may choose anew, at once and at no cost.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from msgspec.structs import asdict

from csd_emu.perfmodel.host_node import link_of, reduce_seconds
from csd_emu.perfmodel.overlap.overlapped_step import OverlapComposer
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES
from csd_emu.perfmodel.sharing import Floats
from csd_emu.perfmodel.split.split_problem import LABEL_BYTES
from csd_emu.perfmodel.timeline import Activity, Crossed, Link, compose, compose_cut
from csd_emu.profiles import Profile, get_profile
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.profiles.profile import RATIO_DRIVE
from csd_emu.util.paths import Paths
from csd_lab.bench.joint_tuning.joint_cases import MODELS, JointScenario, ScenarioWorld, load_model
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.send_queue import TransferSettings
from host.app.prepare import find_tables
from host.core.device_time import TableModel, host_model
from host.core.layer_time_shares import Shares, step_shares
from host.training.host_room import host_bytes, host_room_bytes
from host.training.split.layer_exchange import LayerExchange, inspect_layers
from host.training.sync.run_transfers import make_overlap

_SHORTEST_SECONDS, _LONGEST_SECONDS = 3e-4, 30.0
_TIMES, _MORE_TIMES, _BEST_CUTS = 12, 36, 5
# Of so many of the best steps without overlap the slices are tried, and so many settings of each.
_COMPOSED = 4
_SLICES = tuple(TransferSettings("priority", 1 << size, 1 << credit) for size, credit in ((16, 18), (18, 20), (21, 23)))
_MOST_BATCH = 1024
_PASSES = "forward", "backward"


@dataclass(frozen=True)
class _Cut:
    """A number of layers on the drives.

    Attributes:
        layers: so many; all of them is nothing moved.
        forward, backward: share of a drive's seconds that they are.
        kept: share of the exchanged bytes.
        state_bytes: that cross for them, each way.
        crossing_bytes: of a record.
        moved_bytes, tail_bytes: of what the host has, whatever the records and for each of them.
    """

    layers: int
    forward: float
    backward: float
    kept: float
    state_bytes: int
    crossing_bytes: int
    moved_bytes: int
    tail_bytes: float


@dataclass(frozen=True)
class _Choice:
    """What the oracle may choose."""

    cut: _Cut
    batches: tuple[int, ...]


class ScenarioOracle:
    """Knows a scenario's model, drives and link."""

    def __init__(self, scenario: JointScenario, batch_size: int) -> None:
        """Take what is true of it; layers have the shares of a step that they have at this batch."""
        self._scenario, self._config = scenario, scenario.array()
        self._host = get_profile(self._config.host.profile)
        self._link = link_of(self._config.link, self._host)
        self._names = [device.name for device in self._config.list_devices()]
        self._profiles = [get_profile(device.profile) for device in self._config.list_devices()]
        self._cuts, self._shares = _cuts(scenario.model, batch_size)
        spec, dataset, _ = load_model(scenario.model)
        store = find_tables(self._config)
        shape = MODELS[scenario.model].shape
        self._models = {
            name: TableModel(store.require(spec, shape, name), get_profile(name))
            for name in {device.profile for device in self._config.list_devices()}
        }
        self._tail = host_model(store.require(spec, shape, self._host.name), self._host)
        self._record_bytes = dataset.record_bytes
        self._curves = {name: _curve(model) for name, model in self._models.items()}

    def records_per_second(self) -> float:
        """Return what the best choices reach over the whole job, each for its share of the records."""
        world, scenario = ScenarioWorld(self._scenario), self._scenario
        edges = [0.0, scenario.begin, scenario.end, 1.0]
        parts = [(end - begin, (begin + end) / 2) for begin, end in itertools.pairwise(edges) if end > begin]
        return 1 / sum(share / self._best(world, at) for share, at in parts)

    def _best(self, world: ScenarioWorld, at: float) -> float:
        slow = [world.slowness(name, at, 1) for name in self._names]
        there = [name not in world.absent(at) for name in self._names]
        link = replace(self._link, bytes_per_second=self._link.bytes_per_second * world.link_share(at))

        def rate(choice: _Choice, sending: TransferSettings | None = None) -> float:
            return sum(choice.batches) / self._seconds(choice, slow, link, sending)

        kinds = Counter(profile.name for profile in self._profiles)
        first = [(rate(each), each) for each in self._choices(self._cuts, kinds, slow, there, _TIMES)]
        first.sort(key=lambda each: -each[0])
        cuts = list(dict.fromkeys(choice.cut for _, choice in first))[:_BEST_CUTS]
        levels = [sorted({0, count // 2, count}) for count in kinds.values()]
        found = {
            each: rate(each)
            for counts in itertools.product(*levels)
            for each in self._choices(cuts, dict(zip(kinds, counts, strict=True)), slow, there, _MORE_TIMES)
        }
        best = sorted(found, key=lambda each: -found[each])[:_COMPOSED]
        return max([found[best[0]], *(rate(each, sending) for each in best for sending in _SLICES)])

    def _choices(
        self,
        cuts: Sequence[_Cut],
        counts: Mapping[str, int],
        slow: Sequence[float],
        there: Sequence[bool],
        times: int,
    ) -> Iterator[_Choice]:
        room, chosen = host_room_bytes(self._host), self._chosen(dict(counts), slow, there)
        for cut, seconds in itertools.product(cuts, np.geomspace(_SHORTEST_SECONDS, _LONGEST_SECONDS, times)):
            batches = tuple(
                min(_MOST_BATCH, self._records(profile, cut, seconds / slow[number])) if chosen[number] else 0
                for number, profile in enumerate(self._profiles)
            )
            if any(batches) and host_bytes(cut.moved_bytes, int(cut.tail_bytes), sum(batches)) <= room:
                yield _Choice(cut, batches)

    def _chosen(self, counts: dict[str, int], slow: Sequence[float], there: Sequence[bool]) -> list[bool]:
        """Return who takes part: of each profile the quickest of those that are there."""
        chosen = [False] * len(self._names)
        order = sorted(range(len(self._names)), key=lambda number: slow[number])
        for number in order:
            if there[number] and counts[self._profiles[number].name]:
                counts[self._profiles[number].name] -= 1
                chosen[number] = True
        return chosen

    def _records(self, profile: Profile, cut: _Cut, seconds: float) -> int:
        forward, backward, encode = self._curves[profile.name]
        taken = forward * cut.forward + backward * cut.backward + encode * cut.kept
        return int(np.searchsorted(taken, seconds, side="right"))

    def _seconds(
        self, choice: _Choice, slow: Sequence[float], link: Link, sending: TransferSettings | None = None
    ) -> float:
        """Return the length of a step; with a setting, of one whose slices cross while drives compute."""
        cut, records = choice.cut, sum(choice.batches)
        activities = [self._activity(number, choice, slow[number]) for number, n in enumerate(choice.batches) if n]
        gradient = reduce_seconds(cut.state_bytes, len(activities))
        crossed = None
        if cut.crossing_bytes:
            own = {self._names[number]: n * cut.crossing_bytes for number, n in enumerate(choice.batches) if n}
            labels = {self._names[number]: n * LABEL_BYTES for number, n in enumerate(choice.batches) if n}
            whole = self._tail.step_seconds(records)
            tail = whole.forward * (1 - cut.forward) + whole.backward * (1 - cut.backward)
            crossed = Crossed({name: own[name] + labels[name] for name in own}, own, tail)
        if sending is not None:
            return self._composer(cut.layers).compose(activities, link, sending, gradient, crossed).seconds
        if crossed is not None:
            return compose_cut(activities, link, crossed).seconds + gradient
        return compose(activities, link).seconds + gradient

    def _activity(self, number: int, choice: _Choice, slow: float) -> Activity:
        cut, records, profile = choice.cut, choice.batches[number], self._profiles[number]
        forward, backward, encode = (curve[records - 1] for curve in self._curves[profile.name])
        phases = PhaseSeconds(
            forward * cut.forward * slow, backward * cut.backward * slow, 0.0, encode * cut.kept * slow
        )
        crossing = records * cut.crossing_bytes
        return Activity(
            device=self._names[number],
            receive_bytes=cut.state_bytes + crossing,
            read_bytes=records * self._record_bytes,
            read_operations=1,
            phases=asdict(phases),
            send_bytes=cut.state_bytes + crossing + (records * LABEL_BYTES if crossing else 0),
            flash_bytes_per_second=profile.flash_bytes_per_second.value,
            flash_latency_seconds=profile.flash_latency_seconds.value,
            link_bytes_per_second=profile.link_bytes_per_second.value,
            link_latency_seconds=profile.link_latency_seconds.value,
        )

    def _composer(self, layers: int) -> OverlapComposer:
        _, _, evaluator = load_model(self._scenario.model)
        moved = [layer.name for layer in evaluator.layers()][layers:]
        weights = evaluator.initial_weights()
        return make_overlap(evaluator, weights, "device", BLOCK_BYTES, False, moved, self._shares)


def _curve(model: TableModel) -> tuple[Floats, Floats, Floats]:
    """Return seconds of the forward pass, the backward pass and encoding, of 1 to `_MOST_BATCH` records."""
    known = sorted({1, 2, 3, 4, 6, *(1 << n for n in range(3, 11)), *(3 << n for n in range(2, 9))})
    steps = [model.step_seconds(batch) for batch in known]
    every = np.arange(1, _MOST_BATCH + 1)
    forward, backward = (
        np.maximum.accumulate(np.interp(every, known, [getattr(step, phase) for step in steps]))
        for phase in ("forward", "backward")
    )
    return forward, backward, np.full(_MOST_BATCH, model.encode_seconds)


@cache
def _cuts(model: str, batch_size: int) -> tuple[list[_Cut], Shares]:
    """Return every cut that the model has, nothing moved as the last of them, and what its layers take of a step."""
    spec, _, evaluator = load_model(model)
    shape = MODELS[model].shape
    table = CalibrationStore(Paths.default().calibration).require(spec, shape, RATIO_DRIVE)
    shares = step_shares(table, batch_size, evaluator)
    works = shares.weigh(evaluator.layers())
    layers = inspect_layers(spec, shape, LayerExchange())
    forward, backward = (np.array([getattr(each, f"{name}_operations") for each in works]) for name in _PASSES)
    every = sum(layer.push_bytes for layer in layers)
    found = []
    for place in range(1, len(layers) + 1):
        crossing = layers[place].crossing_bytes if place < len(layers) else 0
        if crossing is None:
            continue
        kept = sum(layer.push_bytes for layer in layers[:place])
        own = forward[:place].sum() / forward.sum(), backward[:place].sum() / backward.sum()
        tail = layers[place].tail_bytes if place < len(layers) else 0.0
        found.append(_Cut(place, float(own[0]), float(own[1]), kept / every, kept, crossing, every - kept, tail))
    return found, shares
