"""Cluster that a plan is about: devices in kinds that are equal, configurations of them, and their costs. Pure.

Paper: Gu, Kong, Munir, Kim, "A framework for distributed deep neural network training with heterogeneous computing
platforms", ICPADS 2019: pre-train for a few steps, estimate time, power, energy and energy-delay product of each
cluster configuration, go on with the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import msgspec
import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.timeline import Link
from csd_emu.profiles import Profile
from host.core.figure_bands import Band, span_of
from host.core.tuning.speed_table import SpeedTable

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
# How many devices of each kind train, in the order of the cluster's kinds.
Configuration = tuple[int, ...]


@dataclass(frozen=True)
class DeviceKind:
    """Devices that are equal, so that only their number matters.

    Attributes:
        name: for people: the profile's, and what else tells it from another kind.
        nodes: names of the devices, in participant order.
        profile: their figures: cores, watts, flash, own side of the link.
        speed: seconds of a batch as a table says, before anything is measured; None if nothing is known.
        encode_seconds: of each step, the part that one core does alone.
        local: whether this is the host itself: nothing of it crosses the link, and its records come from the drives.
        server: number of the server that has them.
        growth: at an end of the profiles' bands, what seconds of computing are multiplied by, encoding left out.
    """

    name: str
    nodes: tuple[str, ...]
    profile: Profile
    speed: SpeedTable | None
    encode_seconds: float = 0.0
    local: bool = False
    server: int = 0
    growth: float = 1.0


@dataclass(frozen=True)
class Side:
    """One of several servers: its host, and that host's side of the link to its own drives."""

    host: Profile
    link: Link


@dataclass(frozen=True)
class Cluster:
    """Everything that might train, and what does not change from one configuration to the next.

    Attributes:
        kinds: of drives, then of the host if it may train.
        host: its profile: it sums and steps in every configuration.
        link: the host's side.
        state_bytes: what each drive receives, and sends, in a step.
        gradient_bytes: of one gradient.
        record_bytes: of an image with its label.
        record_seconds: what each record of all devices adds to a step, beside what is computed and exchanged: of a
            model that is cut, what crosses and what the host computes.
        sides: of each server where there are several, which `host` and `link` are the first of; else empty.
        between_seconds: of a step, in which all servers add up, also those of which no drive takes part.
    """

    kinds: tuple[DeviceKind, ...]
    host: Profile
    link: Link
    state_bytes: int
    gradient_bytes: int
    record_bytes: int
    record_seconds: float = 0.0
    sides: tuple[Side, ...] = ()
    between_seconds: float = 0.0

    @property
    def counts(self) -> Configuration:
        """How many devices there are of each kind."""
        return tuple(len(kind.nodes) for kind in self.kinds)

    def kinds_of(self, server: int) -> Counts:
        """Return the numbers of a server's kinds."""
        return np.array([number for number, kind in enumerate(self.kinds) if kind.server == server], np.int64)

    def of_server(self, server: int) -> Cluster:
        """Return one of several servers by itself."""
        side = self.sides[server]
        own = tuple(self.kinds[number] for number in self.kinds_of(server))
        return replace(self, kinds=own, host=side.host, link=side.link, sides=(), between_seconds=0.0)

    def set_apart(self, node: str) -> Cluster:
        """Return the same with a node as a kind of its own, behind the one that it was of."""
        kinds = list(self.kinds)
        at = next(number for number, kind in enumerate(kinds) if node in kind.nodes)
        if len(kinds[at].nodes) > 1:
            kinds[at : at + 1] = [
                replace(kinds[at], nodes=tuple(each for each in kinds[at].nodes if each != node)),
                replace(kinds[at], name=f"{kinds[at].name} {node}", nodes=(node,)),
            ]
        return replace(self, kinds=tuple(kinds))

    def trial_of(self, batches: Mapping[str, int]) -> tuple[Configuration, tuple[int, ...]]:
        """Return counts and batches of the kinds of which these nodes, with their records per step, are."""
        own = [[batches[node] for node in kind.nodes if node in batches] for kind in self.kinds]
        return tuple(map(len, own)), tuple(max(each, default=0) for each in own)

    def name(self, configuration: Sequence[int]) -> str:
        """Return a configuration as people read it: ``3 newport + host``."""
        parts = [
            kind.name if kind.local else f"{count} {kind.name}"
            for kind, count in zip(self.kinds, configuration, strict=True)
            if count
        ]
        return " + ".join(parts) or "nothing"


@dataclass(frozen=True)
class Trial:
    """Steps that are taken to learn from, and that count.

    Attributes:
        configuration: who takes part.
        batches: records per step of a device of each kind; 0 for a kind that takes no part.
        steps: how many.
        why: for people.
    """

    configuration: Configuration
    batches: tuple[int, ...]
    steps: int
    why: str

    @property
    def records(self) -> int:
        """Of a step, all devices together."""
        return sum(count * batch for count, batch in zip(self.configuration, self.batches, strict=True))


@dataclass(frozen=True)
class TrialStep:
    """What a step of a trial cost.

    Attributes:
        compute_seconds: node -> device seconds in which it computed its batch; without those that returned nothing.
        step_seconds: of the array.
        joules: of everything in the array that is counted: the host, and all drives that are powered.
    """

    compute_seconds: dict[str, float]
    step_seconds: float
    joules: float


@dataclass(frozen=True)
class TrialResult:
    """A trial that was taken, and what its steps cost."""

    trial: Trial
    seen: tuple[TrialStep, ...]


class Range(msgspec.Struct, frozen=True):
    """An estimate, and between what it lies with the confidence asked for."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half its width, over the value."""
        return (self.high - self.low) / 2 / self.value if self.value else 0.0


@dataclass(frozen=True)
class Estimate:
    """What the training costs with a configuration, whatever its batches.

    Attributes:
        configuration: how many devices of each kind.
        batches: records per step of a device of each kind, 0 for a kind that takes no part.
        step_seconds: of the array.
        trained_records: of the whole training: public ones, and private ones of the drives that take part.
        seconds: of the whole training.
        watts: of everything that is counted, in the mean.
        joules: of the whole training.
        edp: joules x seconds.
        steps_measured: how many steps of this very configuration were taken.
        bands: of ``step_seconds``, ``seconds``, ``watts``, ``joules`` and ``edp``, with these batches, by the profiles'
            figures.
    """

    configuration: Configuration
    batches: tuple[int, ...]
    step_seconds: float
    trained_records: float
    seconds: Range
    watts: Range
    joules: Range
    edp: Range
    steps_measured: int = 0
    bands: Mapping[str, Band] = field(default_factory=dict, hash=False)

    def with_ends(self, *ends: Estimate) -> Estimate:
        """Return the same with its bands, from what it is at the ends of the profiles'."""
        bands = {name: span_of(map(attrgetter(path), (self, *ends))) for name, path in _BANDED.items()}
        return replace(self, bands=bands)


_BANDED = {"step_seconds": "step_seconds"} | {name: f"{name}.value" for name in ("seconds", "watts", "joules", "edp")}
