"""Drives as ARM virtual machines: clones of one template, started through libvirt, disks hot-plugged."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import threading
from collections.abc import Awaitable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import libvirt

from csd_emu.array import QEMU, ArrayConfig, Device
from csd_emu.deadline import Deadline
from csd_emu.engines.base import DevicePlan, Fault, Handle, Surroundings, must_run, wait_for_hello
from csd_emu.image import Image, ImageStore
from csd_emu.paths import Paths
from csd_emu.progress import Progress
from csd_emu.qemu.daemon import SessionDaemon, calling_libvirt
from csd_emu.qemu.domain import IDENTITY_BUS, SHARD_BUS, DomainSpec, Tag, domain_xml, network_card, read_tag
from csd_emu.qemu.monitor import Monitor
from csd_emu.qemu.template import TEMPLATE_ARRAY, Template, TemplateStore, template_spec
from csd_emu.qemu.tools import QemuTools, find_qemu, make_overlay
from firmware_agent.errors import DeviceError, EnvironmentUnfit
from firmware_agent.handover import IDENTITY_SERIAL, SHARD_SERIAL

SESSION_URI = "qemu:///session"
# Under which address QEMU's user networking shows the host's loopback interface.
GATEWAY = "10.0.2.2"
_CLONE_SECONDS = 120.0
_NO_DOMAIN = libvirt.VIR_ERR_NO_DOMAIN
_SPARE_BYTES = 512 << 20
# No drive is as small as a small shard; what the archive does not fill is a hole in its file.
_MIN_NAMESPACE_BYTES = 64 << 20


class QemuEngine:
    """Clones of one template, dealt out over the array's hypervisors in turn."""

    faults = frozenset(Fault)

    def __init__(self, config: ArrayConfig, paths: Paths) -> None:
        """Find QEMU and libvirt; nothing is connected yet.

        Raises:
            EnvironmentUnfit: something is missing. Where the session daemon runs already, QEMU may be: then it is said
                when a machine is to be started.
        """
        for uri in config.hypervisors:
            _check_local(uri)
        self._daemon = SessionDaemon(paths)
        try:
            find_qemu()
        except EnvironmentUnfit:
            if not self._daemon.answers:  # where one does, machines can be watched and ended without QEMU's programs
                raise
        self._uris, self._memory_bytes = config.hypervisors, int(config.memory)
        self._images, self._template_folder = ImageStore(paths.images), paths.templates
        self._folder = paths.state
        self._connections: dict[str, libvirt.virConnect] = {}
        self._lock = threading.Lock()
        self._image: Image | None = None
        self._template: Template | None = None

    def surroundings(self, device: Device) -> Surroundings:
        """Return the instruction-counted clock, and QEMU's user networking."""
        return Surroundings("counted", GATEWAY)

    def hypervisor_of(self, device: Device) -> str | None:
        """Return the host of the URI to which the device is dealt; ``local`` on this machine."""
        return urlsplit(self._uris[device.number % len(self._uris)]).hostname or "local"

    def prepare(self, progress: Progress) -> None:
        """Make the image and the template, if they are not there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self._folder).free < _SPARE_BYTES:
            raise EnvironmentUnfit(f"{self._folder}: less than {_SPARE_BYTES >> 20} MiB are free; free some")
        for uri in self._uris:
            self._connect(uri)
        self._image = self._images.ensure(progress)
        if not self._templates.exists(self._image, self._memory_bytes):
            self._images.verify(self._image, contents=True)
        self._template = self._templates.ensure(self._connect(self._uris[0]), self._image, self._memory_bytes, progress)

    def start(self, plan: DevicePlan) -> Handle:
        """Clone the template, then plug in the device's two namespaces."""
        spec = self._clone_spec(plan)
        template = self._prepared()[1]
        self._reclaim(plan, spec.disk)
        _enlarge(plan.shard)
        make_overlay(find_qemu(), spec.disk, template.disk, "qcow2")
        # The folder last: from then on its new owner can replace what is in it.
        for path in (spec.disk, plan.shard, plan.identity, plan.folder):
            self._daemon.give(path)
        try:
            domain = self._connection_for(plan.device.number).createXML(
                domain_xml(spec), libvirt.VIR_DOMAIN_START_PAUSED
            )
        except libvirt.libvirtError as error:
            raise DeviceError(f"{plan.device.name}: libvirt could not start it: {error}") from error
        try:
            self._awaken(domain, plan, template)
        except (libvirt.libvirtError, DeviceError) as error:
            _destroy(domain)
            raise DeviceError(f"{plan.device.name}: the clone did not come to life: {error}") from error
        return Handle(plan, spec.name)

    def find(self, plan: DevicePlan) -> Handle | None:
        """Return the virtual machine of this name."""
        handle = Handle(plan, domain_name(plan))
        return handle if self.alive(handle) else None

    def alive(self, handle: Handle) -> bool:
        """Return whether the virtual machine exists."""
        return self._domain(handle) is not None

    async def wait_ready(self, handle: Handle, hello: Awaitable[None], deadline: Deadline) -> None:
        """Wait for the agent's greeting (see `Engine.wait_ready`)."""
        await wait_for_hello(self, handle, hello, deadline)

    def inject(self, handle: Handle, fault: Fault) -> None:
        """Kill, pause or resume the virtual machine, or plug its network cable out or in."""
        domain = self._domain(handle)
        if domain is None:
            raise must_run(handle, fault)
        with calling_libvirt(f"{fault.value} {handle.plan.device.name}"):
            if fault in (Fault.CUT, Fault.HEAL):
                Monitor(domain).set_link(network_card(domain.XMLDesc()), up=fault is Fault.HEAL)
            elif fault is Fault.KILL:
                domain.destroy()
            elif fault is Fault.FREEZE:
                domain.suspend()
            elif domain.state()[0] == libvirt.VIR_DOMAIN_PAUSED:
                domain.resume()

    def stop(self, handle: Handle) -> None:
        """End the virtual machine."""
        domain = self._domain(handle)
        if domain is not None:
            _destroy(domain)

    def list_devices(self, array: str) -> list[str]:
        """Return the devices of `array` that exist, by the tags of the domains."""
        return sorted(tag.device for _, tag in self._find(array))

    def list_arrays(self) -> list[str]:
        """Return the arrays of which a virtual machine exists."""
        return sorted({tag.array for _, tag in self._tagged()} - {TEMPLATE_ARRAY})

    def sweep(self, array: str) -> list[str]:
        """End every virtual machine that carries the array's tag."""
        found = self._find(array)
        for domain, _ in found:
            _destroy(domain)
        return sorted(tag.device for _, tag in found)

    def close(self) -> None:
        """Close all connections; end the daemon if it has nothing left to do."""
        idle = True
        for uri, connection in self._connections.items():
            with contextlib.suppress(libvirt.libvirtError):
                idle &= uri != SESSION_URI or connection.numOfDomains() == 0
                connection.close()
        self._connections.clear()
        self._daemon.release(idle)

    def remake_template(self, progress: Progress) -> float:
        """Boot the template anew, even if there is one, and return the wall seconds that it took."""
        image = self._images.ensure(progress)
        self._templates.remove(self._templates.find(image, self._memory_bytes))
        template = self._templates.ensure(self._connect(self._uris[0]), image, self._memory_bytes, progress)
        return float(template.facts["template_seconds"])

    @property
    def image_hash(self) -> str:
        """Hash of the image that the machines of this engine boot."""
        return self._prepared()[0].hash

    def private_bytes(self, handle: Handle) -> int:
        """Return the memory that only this device's QEMU holds, in bytes, from the kernel's smaps_rollup.

        Raises:
            DeviceError: its process cannot be found on this machine.
        """
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"guest={handle.reference}," in (process / "cmdline").read_text():
                    return _private_bytes((process / "smaps_rollup").read_text())
        raise DeviceError(f"{handle.plan.device.name}: its QEMU process is not on this machine")

    def _reclaim(self, plan: DevicePlan, disk: Path) -> None:
        """Take the device's folder back from an earlier life: root must not write where others can plant links."""
        self._daemon.take_back(plan.folder)
        disk.unlink(missing_ok=True)
        for path in (plan.shard, plan.identity):
            if path.is_symlink():
                raise DeviceError(f"{plan.device.name}: {path} was replaced by a link; csd-emu down and up again")

    def _awaken(self, domain: libvirt.virDomain, plan: DevicePlan, template: Template) -> None:
        monitor, name = Monitor(domain), plan.device.name
        monitor.load_state(str(template.state), Deadline(_CLONE_SECONDS))
        domain.resume()
        monitor.plug_namespace(str(plan.identity), f"{IDENTITY_SERIAL}{name}", IDENTITY_BUS)
        monitor.plug_namespace(str(plan.shard), f"{SHARD_SERIAL}{name}", SHARD_BUS)

    def _clone_spec(self, plan: DevicePlan) -> DomainSpec:
        image, template = self._prepared()
        return clone_spec(plan, image, template, self._memory_bytes, find_qemu())

    @property
    def _templates(self) -> TemplateStore:
        return TemplateStore(self._template_folder, find_qemu(), self._daemon)

    def _prepared(self) -> tuple[Image, Template]:
        if self._image is None or self._template is None:
            raise DeviceError("the qemu engine was not prepared; call prepare first")
        return self._image, self._template

    def _connection_for(self, number: int) -> libvirt.virConnect:
        return self._connect(self._uris[number % len(self._uris)])

    def _connect(self, uri: str) -> libvirt.virConnect:
        with self._lock:
            if uri not in self._connections:
                self._connections[uri] = self._daemon.connect() if uri == SESSION_URI else _open(uri)
            return self._connections[uri]

    def _domain(self, handle: Handle) -> libvirt.virDomain | None:
        try:
            domain = self._connection_for(handle.plan.device.number).lookupByName(handle.reference)
            return domain if domain.isActive() else None
        except libvirt.libvirtError as error:
            if error.get_error_code() == _NO_DOMAIN:
                return None
            raise DeviceError(f"{handle.plan.device.name}: libvirt does not answer: {error}") from error

    def _find(self, array: str) -> list[tuple[libvirt.virDomain, Tag]]:
        return [(domain, tag) for domain, tag in self._tagged() if tag.array == array]

    def _tagged(self) -> Iterator[tuple[libvirt.virDomain, Tag]]:
        """Yield every domain of ours on the array's hypervisors."""
        for uri in dict.fromkeys(self._uris):
            connection = self._connect(uri)
            with calling_libvirt(f"list the domains of {uri}"):
                domains = connection.listAllDomains()
            for domain in domains:
                with contextlib.suppress(libvirt.libvirtError):  # it ended meanwhile
                    tag = read_tag(domain.XMLDesc())
                    if tag is not None:
                        yield domain, tag


def domain_name(plan: DevicePlan) -> str:
    """Return libvirt's name of one drive."""
    return f"csd-{plan.array}-{plan.device.name}"


def clone_spec(plan: DevicePlan, image: Image, template: Template, memory_bytes: int, tools: QemuTools) -> DomainSpec:
    """Return the domain of one drive: the template's, whose memory it shares, but for what is its own."""
    return dataclasses.replace(
        template_spec(template, image, memory_bytes, tools),
        name=domain_name(plan),
        tag=Tag(plan.array, plan.run, plan.device.name),
        disk=plan.folder / "disk.qcow2",
        console=plan.console,
        clone=True,
    )


def describe_domains(config: ArrayConfig, paths: Paths) -> dict[str, str]:
    """Return the domain XML of each drive, as `start` would give it to libvirt; nothing is made or started.

    Raises:
        EnvironmentUnfit: QEMU is missing.
    """
    tools, daemon = find_qemu(), SessionDaemon(paths)
    image = ImageStore(paths.images).describe()
    template = TemplateStore(paths.templates, tools, daemon).find(image, int(config.memory))
    xml = {}
    for device in (each for each in config.list_devices() if each.engine == QEMU):
        folder = paths.arrays / config.name / "devices" / device.name
        plan = DevicePlan(config.name, "dry-run", device, folder, folder, folder)
        xml[device.name] = domain_xml(clone_spec(plan, image, template, int(config.memory), tools))
    return xml


def _check_local(uri: str) -> None:
    """Refuse a hypervisor on another machine: image, template and shards are files of this one."""
    host = urlsplit(uri).hostname
    if host not in (None, "localhost", "127.0.0.1", socket.gethostname(), socket.getfqdn()):
        raise EnvironmentUnfit(
            f"hypervisors: {uri} is on {host}; only this machine's hypervisors can be used yet, such as {SESSION_URI}"
        )


def _open(uri: str) -> libvirt.virConnect:
    try:
        connection = libvirt.open(uri)
        if connection.getType() != "QEMU":
            raise EnvironmentUnfit(f"hypervisors: {uri} is {connection.getType()}, not QEMU; use {SESSION_URI}")
        return connection
    except libvirt.libvirtError as error:
        raise EnvironmentUnfit(
            f"hypervisors: {uri} cannot be reached ({error}); correct the URI, or start libvirt there"
        ) from error


def _enlarge(namespace: Path) -> None:
    if namespace.stat().st_size < _MIN_NAMESPACE_BYTES:
        os.truncate(namespace, _MIN_NAMESPACE_BYTES)


def _destroy(domain: libvirt.virDomain) -> None:
    try:
        domain.destroy()
    except libvirt.libvirtError as error:
        if error.get_error_code() not in (_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
            raise DeviceError(f"{domain.name()}: libvirt could not end it: {error}") from error


def _private_bytes(rollup: str) -> int:
    fields = [line.split() for line in rollup.splitlines()]
    return sum(int(field[1]) << 10 for field in fields if field[0] in ("Private_Clean:", "Private_Dirty:"))
