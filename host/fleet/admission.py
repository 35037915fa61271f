"""Admission of devices: of calls that have not said hello yet, and the rules for their hello. Pure.

A caller is a device of the array whose certificate counts. All others together are one caller more, whatever name they
come with: they take nothing from a device.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.session_frames import Hello
from firmware_agent.common.wire import PROTOCOL_VERSION
from host.core.device_time import COUNTED, MODELLED, WALL
from host.core.event_budget import EventBudget
from host.fleet.shards import WantedRecords

# Calls that have not said hello yet, and as many that wait for their refusal: of one device, and of all strangers.
MOST_OF_ONE, _MOST_BESIDE = 2, 16
# So many calls of one device are taken at once in a minute; each further one waits.
_FREE_CALLS, _CALL_SECONDS, _MINUTE_SECONDS = 30, 1.0, 60.0
# So many refusals in a row are answered at once; then each waits twice as long as the one before.
_FREE_REFUSALS, _FIRST_SECONDS, _LONGEST_SECONDS = 3, 0.25, 8.0
# After so long without a refusal all is forgotten.
_FORGET_SECONDS = _MINUTE_SECONDS
STRANGER = ""


@dataclass
class _Refusals:
    """How often a device was refused in a row, and when last."""

    count: int = 0
    last_seconds: float = 0.0


class Admission:
    """Counts calls by caller: a device's name, or `STRANGER`, which any other name is too."""

    def __init__(self, devices: Collection[str], now: Callable[[], float] = time.monotonic) -> None:
        """Begin with nobody at the door; `now` returns monotonic seconds.

        Attributes:
            cut: devices that dial in vain until they are taken out again.
            budget: of log lines on refusals.
        """
        self.cut: set[str] = set()
        self.budget = EventBudget()
        self._devices, self._now = frozenset(devices), now
        self._waiting: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._refusals: dict[str, _Refusals] = {}
        self._calls: Counter[str] = Counter()
        self._begin = now()

    @property
    def most(self) -> int:
        """Calls that may wait at once to say hello; as many may wait for their refusal."""
        return MOST_OF_ONE * len(self._devices) + _MOST_BESIDE

    def enter(self, name: str) -> bool:
        """Count a call that has not said hello, if there is room for it; then `leave` must follow."""
        return self._take(self._waiting, name)

    def leave(self, name: str) -> None:
        """Take back one call of `enter`."""
        self._waiting[self._key(name)] -= 1

    def detain(self, name: str) -> bool:
        """Count a call that waits for its refusal, if there is room for it; then `release` must follow."""
        return self._take(self._refused, name)

    def release(self, name: str) -> None:
        """Take back one call of `detain`."""
        self._refused[self._key(name)] -= 1

    def pace(self, name: str) -> float:
        """Return how many seconds a call waits before its hello is read: none, but of a device that dials too often."""
        if self._now() - self._begin > _MINUTE_SECONDS:
            self._begin = self._now()
            self._calls.clear()
        self._calls[self._key(name)] += 1
        return 0.0 if self._calls[self._key(name)] <= _FREE_CALLS else _CALL_SECONDS

    def refuse(self, name: str) -> float:
        """Note a refused hello; return how many seconds to wait before the device is told."""
        refusals, now = self._refusals.setdefault(self._key(name), _Refusals()), self._now()
        if now - refusals.last_seconds > _FORGET_SECONDS:
            refusals.count = 0
        refusals.count, refusals.last_seconds = refusals.count + 1, now
        beyond = refusals.count - _FREE_REFUSALS
        return 0.0 if beyond <= 0 else min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(beyond - 1, 10))

    def accept(self, name: str) -> None:
        """Note a hello that was accepted."""
        self._refusals.pop(self._key(name), None)

    def _take(self, places: Counter[str], name: str) -> bool:
        key = self._key(name)
        if places[key] >= (_MOST_BESIDE if key == STRANGER else MOST_OF_ONE):
            return False
        places[key] += 1
        return True

    def _key(self, name: str) -> str:
        return name if name in self._devices else STRANGER


# What a drive's stopwatch can show, and how many records a step's indices can name.
CLOCKS = (COUNTED, MODELLED, WALL)
MAX_RECORDS = 1 << 32


@dataclass(frozen=True)
class ExpectedDevice:
    """What a device of this array must show in its hello.

    Attributes:
        incarnation: or a later one.
        manifest_sha256: of the shard that it was given; empty for records in place that nobody has heard of yet.
        records: what records in place must be like; None for a shard.
        samples: how many its shard has; None for records in place that nobody has heard of yet.
        clock: what its stopwatch shows where it runs; None if that is the drive's to say.
    """

    incarnation: int
    manifest_sha256: str
    records: WantedRecords | None = None
    samples: int | None = None
    clock: str | None = None


class HelloRules:
    """What the devices of one array must say; each that was welcomed decides what it may say later."""

    def __init__(self, expected: Mapping[str, ExpectedDevice]) -> None:
        """Take device name -> what its hello must show; any other device is refused."""
        self._expected = dict(expected)
        self._newest = {device: want.incarnation for device, want in expected.items()}
        # The instance of the agent that first came as the newest incarnation: any other is a twin.
        self._instances: dict[str, str] = {}
        # Class names that the first drive with any told: all others' must be the same.
        self._class_names: tuple[str, list[str]] | None = None

    def is_stale(self, device: str, hello: Hello) -> bool:
        """Return whether a newer incarnation of the device was welcomed."""
        return hello.incarnation < self._newest[device]

    def check(self, device: str, hello: Hello) -> None:
        """Return if the hello that came with the certificate of `device` is what this array waits for.

        Raises:
            ProtocolError: it is not; the message says why.
        """
        if (expected := self._expected.get(device)) is None:
            raise ProtocolError(f"{device} is not a device of this array")
        if hello.device != device:
            raise ProtocolError(f"{device}'s certificate came with a hello of {hello.device}")
        if hello.protocol != PROTOCOL_VERSION:
            raise ProtocolError(f"{device} speaks protocol {hello.protocol}, this host {PROTOCOL_VERSION}: upgrade it")
        if self.is_stale(device, hello):
            raise ProtocolError(
                f"{device}: incarnation {hello.incarnation} is stale, {self._newest[device]} has joined"
            )
        if hello.incarnation == self._newest[device] and hello.instance != self._instances.get(device, hello.instance):
            raise ProtocolError(f"{device}: an agent of incarnation {hello.incarnation} has joined before this one")
        _check_dealt(device, hello, expected)
        if expected.records is not None:
            expected.records.check(device, hello.holding)
        if expected.manifest_sha256 not in ("", hello.manifest_sha256):
            what = (
                "another shard than this array was made with"
                if expected.records is None
                else "other records than before"
            )
            raise ProtocolError(f"{device} holds {what}; make the array again")
        names = hello.holding.class_names if hello.holding is not None else []
        if names and self._class_names is not None and self._class_names[1] != names:
            first, theirs = self._class_names
            raise ProtocolError(
                f"{device}'s classes are {', '.join(names)}, those of {first} are {', '.join(theirs)}; give all drives "
                "the same folders, empty ones too, or call folders by class numbers"
            )

    def welcome(self, device: str, hello: Hello) -> None:
        """Remember a device whose hello was accepted: its incarnation, and what it said of records in place."""
        self._newest[device], self._instances[device] = hello.incarnation, hello.instance
        self._expected[device] = replace(
            self._expected[device], manifest_sha256=hello.manifest_sha256, samples=hello.samples, clock=hello.clock
        )
        if self._class_names is None and hello.holding is not None and hello.holding.class_names:
            self._class_names = device, hello.holding.class_names


def _check_dealt(device: str, hello: Hello, expected: ExpectedDevice) -> None:
    """Return if a hello tells of the clock that the drive was given, and of as many records as it was dealt.

    Raises:
        ProtocolError: it does not.
    """
    if hello.clock not in CLOCKS or expected.clock not in (None, hello.clock):
        what = f"one of {', '.join(CLOCKS)}" if expected.clock is None else expected.clock
        raise ProtocolError(f"{device}: its clock is {what}, and it says something else; run the agent as it was given")
    if hello.samples > MAX_RECORDS or expected.samples not in (None, hello.samples):
        what = f"can have {MAX_RECORDS}" if expected.samples is None else f"was dealt {expected.samples}"
        raise ProtocolError(f"{device} says that it holds {hello.samples} records, and {what}; make the array again")
