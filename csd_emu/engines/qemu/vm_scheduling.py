"""Assignment of drives to hypervisors. Pure: numbers and names in, names out.

All emulated drives of an array need the same, so a hypervisor's room is a number of drives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from csd_emu.config.hypervisors import Spread
from firmware_agent.common.units import format_bytes


@dataclass(frozen=True)
class Need:
    """What something takes of a machine: bytes of its memory and of its disk."""

    memory_bytes: float
    disk_bytes: float


# `bench memory` counts 140 MB of private memory per drive that trains the quickstart's model; a larger one takes more.
# On disk: a namespace of 64 MiB at least, and what the guest writes to its root file system.
DRIVE = Need(192 << 20, 256 << 20)
# What clones share: the pages of the template's RAM that were written (440 MB), image and template on disk.
SHARED = Need(512 << 20, 1536 << 20)


@dataclass(frozen=True)
class Offer:
    """What a hypervisor has for drives.

    Attributes:
        cores: each runs one drive at full speed, as an emulated drive computes in one thread.
        memory_bytes, disk_bytes: what may be taken; None: nobody knows.
        cores_bind: whether there may be no more drives than cores; else they are only slower then.
        shared: what the first drive there needs beside its own; less if image and template are there already.
    """

    cores: int
    memory_bytes: float | None = None
    disk_bytes: float | None = None
    cores_bind: bool = False
    shared: Need = SHARED

    def fits(self) -> dict[str, float]:
        """Return resource -> how many drives it is enough for: ``cores``, ``memory`` and ``disk``."""
        return {
            "cores": float(self.cores) if self.cores_bind else math.inf,
            "memory": _times(self.memory_bytes, self.shared.memory_bytes, DRIVE.memory_bytes),
            "disk": _times(self.disk_bytes, self.shared.disk_bytes, DRIVE.disk_bytes),
        }

    def room(self) -> float:
        """Return how many drives fit, perhaps infinitely many."""
        return min(self.fits().values())


@dataclass(frozen=True)
class Placement:
    """Where each device goes.

    Attributes:
        where: device -> hypervisor.
        unplaced: devices for which there is no room anywhere.
    """

    where: dict[str, str]
    unplaced: tuple[str, ...] = ()

    def on(self, hypervisor: str) -> list[str]:
        """Return the devices on one hypervisor."""
        return [device for device, name in self.where.items() if name == hypervisor]


class PlannedHypervisor(msgspec.Struct, frozen=True):
    """One hypervisor of `csd-emu up --plan`.

    `memory_bytes` and `disk_bytes` are what drives may take there, null if nobody knows; `cores_bind` says that there
    may be no more drives than cores, `room` how many more fit, null without a limit. `problem`: why it cannot be used.
    """

    name: str
    uri: str
    cores: int
    memory_bytes: float | None
    disk_bytes: float | None
    cores_bind: bool
    room: int | None
    devices: list[str]
    problem: str

    @classmethod
    def of(cls, name: str, uri: str, offer: Offer | None, devices: list[str], problem: str) -> PlannedHypervisor:
        """Return what is planned for a hypervisor with this `offer`, None of one that does not answer."""
        offer = offer or Offer(cores=0)
        room = offer.room() - len(devices)
        return cls(
            name=name,
            uri=uri,
            cores=offer.cores,
            memory_bytes=offer.memory_bytes,
            disk_bytes=offer.disk_bytes,
            cores_bind=offer.cores_bind,
            room=None if math.isinf(room) else max(0, int(room)),
            devices=devices,
            problem=problem,
        )


class VmScheduleReport(msgspec.Struct, frozen=True):
    """`csd-emu up --plan`: where the drives would go; `unplaced` ones would go nowhere, with what is wrong.

    `homeless` is the former name of `unplaced`; the next release is without it.
    """

    array: str
    spread: str
    hypervisors: list[PlannedHypervisor]
    unplaced: dict[str, str]
    homeless: dict[str, str]


def place(
    devices: Sequence[str],
    offers: Mapping[str, Offer],
    spread: Spread,
    there: Mapping[str, str] | None = None,
) -> Placement:
    """Place `devices` in their order.

    ``fill`` gives each hypervisor, in the order of `offers`, a drive for each of its cores, then shares out what is
    left as ``even`` does: each next drive goes to where the fewest drives per core are.

    Args:
        devices: their names.
        offers: hypervisor -> what it has; what devices in `there` take is not in it.
        spread: how.
        there: device -> hypervisor, of devices that run already: they stay, and count as drives of its cores.
    """
    there = there or {}
    counts = {name: sum(on == name for on in there.values()) for name in offers}
    left = {name: offer.room() - (counts[name] if offer.cores_bind else 0) for name, offer in offers.items()}
    where, unplaced = dict(there), []
    for device in (each for each in devices if each not in there):
        free = [name for name in offers if left[name] >= 1]
        unfilled = [name for name in free if counts[name] < offers[name].cores] if spread == "fill" else []
        if not free:
            unplaced.append(device)
            continue
        name = unfilled[0] if unfilled else min(free, key=lambda each: counts[each] / offers[each].cores)
        where[device] = name
        counts[name] += 1
        left[name] -= 1
    return Placement({device: where[device] for device in devices if device in where}, tuple(unplaced))


def describe_shortage(missing: int, offers: Mapping[str, Offer]) -> str:
    """Return what each hypervisor is short of, and by how much, if `missing` more drives were to run there."""
    return "; ".join(f"{name} {_shortage(missing, offer)}" for name, offer in offers.items())


def _shortage(missing: int, offer: Offer) -> str:
    fits = offer.fits()
    scarce = min(fits, key=lambda resource: fits[resource])
    room = fits[scarce]
    if scarce == "cores":
        return f"has {offer.cores} cores for {room:.0f} drives, {missing} too few"
    has, shared, each = (
        (offer.memory_bytes, offer.shared.memory_bytes, DRIVE.memory_bytes)
        if scarce == "memory"
        else (offer.disk_bytes, offer.shared.disk_bytes, DRIVE.disk_bytes)
    )
    lacks = shared + (room + missing) * each - (has or 0.0)
    return f"has {format_bytes(has or 0.0)} of {scarce} for {room:.0f} drives, {format_bytes(lacks)} too little"


def _times(has: float | None, shared: float, each: float) -> float:
    return math.inf if has is None else float(max(0, math.floor((has - shared) / each)))
