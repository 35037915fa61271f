"""Records of a run: one JSON line per round or event, and a summary. Seconds of a drive name their clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from csd_emu.perfmodel.power import sum_energy
from csd_emu.perfmodel.storage.service_figures import ServiceFigures
from csd_emu.perfmodel.timeline import Span
from csd_emu.util.renamed import Renamed, old_name_of, with_new_keys
from firmware_agent.common.frames.frame_fields import Metered, PhaseSeconds
from firmware_agent.common.health.drive_health import DriveHealth
from host.core.failures import FailureRecord
from host.core.figure_bands import Band
from host.core.sampling.sampling_record import SamplingRecord
from host.core.slice_record import TransferChange


class DeviceRound(msgspec.Struct, frozen=True, kw_only=True):
    """One device's part in a round.

    Attributes:
        device: its name.
        clock: of its seconds: ``counted``, ``sampled``, ``modelled`` or ``wall``; the first and last are its own word.
        samples, loss: records trained on, repetitions counted, and the mean over them.
        steps, batch_size: optimiser steps, and records per step.
        stopwatch_seconds: what the device's own clock saw, per phase.
        device_seconds: compute as seconds of the device's profile, per phase.
        read_seconds: reading the records from flash, composed from bytes.
        receive_seconds, send_seconds: taking the weights from the link and giving them to it, composed from bytes.
        flash_read_bytes: read from the shard.
        sent_bytes, received_bytes: over the wire, to the device and from it; of the host's part, the records it read.
        peak_memory_bytes: most memory that the agent held, 0 if it does not know.
        energy_joules: per component, over the whole round (see docs/power.md).
        straggler: it missed the round's deadline, and its weights were left out.
        metered: what the drive's own sensor saw; None where all of its energy is modelled.
        health: what the drive's own logs said last; None of one that is not real, or whose logs cannot be read.
        metrics: the client program's numbers, all finite and by the names of its trial, but for ``loss``.
        service: what it did for its host; None without `host_io`.
    """

    device: str
    clock: str
    samples: int
    steps: int
    batch_size: int
    loss: float
    stopwatch_seconds: PhaseSeconds
    device_seconds: PhaseSeconds
    read_seconds: float = 0.0
    receive_seconds: float = 0.0
    send_seconds: float = 0.0
    flash_read_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    peak_memory_bytes: int = 0
    energy_joules: dict[str, float] = msgspec.field(default_factory=dict)
    straggler: bool = False
    metered: Metered | None = None
    health: DriveHealth | None = None
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    service: ServiceFigures | None = None

    @property
    def records_per_device_second(self) -> float | None:
        """Records over compute seconds; None if it computed for no time."""
        return self.samples / self.device_seconds.total if self.device_seconds.total > 0 else None


def in_time(parts: Iterable[DeviceRound]) -> list[DeviceRound]:
    """Return the parts that count as trained: of a straggler's work only bytes and energy do."""
    return [part for part in parts if not part.straggler]


class DeviceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One device's part in a synchronous step.

    Attributes:
        device: its name; ``host`` for the host's own part.
        batch_size: records.
        compute_seconds: device seconds of forward, backward and encoding; who was not in time is ``late`` or ``lost``.
        expected_seconds: what its table says of that batch, undisturbed; 0 without a table.
        weight: of its gradient in the step's, b_i / sum b.
    """

    device: str
    batch_size: int
    compute_seconds: float
    expected_seconds: float = 0.0
    weight: float = 0.0

    @property
    def slowdown(self) -> float | None:
        """Observed over expected seconds; None without a table, or without records."""
        return self.compute_seconds / self.expected_seconds if self.expected_seconds > 0 and self.batch_size else None


class SendingRecord(msgspec.Struct, frozen=True):
    """How a step was sent: the fields of `send_queue.TransferSettings`, and whether slices crossed meanwhile."""

    schedule: str
    slice_bytes: int | None = None
    credit_bytes: int | None = None
    overlap: bool = False


class PlacementRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the host had of the model in a step, and what that took.

    Attributes:
        layer: that its part begins with.
        layers: how many it has.
        state_bytes: of their parameters and buffers, which no longer cross the link.
        up_bytes, down_bytes: activations and labels, all drives to the host; their gradients, host to all drives.
        tail_seconds: that it computed for.
        clock: whose seconds these are: ``modelled`` beside counted or modelled drives, else ``wall``.
    """

    layer: str
    layers: int
    state_bytes: int
    up_bytes: int
    down_bytes: int
    tail_seconds: float
    clock: str


class ServersRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What other servers had to do with a step; seconds are composed, or modelled, in the array's time.

    Attributes:
        server: whose record it is.
        present: servers whose gradients were added up, in the order of the servers file.
        samples: records of all of them.
        own_seconds: what the step took this server's own drives and host.
        slowest_seconds: the slowest server's; where servers add up every few steps, `own_seconds` and the last wait.
        reduce_seconds: modelled, of adding up over the servers' links.
        sent_bytes: that each server sends for that.
        meetings: how often servers had to meet anew in this step, for one was lost or came.
    """

    server: str
    present: list[str]
    samples: int
    own_seconds: float
    slowest_seconds: float
    reduce_seconds: float
    sent_bytes: int
    meetings: int = 0

    @property
    def waited_seconds(self) -> float:
        """How long this server waited for slower ones."""
        return self.slowest_seconds - self.own_seconds


class StepRecord(Renamed, frozen=True, kw_only=True):
    """One synchronous step.

    Attributes:
        step: its number, from 1.
        loss: mean over its records, before the step.
        learning_rate: that the optimiser stepped with.
        array_seconds: composed length: compute, flash and link.
        possible_records_per_second: what the tables, scaled by the speeds observed, would have allowed by compute
            alone, with no batch larger than at the run's beginning; 0 without tables.
        devices: who took part, in participant order.
        late: who was not waited for; its gradient was dropped.
        lost: who was lost in the step.
        mixed: whether slices of one that was lost are in part of the gradient.
        disturbed: drives with competing work, and its weight.
        sending: how it was sent; None for whole tensors before and after computing.
        wall_seconds: since the step before, or the round's begin: emulation's cost; on the clock ``wall`` its own.
        placement: what the host had of the model; None if nothing was moved.
        servers: of a run over several servers, whose devices are this server's own; None of any other.
    """

    step: int
    loss: float
    learning_rate: float
    array_seconds: float
    possible_records_per_second: float = 0.0
    devices: list[DeviceStep] = msgspec.field(default_factory=list)
    late: list[str] = msgspec.field(default_factory=list)
    lost: list[str] = msgspec.field(default_factory=list)
    mixed: bool = False
    disturbed: dict[str, int] = msgspec.field(default_factory=dict)
    sending: SendingRecord | None = None
    wall_seconds: float = 0.0
    placement: PlacementRecord | None = None
    servers: ServersRecord | None = None
    possible_images_per_second: Annotated[float, old_name_of("possible_records_per_second")] = 0.0

    @property
    def samples(self) -> int:
        """Records in the step's gradient, those of all servers."""
        return sum(part.batch_size for part in self.devices) if self.servers is None else self.servers.samples

    @property
    def slowest_seconds(self) -> float:
        """Compute of the slowest device, which sets the pace."""
        return max((part.compute_seconds for part in self.devices), default=0.0)

    @property
    def imbalance(self) -> float:
        """(max - min) / max of the compute seconds of the devices that had records; 0 if there is only one."""
        seconds = [part.compute_seconds for part in self.devices if part.batch_size]
        return (max(seconds) - min(seconds)) / max(seconds) if seconds and max(seconds) > 0 else 0.0


class RetuneRecord(msgspec.Struct, frozen=True, kw_only=True):
    """New batch sizes.

    Attributes:
        step: the first that has them.
        reason: for people.
        before, after: device -> records per step, of all devices.
        gain_steps: what it was expected to win over the remaining steps.
    """

    step: int
    reason: str
    before: dict[str, int]
    after: dict[str, int]
    gain_steps: float = 0.0


class RoundRecord(Renamed, frozen=True, kw_only=True, tag_field="kind", tag="round"):
    """One round.

    Attributes:
        round: its number, from 1.
        clock: of the devices' seconds; several are joined by ``+``.
        accuracy, test_loss, metrics: of the new weights on held-out records; NaN where records have no classes.
        train_loss: mean over the records trained on in time.
        records_per_device_second: records over compute seconds of the devices in time: the mean rate of a device.
        slowest_device_seconds: compute of the slowest device in time.
        start_seconds: when the round began, in the array's composed time.
        array_seconds: how long it took the array: compute, flash and link composed by the timeline.
        wall_seconds: the cost of emulation.
        devices: who returned weights, in the array's order.
        lost: devices of the array that were asked, or should have been, and did not return any.
        idle: devices that were not chosen for this round.
        spans: who did what when, in the array's composed time.
        energy_joules: of the ``host`` and of drives that returned nothing, per node and component.
        machine_joules: of this machine's processors by their RAPL counters, over the wall time; None without counters.
        steps: of a synchronous round, in order.
        retunes: in force from a step of this round on, in order.
        bands: of ``array_seconds``, ``device_seconds`` of all in time, and ``energy_joules``; empty in older records.
        device_bands: node -> of its ``device_seconds``, if it was in time, and of its ``energy_joules``.
        sampling: of the clock ``sampled``; else None.
        gradient_noise_records: as of its last step (`host.training.sync.gradient_noise`); None where it is not known.
    """

    round: int
    clock: str
    accuracy: float
    test_loss: float
    train_loss: float
    records_per_device_second: float
    slowest_device_seconds: float
    start_seconds: float
    array_seconds: float
    wall_seconds: float
    devices: list[DeviceRound]
    lost: list[str] = msgspec.field(default_factory=list)
    idle: list[str] = msgspec.field(default_factory=list)
    spans: list[Span] = msgspec.field(default_factory=list)
    energy_joules: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    machine_joules: float | None = None
    steps: list[StepRecord] = msgspec.field(default_factory=list)
    retunes: list[RetuneRecord] = msgspec.field(default_factory=list)
    transfer_changes: list[TransferChange] = msgspec.field(default_factory=list)
    bands: dict[str, Band] = msgspec.field(default_factory=dict)
    device_bands: dict[str, dict[str, Band]] = msgspec.field(default_factory=dict)
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    sampling: SamplingRecord | None = None
    gradient_noise_records: float | None = None
    images_per_device_second: Annotated[float, old_name_of("records_per_device_second")] = 0.0

    @property
    def end_seconds(self) -> float:
        """When the round ended, in the array's composed time."""
        return self.start_seconds + self.array_seconds

    @property
    def in_time(self) -> list[DeviceRound]:
        """Parts that count as trained."""
        return in_time(self.devices)

    @property
    def samples(self) -> int:
        """Records trained on in time, repetitions counted."""
        return sum(part.samples for part in self.in_time)

    @property
    def step_parts(self) -> dict[str, list[DeviceStep]]:
        """Device -> its parts in the steps in which it had records; empty for a round without steps."""
        found: dict[str, list[DeviceStep]] = {}
        for part in (part for step in self.steps for part in step.devices if part.batch_size):
            found.setdefault(part.device, []).append(part)
        return found

    @property
    def node_joules(self) -> dict[str, dict[str, float]]:
        """Node -> component -> joules: drives, whether or not they returned anything, and the host."""
        return node_joules(self.devices, self.energy_joules)

    @property
    def node_watts(self) -> dict[str, float]:
        """Node -> mean watts over the round, of those to which energy is charged; 0 of a round without length."""
        seconds = self.array_seconds if self.array_seconds > 0 else math.inf
        return {node: math.fsum(parts.values()) / seconds for node, parts in self.node_joules.items() if parts}

    @property
    def total_joules(self) -> float:
        """Energy of everything in the array, in joules."""
        return sum(sum(parts.values()) for parts in self.node_joules.values())


def node_joules(parts: Iterable[DeviceRound], others: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return node -> component -> joules of `parts`, and of `others`: what a host that trains draws is there."""
    joules = {part.device: dict(part.energy_joules) for part in parts}
    for node, components in others.items():
        joules[node] = sum_energy([joules.get(node, {}), components])
    return joules


class EventKind(StrEnum):
    """Kinds of events."""

    JOINED = "joined"
    LEFT = "left"
    REJOINED = "rejoined"
    REFUSED = "refused"
    ADOPTED = "adopted"
    REJECTED = "rejected"
    SET_ASIDE = "set aside"
    DIVERGING = "diverging"
    LOST = "lost"
    FAILED = "failed"
    STRAGGLER = "straggler"
    INJECTED = "injected"
    RESUMED = "resumed"
    RETUNED = "retuned"
    NOTE = "note"


class EventRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="event"):
    """Something that happened to a device (or to the ``host``).

    `wall_seconds` counts from the beginning of the run, `array_seconds` is the array's composed time at the moment.
    """

    device: str
    what: EventKind
    detail: str = ""
    wall_seconds: float = 0.0
    array_seconds: float = 0.0


Record = RoundRecord | EventRecord | FailureRecord
_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
# Fields that may be null; of all others null stands for a number that JSON does not have.
_MAY_BE_NULL = {"machine_joules", "metered", "placement", "sampling", "sending", "servers", "gain", "service"}
_MAY_BE_NULL |= {"slice_bytes", "credit_bytes", "gradient_noise_records", "health"}


def decode_record(line: bytes) -> Record:
    """Return the record of one JSON line; a loss that was NaN or infinite comes back as NaN.

    Raises:
        ValueError: the line is no record; the message says why.
    """
    try:
        try:
            return _DECODER.decode(line)
        except msgspec.ValidationError:  # of a diverged run, or of a release before
            value = _restore_nan(with_new_keys(msgspec.json.decode(line)))
            return msgspec.convert(value, RoundRecord | EventRecord | FailureRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _restore_nan(value: Any) -> Any:
    """Return `value` with NaN for null, which JSON has in its place."""
    if value is None:
        return math.nan
    if isinstance(value, dict):
        return {key: v if v is None and key in _MAY_BE_NULL else _restore_nan(v) for key, v in value.items()}
    return [_restore_nan(each) for each in value] if isinstance(value, list) else value


OnEvent = Callable[[str, EventKind, str], None]
"""Told of an event: device, what happened, and more about it (or nothing)."""
