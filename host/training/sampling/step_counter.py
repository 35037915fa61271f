"""What drives computed natively, with the seconds that virtual machines count of steps of the same kinds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import CsdError, DeviceFailed, DeviceLost
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Job, Tensors, Train, Trained
from firmware_agent.common.slices import Array, cut_slices, tensor_specs
from firmware_agent.common.split.activations import device_number, epoch_order
from firmware_agent.common.wire import encode, pack
from host.config.job_file import JobConfig
from host.core.failures import Failures
from host.core.interrupts import all_or_none
from host.core.records import EventKind, OnEvent
from host.core.sampling.looks import LookKind
from host.core.sampling.sampled_steps import SampledSteps, round_sizes
from host.core.sampling.strata import ROUND_STAGES, STAGES, Stratum
from host.fleet.device_session import DeviceSession
from host.training.round_exchange import Visited, prepare_device
from host.training.sampling.round_parts import RoundPart, choose_parts, list_round_beginning, split_into_frames
from host.training.sampling.sampler_machine import Indices, SamplerMachine
from host.training.sync.exchange.gradient_buffer import GradientBuffer
from host.training.sync.exchange.step_exchange import StepExchange
from host.training.sync.exchange.step_extension import DeviceOutcome, StepExtension, StepWork
from host.training.sync.exchange.weight_sender import Outbound

# How often machines are asked for the parts of one synchronous step, for each drive.
_MOST_TURNS = 6
# A look may be at weights that are so many steps old.
_OLD_STEPS = 32


_Arguments = tuple[Outbound, GradientBuffer, Sequence[StepExtension]]


class _Looking(NamedTuple):
    """Looks, or a whole step, that are counted while the next step goes on: whose, of which stratum, and which."""

    device: str
    stratum: Stratum
    whole: bool
    seconds: asyncio.Task[list[PhaseSeconds]]


@dataclass
class _Counting:
    """What a machine counts now.

    Attributes:
        exchange: with it.
        session: with which it last worked.
        weight: of the task that competes.
        step: whose weights it has; 0 for none.
    """

    exchange: StepExchange
    session: DeviceSession | None = None
    weight: int = 0
    step: int = 0


class StepCounter:
    """Replaces the seconds of native drives by counted ones and means of counted ones; one instance per run."""

    def __init__(
        self,
        frame: Job,
        job: JobConfig,
        machines: Sequence[SamplerMachine],
        places: Mapping[str, Indices],
        weight_of: Callable[[str], int],
        on_event: OnEvent,
    ) -> None:
        """Prepare; no machine is started yet.

        Args:
            frame: the job, as drives get it.
            job: the same; its watchdog holds for what a machine is asked at once.
            machines: that count.
            places: drive -> where in a machine's shard each record of its own shard lies.
            weight_of: returns the cgroup weight of the task that competes in a drive.
            on_event: told of drives that take another time than before, and of steps that could not be counted.
        """
        self._frame, self._job = msgspec.structs.replace(frame, overlap=False), job
        self._machines, self._places, self._weight_of, self._on_event = list(machines), places, weight_of, on_event
        self.steps = SampledSteps(len(self._machines))
        self._counting = [_Counting(self._make_exchange(number)) for number in range(len(self._machines))]
        self._look: _Looking | None = None
        # Drive -> the session of its last step: behind another one its steps are first ones again.
        self._drives: dict[str, DeviceSession] = {}
        # Drive -> strata of the last round, of those that answered in it and whose next one will be like it.
        self._rounds: dict[str, list[Stratum]] = {}
        # Strata of which an event has told: their steps differ, or cannot be counted.
        self._told: set[Stratum] = set()

    async def count_step(
        self,
        visit: Awaitable[list[DeviceOutcome]],
        outbound: Outbound,
        gathering: GradientBuffer,
        extensions: Sequence[StepExtension],
    ) -> list[DeviceOutcome]:
        """Return what came of a synchronous step, with counted seconds; arguments are those of `StepExchange.visit`."""
        outcomes = await visit
        own = {o.device: o for o in outcomes if o.device in self._places and o.stepped is not None}
        self._look_for_restarts([outcome.work.session for outcome in own.values()])
        begun = {
            device: self.steps.begin_step(device, len(o.work.records), o.work.micro_batch, self._weight_of(device))
            for device, o in own.items()
        }
        await self._end_look()
        counted: dict[str, PhaseSeconds] = {}
        chosen = self.steps.choose(outbound.number, begun)
        for _ in range(_MOST_TURNS * len(begun)):  # until all strata have steps: a machine's first ones may be others
            if not chosen:
                break
            turns = [chosen[number :: len(self._machines)] for number in range(len(self._machines))]

            async def count(number: int, turns: list[list[str]] = turns) -> None:
                for device in turns[number]:
                    part = own[device].work, begun[device].weight
                    said = await self._count_part(number, *part, outbound, gathering, extensions)
                    if self._count(device, begun[device], said, number).stage == begun[device].stage:
                        counted[device] = said

            await all_or_none(map(count, range(len(self._machines))))
            chosen = self.steps.choose_again(begun)
        if chosen:
            raise DeviceLost("no virtual machine stays for long enough to count a step")
        if self._look is None and (due := self.steps.look(outbound.number, begun)) is not None:
            self._begin_look(*due, own[due[0]].work, begun[due[0]], (outbound, gathering, extensions))
        return [
            self._with_seconds(o, begun[o.device], counted.get(o.device)) if o.device in begun else o for o in outcomes
        ]

    def _begin_look(self, device: str, looks: list[LookKind], work: StepWork, begun: Stratum, step: _Arguments) -> None:
        stratum = self.steps.now(device, begun)

        async def look() -> list[PhaseSeconds]:
            if not looks:
                return [await self._count_part(0, work, stratum.weight, *step)]
            found, sessions = [], set[DeviceSession | None]()
            try:
                for each in looks:
                    part = replace(work, records=work.records[: each.records], timed=each.timing)
                    found.append(await self._count_part(0, part, stratum.weight, *step, _OLD_STEPS))
                    sessions.add(self._counting[0].session)
                return found if len(sessions) == 1 else []  # what a machine counted that was lost does not count
            except DeviceFailed:
                if looks[0].records == stratum.records:
                    raise
                self.steps.looks.take_more(stratum)
                return []

        seconds = asyncio.create_task(look())
        seconds.add_done_callback(lambda task: task.cancelled() or task.exception())  # the run may end before
        self._look = _Looking(device, stratum, not looks, seconds)

    async def _end_look(self) -> None:
        """Take in what the look of the step before counted."""
        if (look := self._look) is not None:
            self._look = None
            for seconds in await look.seconds:
                (self._count if look.whole else self.steps.count_look)(look.device, look.stratum, seconds)

    async def count_round(
        self, number: int, weights: Mapping[str, Array], visit: Coroutine[Any, Any, Visited]
    ) -> Visited:
        """Return what came of the `visit` of a federated round that begins with these weights, with counted seconds."""
        ahead = [self._look_ahead(number, weights)] if self._rounds else []
        works: list[Coroutine[Any, Any, Any]] = [visit, *ahead]
        visited: Visited
        visited, *looked = await all_or_none(works)
        sessions = [answer.session for answer in visited.answers]
        self._look_for_restarts(sessions)
        begun = {
            device: self.steps.begin_round(
                device,
                round_sizes(len(self._places[device]), self._job.epochs, self._frame.batch_size),
                self._weight_of(device),
            )
            for device in (session.device for session in sessions)
            if device in self._places
        }
        self._rounds = {device: strata for device, strata in begun.items() if strata[0].stage == ROUND_STAGES[0]}
        await self._count_parts_of_round(number, weights, begun, not any(looked))
        for place, answer in enumerate(visited.answers):
            if (strata := begun.get(device := answer.session.device)) is not None:
                trained = msgspec.structs.replace(answer.returned.trained, seconds=self._taken(device, strata))
                visited.answers[place] = replace(answer, returned=replace(answer.returned, trained=trained))
        return visited

    async def _look_ahead(self, number: int, weights: Mapping[str, Array]) -> bool:
        """Look at a round while drives compute it: count steps like those of one of them in the round before.

        Return whether that was possible; the drive may turn out to fail in this round, and the machine as it does.
        """
        device = self.steps.looks.next_in_turn(list(self._rounds))
        strata = [self.steps.now(device, each) for each in self._rounds[device]]
        parts = choose_parts(self.steps, device, [device], {device: strata}, check=True)
        with contextlib.suppress(CsdError):
            await self._take_steps(number, weights, parts, strata[-1])
            return True
        return False

    def _look_for_restarts(self, sessions: Sequence[DeviceSession]) -> None:
        for session in sessions:
            if self._drives.setdefault(session.device, session) is not session:
                self._drives[session.device] = session
                self.steps.restart_device(session.device)

    def _count(self, device: str, stratum: Stratum, seconds: PhaseSeconds, machine: int = 0) -> Stratum:
        """Take note of a counted step; return its stratum."""
        before = self.steps.now(device, stratum)
        found = self.steps.count(device, stratum, seconds, machine)
        samples = self.steps.strata[found]
        if found.level != before.level:
            usual = self.steps.strata[before].mean.total
            told = f"a step of {stratum.records} records takes {seconds.total:.4g} s, where {usual:.4g} s were usual"
            what = "counted anew" if samples.count <= 2 else "again like earlier ones"
            self._on_event(device, EventKind.NOTE, f"{told}: its steps are {what}")
        elif self.steps.irregular(found) and found not in self._told:
            self._told.add(found)
            self._on_event(
                device,
                EventKind.NOTE,
                f"steps of {found.records} records differ by {samples.deviation:.1%} (standard deviation of "
                f"{samples.count}): what they compute depends on weights or records, so their seconds are less certain",
            )
        return found

    def _taken(self, device: str, strata: Sequence[Stratum], counted: PhaseSeconds | None = None) -> PhaseSeconds:
        return self.steps.take(device, [self.steps.now(device, each) for each in strata], counted) or PhaseSeconds()

    def _with_seconds(self, outcome: DeviceOutcome, stratum: Stratum, counted: PhaseSeconds | None) -> DeviceOutcome:
        assert outcome.stepped is not None
        seconds = self._taken(outcome.device, [stratum], counted)
        return replace(outcome, stepped=msgspec.structs.replace(outcome.stepped, seconds=seconds))

    def _make_exchange(self, number: int) -> StepExchange:
        async def disturb(session: DeviceSession, _: int, deadline: Deadline) -> None:
            await self._machines[number].disturb(session, self._counting[number].weight, deadline)

        return StepExchange(self._frame, self._job.watchdog, lambda *_: None, disturb, failures=Failures(goes_on=True))

    async def _count_part(
        self,
        number: int,
        work: StepWork,
        competitor: int,
        outbound: Outbound,
        gathering: GradientBuffer,
        extensions: Sequence[StepExtension],
        old_steps: int = 0,
    ) -> PhaseSeconds:
        """Return the seconds of a drive's part of a step beside a task of this weight, counted on a machine.

        A step's weights are sent once, or not where those of so many `old_steps` ago do, and gradients stay in the
        machine. Of what a cut or other drives take part in a forward pass knows nothing.

        Raises:
            DeviceFailed: it fails there, be it in the user's code: then it does so in machines alone.
        """
        device, records = work.device, self._places[work.device][work.records].astype(np.uint32)

        async def visit(session: DeviceSession) -> PhaseSeconds:
            counting = self._counting[number]
            counting.weight = competitor
            self._note_session(number, session)
            has_weights = counting.step >= max(1, outbound.number - old_steps)
            step = replace(outbound, weights=None) if has_weights else outbound
            probe = StepWork(session, records, work.micro_batch, work.timed or "whole")
            step_extensions = () if work.timed == "forward" else extensions
            (outcome,) = await counting.exchange.visit(step, [], gathering, [probe], step_extensions)
            counting.step = 0 if outcome.error else counting.step if has_weights else outbound.number
            if isinstance(outcome.error, DeviceFailed):
                raise DeviceFailed(
                    f"{device}: a step of {len(records)} records cannot be counted, so its seconds are not known: it "
                    f"fails on a virtual machine ({outcome.error}); if that is for want of memory, give the drive "
                    "smaller batches or the array file more memory, else take clock: modelled"
                ) from outcome.error
            if outcome.stepped is None:
                raise outcome.error or DeviceLost(f"{device}: its step was not counted")
            return outcome.stepped.seconds

        return await self._machines[number].work(visit)

    def _note_session(self, number: int, session: DeviceSession) -> None:
        """Take note whose session a machine has; another one than before is of a machine that has computed nothing."""
        if self._counting[number].session is not session:
            self._counting[number].session, self._counting[number].step = session, 0
            self.steps.restart(number)

    async def _count_parts_of_round(
        self, number: int, weights: Mapping[str, Array], begun: Mapping[str, Sequence[Stratum]], look: bool
    ) -> None:
        """Count what rounds that were `begun` lack, and, for a `look`, a step of the next drive in turn in any case."""
        leader = self.steps.looks.next_in_turn(list(begun)) if look and begun else ""
        groups: dict[int, list[str]] = {}
        for device, strata in begun.items():
            groups.setdefault(strata[0].weight, []).append(device)
        for devices in groups.values():
            first = leader if leader in devices else devices[0]
            if parts := choose_parts(self.steps, first, devices, begun, leader in devices):
                await self._count_parts(number, weights, parts, begun[first][-1])
        for _ in range(2 * len(begun)):
            if (suspect := self.steps.next_suspect(begun)) is None:
                break
            parts = choose_parts(self.steps, suspect, [suspect], begun, check=True, whole=True)
            await self._count_parts(number, weights, parts, begun[suspect][-1])
        for device, strata in begun.items():  # a step that opened a level may have been one that begins a round
            now = enumerate(self.steps.now(device, each) for each in strata[:-1])
            steps = [RoundPart(device, stratum, place) for place, stratum in now]
            unknown = [part for part in steps if self.steps.mean(part.stratum) is None]
            if missing := {part.stratum.steady: part for part in unknown if part.stratum.steady not in self._told}:
                parts = [part._replace(stratum=steady) for steady, part in missing.items()]
                parts *= 1 + len(STAGES)  # a young machine's first ones are of other stages
                await self._count_parts(number, weights, [*list_round_beginning(steps), *parts], strata[-1])

    async def _count_parts(
        self, number: int, weights: Mapping[str, Array], parts: Sequence[RoundPart], encode_stratum: Stratum
    ) -> None:
        """Have a machine take steps; if it cannot, their seconds are missing, and an event says so."""
        try:
            await self._take_steps(number, weights, parts, encode_stratum)
        except DeviceFailed as error:
            self._told.update(part.stratum.steady for part in parts)
            told = f"its steps cannot be counted, so their seconds are missing: {error}"
            self._on_event(parts[0].device, EventKind.NOTE, told)

    async def _take_steps(
        self, number: int, weights: Mapping[str, Array], parts: Sequence[RoundPart], encode_stratum: Stratum
    ) -> None:
        """Have a machine take steps, as few rounds of its own as frames allow.

        Raises:
            DeviceError: it fails, or is lost every time.
        """
        sent = [*map(encode, (Tensors(number, tensor_specs(weights)), *cut_slices(number, weights)))]
        for some in split_into_frames(parts, self._frame.batch_size):
            task = encode(Train(number, 0, [self._records(number, part) for part in some]))
            messages = list(pack([*sent, task]))
            train = partial(self._train, number=number, messages=messages, weights=weights)
            trained = await self._machines[0].work(partial(train, competitor=encode_stratum.weight))
            if len(trained.step_seconds) != len(some):
                raise DeviceFailed(f"it told of {len(trained.step_seconds)} steps, {len(some)} were asked for")
            for part, seconds in zip(some, trained.step_seconds, strict=True):
                self._count(part.device, part.stratum, seconds)
            self._count(some[0].device, encode_stratum, trained.seconds)

    async def _train(
        self,
        session: DeviceSession,
        number: int,
        messages: Sequence[bytes],
        weights: Mapping[str, Array],
        competitor: int,
    ) -> Trained:
        deadline = Deadline(self._job.watchdog)
        if self._counting[0].session is not session:
            await prepare_device(session, self._frame, deadline)
            self._note_session(0, session)
        await self._machines[0].disturb(session, competitor, deadline)
        for message in messages:
            await session.send_encoded(message, deadline)
        arrays, trained = await session.receive_tensors(number, tensor_specs(weights), Trained, deadline)
        session.recycle(arrays)
        return trained

    def _records(self, number: int, part: RoundPart) -> bytes:
        """Return the places in the machine's shard of the records of a drive's step in a round."""
        places, size = self._places[part.device], self._frame.batch_size
        steps = -(-len(places) // size)
        epoch, step = divmod(part.place, steps)
        order = epoch_order(self._frame.seed, device_number(part.device), number, epoch, len(places))
        return places[order[step * size : (step + 1) * size]].astype("<u4").tobytes()
