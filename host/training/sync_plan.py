"""Plan of a synchronous job on an array, before anything starts: batches, records, and what they should cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.util.node_names import HOST
from csd_emu.util.record_shape import Shape
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.frames.frame_fields import MAX_STEP_RECORDS
from firmware_agent.common.shipped_code import ShippedCode
from host.config.job_file import JobConfig
from host.config.plugins.plugin_loading import Plugin
from host.core.device_time import StepModel, table_models
from host.core.model_facts import inspect_load
from host.core.tuning.batch_tuner import BatchTuner
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.client_layers import WHOLE, Front, front_models
from host.policies.batching.device_speeds import DeviceClass, device_classes, speed_tables
from host.policies.batching.make import TunerArguments, make_rules, make_tuner
from host.policies.batching.record_limit import LimitedTuner
from host.policies.batching.stannis import plan_shards
from host.policies.batching.step_watts import StepWatts
from host.policies.schedules import Schedule
from host.training.first_batches import NO_OVERHEAD, StepOverhead, first_batches, most_step_records, step_overhead
from host.training.sampler import OUTSTANDING, EpochQueue, QueueState

_NOT_COVERED = (
    "its calibration table has no row near its batches, and can be off by a third there: measure more with csd-emu "
    "calibrate"
)


@dataclass(frozen=True)
class Records:
    """What lies where: private records of each node, in participant order, and a public pool on all of them.

    It does not lie on nodes that have their own `in_place`: name -> hash of these, empty until the node has said hello.
    """

    private_sizes: tuple[int, ...]
    public_size: int
    record_bytes: int
    in_place: Mapping[str, str] = field(default_factory=dict)

    @property
    def shard_bytes(self) -> int:
        """Size of the largest shard."""
        return (max(self.private_sizes) + self.public_size) * self.record_bytes


@dataclass(frozen=True)
class SyncPlan:
    """A synchronous job on an array. Sequences are in participant order: the drives, then the host if it trains.

    Attributes:
        job: what to train.
        nodes: names.
        private_sizes: private records of each.
        public_size: records of the public pool, which lies on every node that has none of its own in place.
        classes: node -> its speed and memory; empty without calibration tables.
        expected: node -> what its steps should cost, for those with a table.
        batches: records per step to begin with.
        overhead: what a step takes beside its slowest node's computing.
        plugin: the job's tuner, if it is one of the user's own.
        most_records: of a step, that the host has room for, and computes as well; None if it computes nothing of the
            model.
        watts: of the array; None if nobody knows.
        schedule: of the learning rate; None if it stays.
        in_place: node -> hash of its own records, which it draws itself; empty until it has said hello.
    """

    job: JobConfig
    nodes: tuple[str, ...]
    private_sizes: tuple[int, ...]
    public_size: int
    classes: Mapping[str, DeviceClass]
    expected: Mapping[str, StepModel]
    batches: tuple[int, ...]
    overhead: StepOverhead = NO_OVERHEAD
    plugin: Plugin | None = None
    most_records: int | None = None
    watts: StepWatts | None = None
    schedule: Schedule | None = None
    in_place: Mapping[str, str] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Records that each node holds."""
        return tuple(
            size + (0 if node in self.in_place else self.public_size)
            for node, size in zip(self.nodes, self.private_sizes, strict=True)
        )

    @property
    def steps(self) -> int:
        """How many steps the run has, as long as batches stay and no target is reached."""
        if self.job.sync.round_steps is not None:
            return self.job.rounds * self.job.sync.round_steps
        return self.job.rounds * self.job.epochs * self.epoch_steps(self.batches)

    def epoch_steps(self, batches: Sequence[int]) -> int:
        """Return how many steps an epoch has with these batches, 0 for a node that is not there."""
        return self.make_queue(None).steps_left(batches)

    def window_steps(self, reduce_every: int) -> int:
        """Return how many steps lie between two sums of servers that add up after `reduce_every`, as a rule.

        With the end of a round, or of an epoch, they add up too.
        """
        if self.job.sync.round_steps is not None:
            return min(reduce_every, self.job.sync.round_steps)
        return max(1, min(reduce_every, self.epoch_steps(self.batches)))

    @property
    def notes(self) -> list[str]:
        """What must be known of the run, in sentences."""
        notes = self._in_place_notes()
        if not self.in_place or not self.public_size:
            notes += [plan_shards(self.batches, self.private_sizes, self.public_size, self.job.sync.overflow).action]
        guessed = [node for node, known in self.classes.items() if not known.covered]
        if guessed and self.job.tuner != "none":
            notes.append(f"{', '.join(guessed)}: {_NOT_COVERED}")
        if (asked := sum(self.batches)) > (held := sum(self.private_sizes) + self.public_size):
            notes.append(f"one step takes {asked} records and there are {held}: each epoch is one smaller step")
        for each in self.job.disturb:
            if each.at_step > self.steps:
                notes.append(f"disturb: {each.device} at step {each.at_step}, and the run has about {self.steps} steps")
        for node, batch in zip(self.nodes, self.batches, strict=True):
            if batch > (most := self.micro_batch(node)):
                notes.append(f"{node}: its {batch} records per step are computed {most} at a time (memory)")
        return [note for note in notes if note]

    def _in_place_notes(self) -> list[str]:
        """Return what must be known of drives that have their own records in place."""
        sizes = dict(zip(self.nodes, self.private_sizes, strict=True))
        told = [f"{sizes[node]} of {node}" for node, digest in self.in_place.items() if digest]
        unheard = [f"{sizes[node]} of {node}" for node, digest in self.in_place.items() if not digest]
        own = f"from the records that lie there in place, of which the host knows the number: {', '.join(told)}"
        notes = [f"the drives draw what each step takes {own}"] if told else []
        if unheard:
            notes.append(
                f"records in place are counted when drives say hello; until then {', '.join(unheard)} are assumed"
            )
        if self.in_place and self.public_size:
            notes.append(
                f"{', '.join(self.in_place)}: train on their own records alone; the public ones are the others'"
            )
        return notes

    def micro_batch(self, node: str) -> int:
        """Return how many records a node computes at a time, at most."""
        asked = self.job.sync.micro_batch or MAX_STEP_RECORDS
        return min(asked, self.classes[node].micro_batch) if node in self.classes else asked

    def make_queue(self, state: QueueState | None, outstanding: int = OUTSTANDING) -> EpochQueue:
        """Return what deals out the records, from the beginning or from `state`; see `EpochQueue`."""
        how = self.job.seed, self.job.sync.overflow
        places = [number for number, node in enumerate(self.nodes) if node in self.in_place]
        return EpochQueue(self.private_sizes, self.public_size, *how, state, outstanding, places)

    def make_tuner(self, tell: Callable[[str], None] = lambda _: None) -> BatchTuner:
        """Return what decides on batches during the run; `tell` is told of what it may not do.

        Raises:
            PluginError: a tuner of the user's own cannot be made.
        """
        tables = list(speed_tables(self.classes).values()) or None
        tuner = self._make_tuner(tables)
        if self.most_records is None or tables is None:  # without tables batches stay
            return tuner
        return LimitedTuner(tuner, tables, self.most_records, tell)

    def _make_tuner(self, tables: list[SpeedTable] | None) -> BatchTuner:
        # With private records an epoch can be as long as the slowest device needs for its own: who takes records over
        # then has public ones again, and each epoch gets longer.
        shared = not any(self.private_sizes) and self.public_size >= sum(self.batches)
        arguments = TunerArguments(
            *(tables, np.array(self.batches), self.nodes, self.steps),
            *(self.overhead.of(sum(self.batches)), make_rules(self.job.sync.tuning, self.watts), shared),
        )
        return make_tuner(self.job.tuner, arguments, self.plugin)

    def of_nodes(self, numbers: Sequence[int], batches: Sequence[int], overhead: StepOverhead) -> SyncPlan:
        """Return the plan of some of the nodes alone, with batches of their own."""
        nodes = tuple(self.nodes[number] for number in numbers)
        return replace(
            self,
            nodes=nodes,
            private_sizes=tuple(self.private_sizes[number] for number in numbers),
            classes={node: self.classes[node] for node in nodes if node in self.classes},
            batches=tuple(batches),
            overhead=overhead,
            watts=self.watts and replace(self.watts, computing=self.watts.computing[list(numbers)]),
        )


def make_plan(
    config: ArrayConfig,
    job: JobConfig,
    spec: ShippedCode,
    shape: Shape,
    store: CalibrationStore | None,
    records: Records,
    front: Front = WHOLE,
) -> SyncPlan:
    """Return the plan of a synchronous job.

    Args:
        config: the array.
        job: what to train.
        spec: its model.
        shape: (channels, height, width) of an image.
        store: the calibration tables; None if the drives' seconds are this machine's, so that no table is of them.
        records: what lies where.
        front: the part of the model that the nodes have.

    Raises:
        CalibrationError: the tuner needs a calibration table that is not there.
        ConfigurationError: job and array do not fit together.
    """
    nodes = tuple(node.name for node in config.list_nodes())
    _check_disturbances(job, config, store is None)
    if store is None and job.tuner != "none":
        raise ConfigurationError(
            f"tuner: {job.tuner_name} needs to know how fast the drives are, and processes of this machine under its "
            "own clock have no calibration table; use engine: qemu, or clock: modelled, or tuner: none"
        )
    expected = {} if store is None else front_models(table_models(config, spec, shape, store), front)
    classes: Mapping[str, DeviceClass] = {}
    if store is not None and (job.tuner != "none" or expected.keys() == set(nodes)):
        classes = device_classes(config, store.of(spec, shape), job.sync, shard_bytes=records.shard_bytes, front=front)
    tail = None if store is None else store.find(spec, shape, config.host.profile)
    overhead_at = step_overhead(config, inspect_load(spec, shape, job.freeze), front, tail)
    if job.tuner == "none":
        _check_batch_size(job, classes)
        batches = tuple(job.batch_size for _ in nodes)
    else:
        batches = tuple(first_batches(config, classes, job.sync.tuning, overhead_at, front).tolist())
    profiles, host = [get_profile(node.profile) for node in config.list_nodes()], get_profile(config.host.profile)
    watts = StepWatts.of(profiles, profiles if config.host.trains else [*profiles, host])
    most = None if front == WHOLE or job.tuner == "none" else most_step_records(sum(batches), overhead_at)
    sizes = records.private_sizes, records.public_size
    overhead = overhead_at(sum(batches))
    plan = SyncPlan(job, nodes, *sizes, classes, expected, batches, overhead, most_records=most, watts=watts)
    return replace(plan, in_place=records.in_place)


def _check_batch_size(job: JobConfig, classes: Mapping[str, DeviceClass]) -> None:
    for node, known in classes.items():
        if job.batch_size > known.speed.largest_batch:
            raise ConfigurationError(
                f"batch_size: {job.batch_size} is more than {node} takes, {known.speed.largest_batch}: what its memory "
                "holds or sync.tuning.largest_batch allows; make it smaller"
            )


def _check_disturbances(job: JobConfig, config: ArrayConfig, wall: bool) -> None:
    drives = {device.name for device in config.list_devices()}
    for number, each in enumerate(job.disturb):
        where = f"disturb[{number}]"
        if each.device not in drives | ({HOST} if config.host.trains else set()):
            raise ConfigurationError(
                f"{where}.device: {each.device!r} is not in the array; there are: {', '.join(sorted(drives))}"
            )
        if wall:
            raise ConfigurationError(
                f"{where}: competing work has no weight among processes of this machine under its own clock; use "
                "engine: qemu, or clock: modelled"
            )
