"""How often the stated interval of sampled seconds holds the counted ones: runs are replayed with other draws.

A replay has the product's own `StepCounter` and estimator decide which steps are counted and what the means of these
say. In place of a virtual machine it draws a counted step's seconds from a recorded series: those of one drive, chosen
anew for each replay, from the steps of the same kind that it took when it had taken about as many as the machine has.
So what differs from machine to machine, from step to step and with a machine's age stays in.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from csd_emu.util.deadline import Deadline
from csd_lab.clocks.step_series import DevicePass, SeriesStep, StepSeries
from firmware_agent.common.frames.frame_fields import Frame, PhaseSeconds
from firmware_agent.common.frames.session_frames import Job, Ready, Train, Trained
from firmware_agent.common.frames.step_frames import Stepped
from firmware_agent.common.slices import Array
from firmware_agent.common.wire import unpack
from host.config.job_file import JobConfig
from host.core.records import EventKind
from host.core.sampling.sampling_record import SamplingRecord, add_sampling
from host.core.tensor_sums import Scan
from host.training.accounting import DeviceReport
from host.training.round_exchange import Visited
from host.training.rounds.round_answer import RoundAnswer
from host.training.sampling.step_counter import StepCounter
from host.training.sync.exchange.step_extension import DeviceOutcome, StepWork
from host.training.sync.exchange.weight_sender import Outbound

# A counted step is drawn from so many that are nearest in age.
NEAREST = 8
# Drives that took fewer steps than this share of the most are no donors.
_DONORS_SHARE = 0.5
# Of an index into a shard, as `Train.batches` have them.
_INDEX_BYTES = 4
# Steps of a size, and of a round, are of one kind from this one on.
_LATER_OF_SIZE, _LATER_OF_ROUND = 3, 5
_ANY = -1


class StepKind(NamedTuple):
    """What steps have alike that are drawn for each other.

    Attributes:
        records: of the step; 0 for copying the weights out.
        weight: of the task that competes.
        ever: whether it is a machine's first step at all.
        of_size: which of a machine's steps of this size it is, up to the third.
        of_round: which of its round, up to the fifth; 0 in a synchronous job.
        first_round: whether the round is a machine's first.
    """

    records: int
    weight: int
    ever: bool = False
    of_size: int = _LATER_OF_SIZE
    of_round: int = 0
    first_round: bool = False


class Place:
    """Where a machine stands in a job: names the kinds of the steps that it takes."""

    def __init__(self, sync: bool) -> None:
        """Begin with none taken."""
        self._sync, self._sizes, self._rounds, self._of_round = sync, Counter[int](), 0, 0

    @property
    def age(self) -> int:
        """How many steps were taken."""
        return self._sizes.total()

    def begin_round(self) -> None:
        """Take note of a round, or a synchronous step."""
        self._rounds, self._of_round = self._rounds + 1, 0

    def next(self, records: int, weight: int) -> StepKind:
        """Return the kind of the next step."""
        ever = not self._sizes
        self._sizes[records] += 1
        self._of_round += 1
        of_size = min(self._sizes[records], _LATER_OF_SIZE)
        if self._sync:
            return StepKind(records, weight, ever, of_size)
        return StepKind(records, weight, ever, of_size, min(self._of_round, _LATER_OF_ROUND), self._rounds == 1)

    def encode(self, weight: int) -> StepKind:
        """Return the kind of copying the weights out now."""
        return StepKind(0, weight)


class RecordedSteps:
    """The seconds of a series, by kind, each with the age of the machine that took them: its number of steps.

    Attributes:
        donors: drives that took about as many steps as any.
        sizes: records of their steps, each with the weight of the task that competed.
    """

    def __init__(self, series: StepSeries) -> None:
        """Sort them."""
        self._found: dict[StepKind, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
        places = {device: Place(series.sync) for device in series.devices}
        for part in (part for parts in series.passes for part in parts):
            place = places[part.device]
            place.begin_round()
            for step in part.steps:
                self._add(place.next(step.records, step.weight), part.device, place.age, step.seconds)
            if not series.sync:
                kind = place.encode(part.steps[-1].weight if part.steps else 0)
                self._add(kind, part.device, place.age, part.encode_seconds)
        self.sizes = {(kind.records, kind.weight) for kind in self._found if kind.records}
        most = max(place.age for place in places.values())
        self.donors = [device for device, place in places.items() if place.age >= _DONORS_SHARE * most]

    def _add(self, kind: StepKind, device: str, age: int, seconds: float) -> None:
        for each in dict.fromkeys((kind, _of_any_round(kind))):
            self._found[each][device].append((age, seconds))

    def draw(self, kind: StepKind, donor: str, age: int, rng: np.random.Generator) -> float:
        """Return the seconds of a step of this kind by a machine of about this age.

        They are the donor's where it has any of the kind, else another drive's; and of the closest kind if nobody has.
        """
        for each in _closest(kind):
            if each in self._found:
                by_device = self._found[each]
                device = donor if donor in by_device else str(rng.choice(sorted(by_device)))
                near = sorted(by_device[device], key=lambda found: abs(found[0] - age))[:NEAREST]
                return near[int(rng.integers(len(near)))][1]
        raise AssertionError(f"a step of {kind} was counted that no drive took")


def _of_any_round(kind: StepKind) -> StepKind:
    return kind._replace(of_round=_ANY, first_round=False)


def _closest(kind: StepKind) -> list[StepKind]:
    """Return a kind and others, the closest first; a machine's first step is like no other, and no other like it."""
    later, earlier = range(kind.of_size, _LATER_OF_SIZE + 1), range(kind.of_size - 1, 0, -1)
    sizes = [_of_any_round(kind)._replace(of_size=each) for each in (*later, *earlier)]
    found = [kind, *sizes, *(each._replace(ever=False) for each in sizes)]
    return list(dict.fromkeys(found))


class _Donor:
    """Stands for a virtual machine, and for its session: what it counts is drawn from a recorded series.

    Attributes:
        device: its name, as a session has one.
    """

    device = "counter-00"

    def __init__(self, series: StepSeries, recorded: RecordedSteps, rng: np.random.Generator) -> None:
        """Choose the drive whose steps it draws."""
        self._recorded, self._rng, self._place = recorded, rng, Place(series.sync)
        self._donor = str(rng.choice(recorded.donors))
        self._batches: list[bytes] = []
        self.weight = 0

    async def work(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """As `SamplerMachine.work`."""
        return await work(self)

    async def disturb(self, session: object, weight: int, deadline: Deadline) -> None:
        """As `SamplerMachine.disturb`."""
        self.weight = weight

    async def send(self, frame: Frame, deadline: Deadline) -> None:
        """Take a job."""

    async def expect(self, kind: type[Frame], deadline: Deadline) -> Frame:
        """Say that its model is built."""
        return Ready(0)

    async def send_encoded(self, message: bytes, deadline: Deadline) -> None:
        """Take a task of a round."""
        self._batches = next(
            (frame.batches or [] for frame in unpack(message) if isinstance(frame, Train)), self._batches
        )

    async def receive_tensors(self, *_: object) -> tuple[dict[str, Array], Trained]:
        """Return what came of the task: the seconds of each of its steps."""
        self._place.begin_round()
        seconds = [self.step(len(batch) // _INDEX_BYTES) for batch in self._batches]
        encode_seconds = self._draw(self._place.encode(self.weight))
        return {}, Trained(1, 1, len(seconds), 0.0, encode_seconds, 0, step_seconds=seconds)

    def recycle(self, arrays: Mapping[str, Array]) -> None:
        """Let arrays go."""

    def step(self, records: int) -> PhaseSeconds:
        """Return the seconds of the next step; of a look, whose size no drive took, in proportion to the closest."""
        sizes = [size for size, weight in self._recorded.sizes if weight == self.weight]
        closest = min(sizes, key=lambda size: abs(size - records))
        kind = self._place.next(records, self.weight)._replace(records=closest)
        return self._draw(kind, records / closest)

    def _draw(self, kind: StepKind, factor: float = 1.0) -> PhaseSeconds:
        return PhaseSeconds(forward=factor * self._recorded.draw(kind, self._donor, self._place.age, self._rng))


class _DrawnExchange:
    """Stands for the exchange of synchronous steps with a machine."""

    def __init__(self, machine: _Donor, weight_of: Callable[[], int]) -> None:
        self._machine, self._weight_of = machine, weight_of

    async def visit(self, outbound: Outbound, _: object, __: object, works: Sequence[StepWork], ___: object) -> Any:
        """Return what comes of one part of a step."""
        self._machine.weight = self._weight_of()
        records = len(works[0].records)
        stepped = Stepped(outbound.number, records, 0.0, self._machine.step(records), 0)
        return [DeviceOutcome(works[0], stepped, None)]


class ReplayCounter(StepCounter):
    """A step counter whose machine draws what it would have counted.

    Attributes:
        donor: the machine.
        drives: what stands for their sessions.
        epochs, batch_size: of a federated round.
    """

    def __init__(self, series: StepSeries, rng: np.random.Generator, recorded: RecordedSteps) -> None:
        """Choose a donor."""
        self._competing: dict[str, int] = {}
        self.drives: dict[str, Any] = {device: _Drive(device) for device in series.devices}
        self.donor, self.epochs, self.batch_size = _Donor(series, recorded, rng), series.epochs, series.batch_size
        places = {device: np.arange(samples) for device, samples in _samples(series).items()}
        frame = Job("replay", {}, None, 1.0, 0, 1.0, 0.0, series.batch_size)
        machine: Any = self.donor
        job = JobConfig.model_validate({"model": "digits_cnn", "data": {"source": "digits"}, "epochs": series.epochs})
        super().__init__(frame, job, [machine], places, self._weight_now, _ignore)

    def begin(self, parts: Sequence[DevicePass]) -> None:
        """Take note of what competes in the drives from now on."""
        self._competing = {part.device: part.steps[0].weight for part in parts if part.steps}

    def _weight_now(self, device: str) -> int:
        return self._competing.get(device, 0)

    def _make_exchange(self, number: int) -> Any:
        return _DrawnExchange(self.donor, lambda: self._counting[number].weight)


def _ignore(device: str, what: EventKind, detail: str) -> None:
    """Be told of an event."""


def _samples(series: StepSeries) -> dict[str, int]:
    """Return device -> records of its shard, of a federated job."""
    found: dict[str, int] = {}
    for part in (part for parts in series.passes for part in parts):
        whole = sum(step.records for step in part.steps)
        found.setdefault(part.device, whole // series.epochs)
    return found


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A drive's seconds of a whole job in one replay.

    Attributes:
        device: its name.
        error: sampled over counted seconds, less 1.
        half_width: of the stated 95 % interval, over the sampled seconds.
    """

    device: str
    error: float
    half_width: float

    @property
    def inside(self) -> bool:
        """Whether the interval holds the counted seconds: `error` is of these, `half_width` of the sampled ones."""
        return abs(self.error) <= self.half_width * (1 + self.error)


def replay(series: StepSeries, seed: int, recorded: RecordedSteps | None = None) -> list[Held]:
    """Return what came of each drive's seconds in one replay of a job on the clock ``sampled``.

    Args:
        series: counted seconds of every step.
        seed: of the draws.
        recorded: the same series, sorted; None: it is sorted now.
    """
    counter = ReplayCounter(series, np.random.default_rng(seed), recorded or RecordedSteps(series))
    return asyncio.run(_replay(series, counter))


async def _replay(series: StepSeries, counter: ReplayCounter) -> list[Held]:
    sampled = dict.fromkeys(series.devices, 0.0)
    records: list[tuple[SamplingRecord, float]] = []
    passes = enumerate(series.passes, start=1)
    for count in series.round_passes:
        of_round = 0.0
        for number, parts in itertools.islice(passes, count):
            counter.begin(parts)
            told = await (_step if series.sync else _round)(counter, number, parts)
            for device, seconds in told.items():
                sampled[device] += seconds
            of_round += max(told.values(), default=0.0)
        records.append((counter.steps.record(), of_round))
    whole = add_sampling(records)
    widths = {} if whole is None else {name: drive.error for name, drive in whole.drives.items()}
    return [
        Held(device=device, error=sampled[device] / counted - 1, half_width=widths.get(device, 0.0))
        for device, counted in series.device_seconds().items()
        if counted > 0
    ]


async def _step(counter: ReplayCounter, number: int, parts: Sequence[DevicePass]) -> dict[str, float]:
    outcomes = [_outcome(counter.drives[part.device], part.steps[0], number) for part in parts]

    async def visit() -> list[DeviceOutcome]:
        return outcomes

    gathering: Any = None
    told = await counter.count_step(visit(), Outbound(number, None), gathering, ())
    return {outcome.device: outcome.stepped.seconds.total for outcome in told if outcome.stepped is not None}


class _Drive:
    """Stands for the session of a drive.

    Attributes:
        device: its name.
    """

    def __init__(self, device: str) -> None:
        self.device = device


def _outcome(drive: Any, step: SeriesStep, number: int) -> DeviceOutcome:
    work = StepWork(drive, np.zeros(step.records, np.uint32), step.records)
    stepped = Stepped(number, step.records, 0.0, PhaseSeconds(forward=step.seconds), 0)
    return DeviceOutcome(work, stepped, None)


async def _round(counter: ReplayCounter, number: int, parts: Sequence[DevicePass]) -> dict[str, float]:
    returned = [
        DeviceReport(
            device=part.device,
            hello_clock="wall",
            trained=Trained(number, 1, len(part.steps), 0.0, PhaseSeconds(), 0),
            epochs=counter.epochs,
            batch_size=counter.batch_size,
            sent_bytes=0,
            received_bytes=0,
        )
        for part in parts
    ]
    answers = [RoundAnswer(counter.drives[report.device], {}, report, Scan()) for report in returned]

    async def visit() -> Visited:
        return Visited(frozenset(), answers)

    told = await counter.count_round(number, {}, visit())
    return {answer.session.device: answer.returned.trained.seconds.total for answer in told.answers}


def coverage(held: Sequence[Held]) -> float:
    """Return the share of intervals that hold the counted seconds."""
    return sum(each.inside for each in held) / len(held)
