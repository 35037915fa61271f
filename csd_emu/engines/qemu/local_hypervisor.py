"""csd-emu's own session daemon: it is given files of this machine, and ends with the last machine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import libvirt
import psutil

from csd_emu.config.hypervisors import HypervisorSection
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.engines.engine_protocol import DevicePlan, Handle
from csd_emu.engines.qemu.domain_xml import IDENTITY_BUS, SHARD_BUS, DomainSpec, HostPort, Tag, domain_xml
from csd_emu.engines.qemu.host_address import advertised
from csd_emu.engines.qemu.hypervisor import Hypervisor, destroy, prepared
from csd_emu.engines.qemu.libvirt_daemon import SessionDaemon
from csd_emu.engines.qemu.qemu_monitor import Monitor
from csd_emu.engines.qemu.template import Template, TemplateStore, template_spec
from csd_emu.engines.qemu.vm_scheduling import SHARED, Need, Offer
from csd_emu.image import Image, ImageStore
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_emu.util.qemu_tools import QemuTools, find_qemu, make_overlay
from firmware_agent.common.errors import DeviceError, EnvironmentUnfit
from firmware_agent.common.handover import IDENTITY_SERIAL, SHARD_SERIAL
from firmware_agent.common.identity import read_identity

CLONE_SECONDS = 120.0
# No drive is as small as a small shard; what the archive does not fill is a hole in its file.
MIN_NAMESPACE_BYTES = 64 << 20


class LocalSite(Hypervisor):
    """The hypervisor behind ``qemu:///session``."""

    def __init__(
        self,
        name: str,
        section: HypervisorSection,
        paths: Paths,
        memory_bytes: int,
        plugin: CyclePlugin | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        """Find QEMU and libvirt; nothing is connected yet. Machines load `plugin`, which counts their cycles.

        Their image has `packages` beside the recipe's.

        Raises:
            EnvironmentUnfit: something is missing. Where the session daemon runs already, QEMU may be: then it is said
                when a machine is to be started.
        """
        super().__init__(name, section, "")
        self._daemon = SessionDaemon(paths)
        try:
            find_qemu()
        except EnvironmentUnfit:
            if not self._daemon.answers:  # where one does, machines can be watched and ended without QEMU's programs
                raise
        self._memory_bytes, self._plugin = memory_bytes, plugin
        self._images, self._template_folder = ImageStore(paths.images, packages=packages), paths.templates
        self._folder = paths.state
        self._connection: libvirt.virConnect | None = None
        self._lock = threading.Lock()
        self._ready: tuple[Image, Template] | None = None

    def connection(self) -> libvirt.virConnect:
        """Return the connection; the daemon is started if need be."""
        with self._lock:
            if self._connection is None:
                self._connection = self._daemon.connect()
            return self._connection

    def free(self) -> Offer:
        """Return what this machine has free; the daemon is not asked."""
        existing = next(path for path in (self._folder, *self._folder.parents) if path.exists())
        memory, disk = psutil.virtual_memory().available, shutil.disk_usage(existing).free
        image = self._images.describe()
        there = image.directory.is_dir() and self._templates.exists(image, self._memory_bytes)
        return Offer(os.cpu_count() or 1, memory, disk, shared=Need(SHARED.memory_bytes, 0.0) if there else SHARED)

    def prepare(self, image: Image, progress: Progress) -> None:
        """Make the template, if it is not there."""
        if not self._templates.exists(image, self._memory_bytes):
            self._images.verify(image, contents=True)
        self._ready = image, self._templates.ensure(self.connection(), image, self._memory_bytes, progress)

    def start(self, plan: DevicePlan) -> Handle:
        """Clone the template, then plug in the device's two namespaces."""
        image, template = prepared(self._ready)
        host = HostPort(advertised(self.section), read_identity(plan.identity).port)
        spec = clone_spec(plan, image, template, self._memory_bytes, find_qemu(), host)
        self._daemon.open_to(plan.folder)
        for path in (spec.disk, plan.console):
            path.unlink(missing_ok=True)
        if plan.shard.stat().st_size < MIN_NAMESPACE_BYTES:
            os.truncate(plan.shard, MIN_NAMESPACE_BYTES)
        make_overlay(find_qemu(), spec.disk, template.disk, "qcow2")
        if self._plugin is not None:
            spec = dataclasses.replace(spec, plugin=self._plugin.options(plan.marks))
            plan.marks.unlink(missing_ok=True)
            plan.marks.touch(0o600)
            self._daemon.give(plan.marks)
        for path in (spec.disk, plan.shard, plan.identity):
            self._daemon.give(path)
        try:
            domain = self.connection().createXML(domain_xml(spec), libvirt.VIR_DOMAIN_START_PAUSED)
        except libvirt.libvirtError as error:
            raise DeviceError(f"{plan.device.name}: libvirt could not start it: {error}") from error
        try:
            awaken(domain, plan.device.name, template.state, plan.identity, plan.shard)
        except (libvirt.libvirtError, DeviceError) as error:
            destroy(domain)
            raise DeviceError(f"{plan.device.name}: the clone did not come to life: {error}") from error
        return Handle(plan, spec.name)

    def domain_name(self, plan: DevicePlan) -> str:
        """Return libvirt's name of a device."""
        return domain_name(plan)

    def close(self) -> None:
        """Close the connection; end the daemon if it has nothing left to do."""
        idle = True
        if self._connection is not None:
            with contextlib.suppress(libvirt.libvirtError):
                idle = self._connection.numOfDomains() == 0
                self._connection.close()
        self._connection = None
        self._daemon.release(idle)

    @property
    def _templates(self) -> TemplateStore:
        return TemplateStore(self._template_folder, find_qemu(), self._daemon)


def awaken(
    domain: libvirt.virDomain, name: str, state: Path, identity: Path, shard: Path, shard_format: str = "raw"
) -> None:
    """Give a clone that waits the template's device state, have it run, and plug in its two namespaces.

    Raises:
        DeviceError: QEMU refused.
    """
    monitor = Monitor(domain)
    monitor.load_state(str(state), Deadline(CLONE_SECONDS))
    domain.resume()
    monitor.plug_namespace(str(identity), f"{IDENTITY_SERIAL}{name}", IDENTITY_BUS)
    monitor.plug_namespace(str(shard), f"{SHARD_SERIAL}{name}", SHARD_BUS, shard_format)


def domain_name(plan: DevicePlan) -> str:
    """Return libvirt's name of one drive on this machine."""
    return f"csd-{plan.array}-{plan.device.name}"


def clone_spec(
    plan: DevicePlan, image: Image, template: Template, memory_bytes: int, tools: QemuTools, host: HostPort
) -> DomainSpec:
    """Return the domain of one drive: the template's, whose memory it shares, but for what is its own."""
    return dataclasses.replace(
        template_spec(template, image, memory_bytes, tools),
        name=domain_name(plan),
        tag=Tag(plan.array, plan.run, plan.device.name),
        disk=plan.folder / "disk.qcow2",
        clone=True,
        host=host,
    )
