"""`csd-emu inject`: a fault in one drive, injected from a process other than the one that runs a job on the array."""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from csd_emu.config.array_file import REMOTE, ArrayConfig
from csd_emu.engines import DevicePlan, Engine, Fault, faults_of, make_engine
from csd_emu.util.config_files import parse_config
from csd_emu.util.nearest_word import hint_at
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import ConfigurationError, CsdError, DeviceError, EnvironmentUnfit
from firmware_agent.common.handover import IDENTITY_FILE, SHARD_FILE
from firmware_agent.common.identity import read_identity, write_identity
from host.core.device_time import TRAINER_WEIGHT
from host.core.interrupts import INTERRUPTS
from host.fleet.array_state import STATE_FILE, ArrayState, DeviceState, devices_held
from host.fleet.control_socket import ControlRequest, NoRun, ask
from host.fleet.lifecycle import DEVICES, ENTROPY_BYTES


class InjectReport(msgspec.Struct, frozen=True):
    """`csd-emu inject`: what was done, and whether a run that is going on wrote it down as an event."""

    array: str
    device: str
    fault: str
    detail: str
    recorded: bool


_MAX_WEIGHT = 10_000
# What ends a fault that was injected for a while.
_UNDONE_BY = {Fault.FREEZE: Fault.THAW, Fault.CUT: Fault.HEAL, Fault.SLOW: Fault.SLOW, Fault.FILL: Fault.CLEAR}


@dataclass(frozen=True)
class Injection:
    """A fault as asked for on the command line, read and checked; `duration_seconds` None leaves it as it is."""

    array: str
    device: str
    harm: Fault
    weight: int
    after_seconds: float
    duration_seconds: float | None

    @classmethod
    def read(
        cls, array: str, device: str, fault: str, weight: int | None, after: float, duration: float | None
    ) -> Injection:
        """Check what needs no array to be checked.

        Raises:
            ConfigurationError: it cannot be meant.
        """
        if fault not in list(Fault):
            raise ConfigurationError(f"there is no fault {fault!r}; {_choice(fault, list(Fault))}")
        harm = Fault(fault)
        if weight is not None and harm is not Fault.SLOW:
            raise ConfigurationError(f"--weight goes with slow, not with {harm}")
        if not 0 <= (weight or 0) <= _MAX_WEIGHT:
            raise ConfigurationError(f"--weight {weight}: a cgroup's weight is 1 to {_MAX_WEIGHT}; 0 ends the task")
        if duration is not None and (harm not in _UNDONE_BY or weight == 0):
            raise ConfigurationError(f"--for: {harm} is not a state that could be ended; leave it out")
        for option, seconds in (("--after", after), ("--for", duration or 0.0)):
            if not math.isfinite(seconds):
                raise ConfigurationError(f"{option} must be a number of seconds")
        return cls(array, device, harm, TRAINER_WEIGHT if weight is None else weight, after, duration)

    def undone(self) -> Injection:
        """Return the fault that ends this one."""
        return replace(self, harm=_UNDONE_BY[self.harm], weight=0)


def inject_fault(injection: Injection, paths: Paths, progress: Progress) -> InjectReport:
    """Inject one fault; with a duration, wait and end it again, also if interrupted meanwhile.

    Raises:
        ConfigurationError: there is no such array or device.
        DeviceError: the device does not run, or could not do it.
        EnvironmentUnfit: the fault needs a run, and none is going on.
    """
    site = _Site.find(injection, paths)
    if injection.after_seconds:
        _wait(injection.after_seconds, f"wait {injection.after_seconds:g} s", progress)
    report = site.inject(injection, progress)
    if injection.duration_seconds is None:
        return report
    undone = injection.undone()
    try:
        _wait(injection.duration_seconds, f"{report.detail}, for {injection.duration_seconds:g} s", progress)
    finally:
        with INTERRUPTS.deferred():
            ended = site.inject(undone, progress)
    return msgspec.structs.replace(report, detail=f"{report.detail}; then {ended.detail}")


def _wait(seconds: float, why: str, progress: Progress) -> None:
    progress.stage(why)
    threading.Event().wait(seconds)
    progress.stage("")


class _Site:
    """One device of an array that is up: where it is, and who can act on it."""

    def __init__(self, state: ArrayState, device: DeviceState, paths: Paths) -> None:
        self._state, self._device, self._paths = state, device, paths
        self._config = parse_config(state.config, ArrayConfig, STATE_FILE)
        self._folder = paths.arrays / self._config.name
        self._control = paths.control(self._config.name)

    @classmethod
    def find(cls, injection: Injection, paths: Paths) -> _Site:
        """Return the site of a fault.

        Raises:
            ConfigurationError: there is no such array or device.
        """
        if (state := ArrayState.load(paths.arrays / injection.array)) is None:
            up = [path.parent.name for path in paths.arrays.glob(f"*/{STATE_FILE}")]
            raise ConfigurationError(f"array {injection.array!r} is not up; {_choice(injection.array, sorted(up))}")
        if injection.device not in (names := {device.name: device for device in state.devices}):
            raise ConfigurationError(
                f"array {injection.array!r} has no device {injection.device!r}; {_choice(injection.device, names)}"
            )
        return cls(state, names[injection.device], paths)

    def inject(self, injection: Injection, progress: Progress) -> InjectReport:
        """Inject one fault (see `inject_fault`)."""
        harm = injection.harm
        with contextlib.closing(make_engine(self._config, self._paths)) as engine:
            if harm is Fault.REVIVE:
                return self._report(harm, *self._revive(engine, progress))
            if harm in faults_of(engine, self._plan.device):
                return self._report(harm, *self._act(engine, harm))
        when = "at once" if harm in (Fault.CUT, Fault.HEAL) else "when it is given its next task"
        progress.stage(f"{self._device.name}: {harm}, {when}")
        try:
            detail = ask(self._control, ControlRequest(self._device.name, harm, injection.weight))
        except NoRun as error:
            raise EnvironmentUnfit(
                f"{harm} is done by the run on array {self._config.name!r}, and none is going on ({error}); start one"
            ) from error
        progress.stage("")
        return self._report(harm, detail, True)

    def _act(self, engine: Engine, fault: Fault) -> tuple[str, bool]:
        """Have the engine do it. The run is told before: what it sees next shall have its cause on record."""
        if (handle := engine.find(self._plan)) is None:
            name = self._device.name
            raise DeviceError(
                f"{name} does not run, so {fault.value} cannot be done to it; "
                f"csd-emu inject {self._config.name} {name} revive starts it again"
            )
        told = self._tell(fault, fault.value)
        try:
            engine.inject(handle, fault)
        except CsdError as error:
            self._tell(fault, f"{fault.value} was not done: {error}")
            raise
        return fault.value, told

    def _revive(self, engine: Engine, progress: Progress) -> tuple[str, bool]:
        """Start the dead device as a new incarnation of itself."""
        name = self._device.name
        self._check_dead(engine)
        engine.prepare(progress)
        progress.stage(f"start {name} again")
        with devices_held(self._folder / DEVICES), INTERRUPTS.deferred():
            if (state := ArrayState.load(self._folder)) is None or state.run != self._state.run:
                raise DeviceError(f"array {self._config.name!r} has ended meanwhile")
            self._check_dead(engine)
            incarnation = _raise_incarnation(self._plan, state)
            state.with_incarnation(name, incarnation).save(self._folder)
            detail = f"revive: incarnation {incarnation}"
            told = self._tell(Fault.REVIVE, detail)
            engine.start(self._plan)
        progress.stage("")
        return detail, told

    def _check_dead(self, engine: Engine) -> None:
        if engine.find(self._plan) is not None:
            raise DeviceError(f"{self._device.name} runs, so it cannot be revived; kill it first, or thaw or heal it")

    @property
    def _plan(self) -> DevicePlan:
        device = next(each for each in self._config.list_nodes() if each.name == self._device.name)
        folder = self._folder / DEVICES / device.name
        return DevicePlan(
            self._config.name, self._state.run, device, folder, folder / SHARD_FILE, folder / IDENTITY_FILE
        )

    def _tell(self, harm: Fault, note: str) -> bool:
        """Have a run that is going on write this down; return whether there is one."""
        try:
            ask(self._control, ControlRequest(self._device.name, harm, note=note))
        except NoRun:
            return False
        return True

    def _report(self, harm: Fault, detail: str, recorded: bool) -> InjectReport:
        return InjectReport(self._config.name, self._device.name, harm.value, detail, recorded)


def _raise_incarnation(plan: DevicePlan, state: ArrayState) -> int:
    """Write the device's identity anew, one incarnation on, and return this.

    The file comes into the device's folder by its name alone: the folder may belong to the user of the emulator, who
    could otherwise have it written somewhere else.
    """
    identity = read_identity(plan.identity)
    known = next(device.incarnation for device in state.devices if device.name == plan.device.name)
    incarnation = max(identity.incarnation, known) + 1
    if plan.device.engine == REMOTE:  # its agent counts restarts of its own: see `first_incarnations`
        incarnation = max(incarnation, int(time.time()))
    fresh = msgspec.structs.replace(
        identity, incarnation=incarnation, unix_seconds=time.time(), entropy=secrets.token_bytes(ENTROPY_BYTES)
    )
    aside = plan.folder.parent / f".{plan.device.name}.{IDENTITY_FILE}"
    write_identity(aside, fresh)
    aside.replace(plan.identity)
    return incarnation


def _choice(wrong: str, right: Iterable[str]) -> str:
    """Return a hint: the nearest right word, else all of them."""
    names = [str(name) for name in right]
    return hint_at(wrong, names, f"there are: {', '.join(names)}" if names else "none is; csd-emu up starts one")
