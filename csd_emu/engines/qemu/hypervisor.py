"""A hypervisor as the engine uses it: its domains, which are alike everywhere, and its files, which are not."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TypeVar

import libvirt

from csd_emu.config.hypervisors import HypervisorSection
from csd_emu.engines.engine_protocol import DevicePlan, Handle
from csd_emu.engines.qemu.domain_xml import Tag, read_tag
from csd_emu.engines.qemu.libvirt_daemon import calling_libvirt
from csd_emu.engines.qemu.qemu_monitor import Monitor, keep
from csd_emu.engines.qemu.template import TEMPLATE_ARRAY
from csd_emu.engines.qemu.vm_scheduling import DRIVE, SHARED, Need, Offer
from csd_emu.image import Image
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import DeviceError

T = TypeVar("T")
_NO_DOMAIN = libvirt.VIR_ERR_NO_DOMAIN


class Hypervisor(ABC):
    """One hypervisor.

    Attributes:
        name: what it is called.
        section: what the array file says of it.
        server: which of its domains are ours: those whose tag has this server.
    """

    def __init__(self, name: str, section: HypervisorSection, server: str) -> None:
        """Connect to nothing yet."""
        self.name, self.section, self.server = name, section, server

    @abstractmethod
    def connection(self) -> libvirt.virConnect:
        """Return a connection that works.

        Raises:
            EnvironmentUnfit: there is none.
        """

    @abstractmethod
    def free(self) -> Offer:
        """Return what is free there.

        Raises:
            CsdError: it cannot be asked.
        """

    @abstractmethod
    def prepare(self, image: Image, progress: Progress) -> None:
        """Have image and template there.

        Raises:
            CsdError: it cannot be done.
        """

    @abstractmethod
    def start(self, plan: DevicePlan) -> Handle:
        """Start one device (see `Engine.start`)."""

    @abstractmethod
    def domain_name(self, plan: DevicePlan) -> str:
        """Return libvirt's name of a device."""

    @abstractmethod
    def close(self) -> None:
        """Give back the connection."""

    def fetch_console(self, plan: DevicePlan, domain: libvirt.virDomain) -> None:
        """Append what the device's console has said since to the plan's own file, of which the end is kept."""
        with contextlib.suppress(DeviceError, OSError):  # it ends at this moment; its folder goes
            if data := Monitor(domain).read_console():
                keep(plan.console, data)

    def interrupt(self) -> None:
        """Have `prepare`, in another thread, end as soon as it can; what it has not finished it removes."""
        return

    def offer(self, running: int) -> Offer:
        """Return what there is for drives beside the `running` ones: the array file's figures, else what is free."""
        section, free = self.section, self.free()
        return Offer(
            cores=section.cores or free.cores,
            memory_bytes=_rest(section.memory, running * DRIVE.memory_bytes, free.memory_bytes),
            disk_bytes=_rest(section.disk, running * DRIVE.disk_bytes, free.disk_bytes),
            cores_bind=section.cores is not None,
            shared=SHARED if section.disk is not None else Need(free.shared.memory_bytes, free.shared.disk_bytes),
        )

    def domain(self, plan: DevicePlan) -> libvirt.virDomain | None:
        """Return the running domain of a device.

        Raises:
            DeviceError: libvirt does not answer.
        """
        try:
            domain = self.connection().lookupByName(self.domain_name(plan))
            return domain if domain.isActive() else None
        except libvirt.libvirtError as error:
            if error.get_error_code() == _NO_DOMAIN:
                return None
            raise DeviceError(f"{plan.device.name}: libvirt does not answer: {error}") from error

    def tagged(self) -> list[tuple[libvirt.virDomain, Tag]]:
        """Return every domain of ours.

        Raises:
            EnvironmentUnfit: libvirt does not answer.
        """
        return [(domain, tag) for domain, tag in self._tagged() if tag.server == self.server]

    def arrays(self) -> set[str]:
        """Return the arrays of which something is there."""
        return {tag.array for _, tag in self.tagged()} - {TEMPLATE_ARRAY}

    def devices(self, array: str) -> list[str]:
        """Return the devices of an array that exist."""
        return [tag.device for _, tag in self.tagged() if tag.array == array]

    def sweep(self, array: str) -> list[str]:
        """End every device of the array, remove its files, and return their names."""
        found = [(domain, tag) for domain, tag in self.tagged() if tag.array == array]
        for domain, _ in found:
            destroy(domain)
        return [tag.device for _, tag in found]

    def _tagged(self) -> Iterator[tuple[libvirt.virDomain, Tag]]:
        connection = self.connection()
        with calling_libvirt(f"list the domains of {self.section.uri}"):
            domains = connection.listAllDomains()
        for domain in domains:
            with contextlib.suppress(libvirt.libvirtError):  # it ended meanwhile
                if (tag := read_tag(domain.XMLDesc())) is not None:
                    yield domain, tag


def destroy(domain: libvirt.virDomain) -> None:
    """End a domain; one that is gone already is a success.

    Raises:
        DeviceError: libvirt could not.
    """
    try:
        domain.destroy()
    except libvirt.libvirtError as error:
        if error.get_error_code() not in (_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
            raise DeviceError(f"{domain.name()}: libvirt could not end it: {error}") from error


def prepared(ready: T | None) -> T:
    """Return what `Hypervisor.prepare` has left."""
    if ready is None:
        raise DeviceError("the qemu engine was not prepared; call prepare first")
    return ready


def _rest(declared: float | None, taken: float, free: float | None) -> float | None:
    return free if declared is None else declared - taken
