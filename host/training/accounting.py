"""From what devices returned to time, bytes and energy of a round of the array."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.host_node import host_activity, link_of, storage_of
from csd_emu.perfmodel.overlap.layer_work import DriveTransfers
from csd_emu.perfmodel.overlap.overlapped_step import OverlapComposer, OverlappedStep
from csd_emu.perfmodel.power import MEASURED, add_up, device_energy, host_energy, sum_energy
from csd_emu.perfmodel.storage.array_storage import ArrayStorage
from csd_emu.perfmodel.storage.drive_service import DriveService
from csd_emu.perfmodel.timeline import (
    AGGREGATE,
    READ,
    RECEIVE,
    SEND,
    Activity,
    Composed,
    Crossed,
    Link,
    Span,
    by_device,
    compose,
    compose_cut,
    cut,
    shift,
)
from csd_emu.profiles import Profile, get_profile
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Trained
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Array
from host.core.device_time import (
    WALL,
    CountedCycles,
    DeviceTime,
    StepModel,
    batch_counts,
    equal_batches,
    micro_batch_counts,
)
from host.core.records import DeviceRound


@dataclass(frozen=True)
class DeviceReport:
    """What one device returned from a round, before anything is composed.

    Attributes:
        device: its name.
        hello_clock: what its stopwatch shows.
        trained: its own report, its metrics those that are believed.
        epochs: passes over its shard.
        batch_size: records per step.
        sent_bytes: host to device.
        received_bytes: device to host.
        micro_batch: of one synchronous step: so many records were computed at a time; None of a federated round.
        by_program: whether a client program trained, which takes batches as it likes.
    """

    device: str
    hello_clock: str
    trained: Trained
    epochs: int
    batch_size: int
    sent_bytes: int
    received_bytes: int
    micro_batch: int | None = None
    by_program: bool = False

    @property
    def batches(self) -> dict[int, int]:
        """Batch size -> how many batches of it were computed."""
        if self.micro_batch is not None:
            return micro_batch_counts(self.trained.samples, self.micro_batch)
        usual = batch_counts(self.trained.samples, self.epochs, self.batch_size)
        if not self.by_program or sum(usual.values()) == self.trained.steps:
            return usual
        return equal_batches(self.trained.samples, self.trained.steps)


@dataclass(frozen=True)
class StepAccount:
    """A round of the array.

    Attributes:
        devices: who returned what, with time and energy.
        array_seconds: composed time of the round, up to the deadline if a device missed it.
        finish_seconds: device -> when it was done, from the round's beginning.
        spans: who did what when, in the array's time.
        energy_joules: of the host and of drives that returned nothing, per component.
        transfers: of each drive, for a tuner of them; none if none wants to know.
        waits: drive -> seconds that its reads took longer for what the host asked of it.
    """

    devices: list[DeviceRound]
    array_seconds: float
    finish_seconds: Mapping[str, float]
    spans: list[Span]
    energy_joules: dict[str, dict[str, float]]
    transfers: tuple[DriveTransfers, ...] = ()
    waits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Lateness:
    """Who is late in a round or step, and where that ends it.

    Attributes:
        deadline_seconds: at which it ends if a device's part takes longer: that is taken to stop, so that its spans and
            its energy end there too; None if all are waited for.
        devices: who is late whenever they were done, and nobody else is; None if the deadline says so.
        ended: device -> seconds that it is taken to have computed, per phase; None for as long as it did.
        ends: given device -> when it was done, returns the round's end; who is not done then goes on beyond it, and
            is not late. None if the last one ends it.
    """

    deadline_seconds: float | None = None
    devices: Collection[str] | None = None
    ended: Mapping[str, PhaseSeconds] | None = None
    ends: Callable[[Mapping[str, float]], float] | None = None

    def of(self, composed: Composed) -> set[str]:
        """Return who of those who did something is late."""
        limit = math.inf if self.deadline_seconds is None else self.deadline_seconds
        late = {device for device, seconds in composed.finish_seconds.items() if seconds > limit}
        return late if self.devices is None else set(self.devices)


IN_TIME = Lateness()


class Accountant:
    """Composes rounds, and keeps the array's time. One instance per run."""

    def __init__(
        self,
        time: DeviceTime,
        profiles: Mapping[str, Profile],
        host: Profile,
        link: Link,
        overlap: OverlapComposer | None = None,
        service: DriveService | None = None,
    ) -> None:
        """Begin at array time 0.

        Args:
            time: turns stopwatches into device seconds.
            profiles: device -> its profile, for all devices of the array.
            host: the server's figures.
            link: between host and drives.
            overlap: composes steps whose exchange overlaps what drives compute; None if no step's does.
            service: the drives as they serve their host; None if nobody asks anything of them.
        """
        self.time, self.service = time, service or DriveService(ArrayStorage({}), {}, host)
        self.array_seconds = self._start_seconds = 0.0
        # Names of drives that are switched off as of now: they draw nothing.
        self.powered_off: Callable[[], Collection[str]] = tuple
        self._profiles, self._host, self._link, self._overlap = dict(profiles), host, link, overlap
        self._storage = storage_of(host, [profile for device, profile in profiles.items() if device != HOST])

    def change_cut(self, other: Accountant) -> None:
        """Compose from now on what `other` composes: steps of the same array with the model cut elsewhere."""
        self.time.change_models(other.time)
        self._overlap = other._overlap

    def begin_step(self, number: int) -> None:
        """Begin the step, or the federated round, that is accounted next."""
        self.time.set_traffic(self.service.begin_step(number))

    def restore(self, array_seconds: float, service: Mapping[str, Array]) -> None:
        """Go on at a moment of the array's time, with what drives do for their host."""
        self.array_seconds = array_seconds
        self.service.restore(dict(service))

    def account(
        self,
        returned: Sequence[DeviceReport],
        late: Lateness = IN_TIME,
        host_seconds: float = 0.0,
        beside: Sequence[DeviceReport] = (),
        sending: TransferSettings | None = None,
        crossed: Crossed | None = None,
    ) -> StepAccount:
        """Return the round, or step, made of what devices returned, and move the array's time on by its length.

        The host's own `host_seconds` follow what devices do. What devices did `beside` takes no time of the array's;
        they are marked as stragglers too.
        """
        parts = [self._device(part) for part in returned]
        composed, host_seconds = self._compose(parts, late, host_seconds, sending, crossed)
        names, seconds = late.of(composed), composed.seconds
        if late.ends is not None and returned:
            seconds = late.ends(composed.finish_seconds)
        if names and late.deadline_seconds is not None:
            loaded = composed.finish_seconds if self.service.storage.drives else {}  # which no deadline foresaw
            seconds = max([late.deadline_seconds, *(loaded[device] for device in loaded.keys() - names)])
        spans = cut(composed.spans, seconds) if names else list(composed.spans)
        if host_seconds:
            spans.append(Span(HOST, AGGREGATE, seconds, seconds + host_seconds))
            seconds += host_seconds
        for part in map(self._device, beside):
            parts.append(part)
            names.add(part.device)
            spans += cut(compose([self._activity(part)], self._link).spans, seconds)
        own = by_device(spans)
        self._start_seconds = start_seconds = self.array_seconds
        self.array_seconds += seconds
        self.service.end(seconds, self.array_seconds)
        return StepAccount(
            devices=[self._finished(part, own[part.device], seconds, part.device in names) for part in parts],
            array_seconds=seconds,
            finish_seconds=composed.finish_seconds,
            spans=list(shift(spans, start_seconds)),
            energy_joules=self._others(parts, own, seconds),
            transfers=composed.transfers if isinstance(composed, OverlappedStep) else (),
            waits=self.service.waits,
        )

    def _compose(
        self,
        parts: Sequence[DeviceRound],
        late: Lateness,
        host_seconds: float,
        sending: TransferSettings | None,
        crossed: Crossed | None,
    ) -> tuple[Composed, float]:
        """Return what devices did when, and the host's seconds that are not in that.

        A step with settings of its own for `sending` is composed by `csd_emu.perfmodel.overlap.overlapped_step`, if the
        accountant has what that takes, a drive takes part, and nobody can turn out to be late. Any other step of a
        model that is cut, where `crossed` is what crossed, is composed by `csd_emu.perfmodel.timeline`.
        """
        activities = [self._activity(part) for part in (_as_ended(parts, late.ended) if late.ended else parts)]
        drives = {part.device for part in parts} - {HOST}
        in_time = late.deadline_seconds is None and not late.devices
        whole = crossed is None or crossed.is_of(drives)
        overlap = self._overlap if sending is not None and drives and in_time and whole else None
        told = self.array_seconds, self.time.growths, overlap is not None
        activities, link = self.service.load(activities, self._link, *told)
        if overlap is not None and sending is not None:
            return overlap.compose(activities, link, sending, host_seconds, crossed), 0.0
        if crossed is not None:
            return compose_cut(activities, link, crossed), host_seconds
        return compose(activities, link), host_seconds

    def extend(self, accounted: StepAccount, seconds: float, reduce_seconds: float) -> StepAccount:
        """Return the step accounted last as one of so many `seconds`, for it waits for other servers.

        Meanwhile everything idles; the last `reduce_seconds` of them the host adds up with the others.
        """
        more, end = seconds - accounted.array_seconds, self._start_seconds + seconds
        self.array_seconds = end
        return replace(
            accounted,
            devices=[part if part.device == HOST else self._idled(part, more) for part in accounted.devices],
            array_seconds=seconds,
            spans=[*accounted.spans, *([Span(HOST, AGGREGATE, end - reduce_seconds, end)] if reduce_seconds else [])],
            energy_joules={
                node: sum_energy([joules, self._idle_joules(node, more)])
                for node, joules in accounted.energy_joules.items()
            },
        )

    def idle_watts(self) -> dict[str, float]:
        """Return what each drive, and the host, draws when it does nothing."""
        return {node: sum(self._idle_joules(node, 1.0).values()) for node in {*self._profiles, HOST}}

    def _idled(self, part: DeviceRound, seconds: float) -> DeviceRound:
        joules = sum_energy([part.energy_joules, self._idle_joules(part.device, seconds)])
        return msgspec.structs.replace(part, energy_joules=joules)

    def _idle_joules(self, node: str, seconds: float) -> dict[str, float]:
        if node == HOST:
            return host_energy(self._host, seconds, 0.0, 0.0, 0)
        return device_energy(self._profiles[node].power, seconds, 0.0, 0.0, 0, 0)

    def device_seconds(self, part: DeviceReport) -> PhaseSeconds:
        """Return the device seconds in which a device computed its part, per phase."""
        return self._device(part).device_seconds

    def predict_seconds(self, returned: Sequence[DeviceReport], expected: Mapping[str, PhaseSeconds]) -> float:
        """Return how long a step of what devices returned would take if they computed for the `expected` seconds."""
        parts = _as_ended([self._device(part) for part in returned], expected)
        return compose([self._activity(part) for part in parts], self._link).seconds

    def _device(self, part: DeviceReport) -> DeviceRound:
        trained = part.trained
        seconds = self.time.seconds(part.device, part.hello_clock, trained.seconds, part.batches)
        if part.micro_batch is not None:  # the host's to do, but a table's step has it
            seconds = msgspec.structs.replace(seconds, update=0.0)
        return DeviceRound(
            device=part.device,
            clock=self.time.clock(part.device, part.hello_clock),
            samples=trained.samples,
            steps=trained.steps,
            batch_size=part.batch_size,
            loss=trained.loss,
            stopwatch_seconds=trained.seconds,
            device_seconds=seconds,
            flash_read_bytes=trained.read_bytes,
            sent_bytes=part.sent_bytes,
            received_bytes=part.received_bytes,
            peak_memory_bytes=trained.peak_memory_bytes,
            metered=trained.metered if part.hello_clock == WALL else None,
            health=trained.health if part.hello_clock == WALL else None,
            metrics={k: v for k, v in trained.metrics.items() if k != "loss"} if part.by_program else {},
        )

    def _activity(self, part: DeviceRound) -> Activity:
        profile = self._profiles[part.device]
        if part.device == HOST:
            record_bytes = part.flash_read_bytes // part.samples
            return host_activity(part.samples, record_bytes, msgspec.structs.asdict(part.device_seconds), self._storage)
        return Activity(
            device=part.device,
            receive_bytes=part.sent_bytes,
            read_bytes=part.flash_read_bytes,
            read_operations=part.steps if part.flash_read_bytes else 0,
            phases=msgspec.structs.asdict(part.device_seconds),
            send_bytes=part.received_bytes,
            flash_bytes_per_second=profile.flash_bytes_per_second.value,
            flash_latency_seconds=profile.flash_latency_seconds.value,
            link_bytes_per_second=profile.link_bytes_per_second.value,
            link_latency_seconds=profile.link_latency_seconds.value,
        )

    def _finished(self, part: DeviceRound, spans: Sequence[Span], elapsed_seconds: float, late: bool) -> DeviceRound:
        """Return the part with what its `spans` in the composed round say of it."""
        profile = self._profiles[part.device]
        seconds: defaultdict[str, float] = defaultdict(float)
        for span in spans:
            seconds[span.phase] += span.seconds
        did = add_up(profile, spans)
        joules = device_energy(
            *(profile.power, elapsed_seconds, did.busy_core_seconds, did.busy_seconds, did.read_bytes, did.link_bytes)
        )
        if part.metered is not None:  # the sensor saw the task; what the drive drew beside it remains the model's
            rest_seconds = max(0.0, elapsed_seconds - part.metered.seconds)
            joules = {MEASURED: part.metered.joules, "idle": profile.power.idle_watts.value * rest_seconds}
        if part.device == HOST:  # what the whole server draws stands beside the devices (see `_others`)
            joules = {}
        return msgspec.structs.replace(
            part,
            receive_seconds=seconds[RECEIVE],
            read_seconds=seconds[READ],
            send_seconds=seconds[SEND],
            energy_joules=joules,
            straggler=late,
        )

    def _others(
        self, parts: Sequence[DeviceRound], spans: Mapping[str, Sequence[Span]], elapsed_seconds: float
    ) -> dict[str, dict[str, float]]:
        """Return the energy of the host, its own training included, and of drives that did nothing but are powered."""
        link_bytes = sum(part.sent_bytes + part.received_bytes for part in parts)
        none = {part.device for part in parts} | set(self.powered_off()) | {HOST}
        did = add_up(self._host, spans.get(HOST, ()))
        idle = {
            device: device_energy(profile.power, elapsed_seconds, 0.0, 0.0, 0, 0)
            for device, profile in self._profiles.items()
            if device not in none
        }
        server = host_energy(self._host, elapsed_seconds, did.busy_core_seconds, did.busy_seconds, link_bytes)
        return {HOST: server, **idle}


def _as_ended(parts: Iterable[DeviceRound], seconds: Mapping[str, PhaseSeconds]) -> list[DeviceRound]:
    """Return the parts with other seconds of computing."""
    return [msgspec.structs.replace(part, device_seconds=seconds[part.device]) for part in parts]


def make_accountant(
    config: ArrayConfig,
    models: Mapping[str, StepModel] | None = None,
    overlap: OverlapComposer | None = None,
    cycles: Mapping[str, CountedCycles] | None = None,
    service: DriveService | None = None,
) -> Accountant:
    """Return what composes the time and energy of a run.

    Args:
        config: the array.
        models: device -> what its steps cost, for devices without a counted clock (see `find_models`).
        overlap: see `Accountant`.
        cycles: device -> what turns its counted seconds into those of cycles (see `find_cycles`).
        service: see `Accountant`.
    """
    profiles = {device.name: get_profile(device.profile) for device in config.list_nodes()}
    host = get_profile(config.host.profile)
    time = DeviceTime(profiles, models or {}, cycles or {}, config.sampled)
    return Accountant(time, profiles, host, link_of(config.link, host), overlap, service)
