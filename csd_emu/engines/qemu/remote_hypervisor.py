"""Any other hypervisor: nothing is assumed of it but libvirt, and all files are volumes of a storage pool there."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

import libvirt

from csd_emu.config.hypervisors import HypervisorSection
from csd_emu.engines.engine_protocol import DevicePlan, Handle
from csd_emu.engines.qemu.connection import open_hypervisor
from csd_emu.engines.qemu.domain_xml import DomainSpec, HostPort, Tag, domain_xml
from csd_emu.engines.qemu.host_address import advertised
from csd_emu.engines.qemu.hypervisor import Hypervisor, destroy, prepared
from csd_emu.engines.qemu.local_hypervisor import MIN_NAMESPACE_BYTES, awaken
from csd_emu.engines.qemu.remote_template import RemoteFiles, RemoteTemplates, bring_image, describe
from csd_emu.engines.qemu.storage_pool import Owner, Pool
from csd_emu.engines.qemu.vm_scheduling import SHARED, Need, Offer
from csd_emu.engines.qemu.volume_transfer import Digests
from csd_emu.image import Image
from csd_emu.util.progress import Progress, Silent
from csd_emu.util.qemu_tools import OLDEST_QEMU, PINNED_MACHINE, QemuTools
from firmware_agent.common.errors import CsdError, DeviceError, EnvironmentUnfit
from firmware_agent.common.identity import read_identity

ARCHITECTURE = "aarch64"
_REMEDY = "install QEMU for ARM there (Debian: qemu-system-arm), {} or newer"


def read_qemu(capabilities: str) -> QemuTools:
    """Return the emulator for ARM, from the XML of libvirt's capabilities.

    QEMU has a machine type of its own version, so the newest one says how old it is: libvirt's own answer is about the
    emulator of the hypervisor's architecture, which need not even be installed.

    Raises:
        EnvironmentUnfit: there is none, or it is too old.
    """
    remedy = _REMEDY.format(_dotted(OLDEST_QEMU))
    guests = ElementTree.fromstring(capabilities).findall("guest/arch/domain[@type='qemu']/..")
    if not (arms := [arch for arch in guests if arch.get("name") == ARCHITECTURE]):
        has = ", ".join(sorted({arch.get("name", "") for arch in guests})) or "none"
        raise EnvironmentUnfit(f"has no QEMU for {ARCHITECTURE} guests (it has: {has}); {remedy}")
    emulator = arms[0].findtext("domain[@type='qemu']/emulator") or arms[0].findtext("emulator") or ""
    machines = {name.text or "" for name in arms[0].iter("machine")}
    versions = [tuple(map(int, name[5:].split("."))) for name in machines if re.fullmatch(r"virt-\d+\.\d+", name)]
    if (newest := max(versions, default=(0, 0))) < OLDEST_QEMU:
        raise EnvironmentUnfit(f"has QEMU {_dotted(newest)}, csd-emu needs {_dotted(OLDEST_QEMU)}; {remedy}")
    machine = PINNED_MACHINE if PINNED_MACHINE in machines else f"virt-{_dotted(newest)}"
    return QemuTools(emulator, _dotted(newest), machine, "")


def read_owner(capabilities: str) -> Owner | None:
    """Return user and group under whom QEMU runs, if libvirt gives files to them (model ``dac``)."""
    place = "host/secmodel[model='dac']/baselabel[@type='qemu']"
    for label in ElementTree.fromstring(capabilities).iterfind(place):
        if match := re.fullmatch(r"\+(\d+):\+(\d+)", label.text or ""):
            return Owner(int(match[1]), int(match[2]))
    return None


def confined_by(capabilities: str) -> list[str]:
    """Return the security models that confine QEMU there to the files of a domain's XML: apparmor, selinux."""
    models = ElementTree.fromstring(capabilities).iterfind("host/secmodel/model")
    return [name for model in models if (name := model.text or "") in ("apparmor", "selinux")]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


log = logging.getLogger(__name__)
# How often a transfer that breaks is taken up again in one command.
_ATTEMPTS = 3
# One that could not be reached is not tried again at once: others wait for the answer.
_RETRY_SECONDS = 15.0
_KIBIBYTE = 1 << 10
_PARTS = ("disk.qcow2", "shard.qcow2", "identity")


class RemoteSite(Hypervisor):
    """A hypervisor elsewhere, or one on this machine that is not csd-emu's own."""

    def __init__(self, name: str, section: HypervisorSection, server: str, memory_bytes: int) -> None:
        """Connect to nothing yet; `server` tells this host's domains and files from those of others."""
        super().__init__(name, section, hashlib.sha256(server.encode()).hexdigest()[:8])
        self._memory_bytes = memory_bytes
        self._connection: libvirt.virConnect | None = None
        self._failure: tuple[float, EnvironmentUnfit] | None = None
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._ready: tuple[QemuTools, str, RemoteFiles] | None = None
        self._known: tuple[libvirt.virConnect, Pool] | None = None
        self._interrupted = threading.Event()

    def connection(self) -> libvirt.virConnect:
        """Return a connection that was alive a moment ago."""
        with self._lock:
            if self._connection is not None and self._connection.isAlive():
                return self._connection
            if self._failure is not None and time.monotonic() - self._failure[0] < _RETRY_SECONDS:
                raise self._failure[1]
            self._drop()
            try:
                self._connection = open_hypervisor(self.section.uri)
            except EnvironmentUnfit as error:
                self._failure = time.monotonic(), error
                raise
            self._failure = None
            return self._connection

    def free(self) -> Offer:
        """Return what libvirt says is free there; the disk's is unknown until there is a pool."""
        with self._explained():
            connection = self.connection()
            read_qemu(connection.getCapabilities())
            memory = connection.getMemoryStats(libvirt.VIR_NODE_MEMORY_STATS_ALL_CELLS)
            free = sum(memory.get(key, 0) for key in ("free", "buffers", "cached")) * _KIBIBYTE
            disk, there = self._disk(connection)
            shared = Need(SHARED.memory_bytes, 0.0) if there else SHARED
            return Offer(int(connection.getInfo()[2]), free, disk, shared=shared)

    def prepare(self, image: Image, progress: Progress) -> None:
        """Have the image there, and boot the template there; a transfer that breaks is gone on with."""
        with self._explained():
            for attempt in range(_ATTEMPTS):
                try:
                    self._prepare(image, progress)
                    return
                except libvirt.libvirtError as error:
                    if attempt + 1 == _ATTEMPTS or self._alive():
                        raise
                    log.warning("hypervisor %s: %s; connecting again", self.name, error)
                    with self._lock:
                        self._drop()

    def start(self, plan: DevicePlan) -> Handle:
        """Clone the template, then plug in the device's two namespaces."""
        state = prepared(self._ready)[2].state
        try:
            pool = self._pool()
            spec = self._make_files(pool, plan)
            domain = self.connection().createXML(domain_xml(spec), libvirt.VIR_DOMAIN_START_PAUSED)
        except (libvirt.libvirtError, CsdError) as error:
            self._remove_files(plan)
            raise DeviceError(f"{plan.device.name}: hypervisor {self.name} could not start it: {error}") from error
        try:
            files = {part: pool.path(self._file(plan, part)) for part in _PARTS}
            awaken(domain, plan.device.name, state, files["identity"], files["shard.qcow2"], "qcow2")
        except (libvirt.libvirtError, DeviceError) as error:
            with contextlib.suppress(libvirt.libvirtError, DeviceError):
                destroy(domain)
            self._remove_files(plan)
            raise DeviceError(
                f"{plan.device.name}: the clone did not come to life on hypervisor {self.name}: {error}"
            ) from error
        return Handle(plan, spec.name)

    def domain_name(self, plan: DevicePlan) -> str:
        """Return libvirt's name of a device; no other host has the same."""
        return f"csd-{self.server}-{plan.array}-{plan.device.name}"

    def interrupt(self) -> None:
        """Have `prepare`, in another thread, end as soon as it can; what it has not finished it removes."""
        self._interrupted.set()

    def arrays(self) -> set[str]:
        """Return the arrays of which a machine or a file is there."""
        found = super().arrays()
        with contextlib.suppress(libvirt.libvirtError, EnvironmentUnfit):
            if (pool := Pool.look(self.connection(), self.section.pool_path)) is not None:
                begin = f"csd.{self.server}."
                found |= {name.split(".")[2] for name in pool.names() if name.startswith(begin)}
        return found

    def sweep(self, array: str) -> list[str]:
        """End the array's machines, then remove its files, the shards among them: they are its users' records."""
        ended = super().sweep(array)
        with self._explained():
            if (pool := Pool.look(self.connection(), self.section.pool_path)) is not None:
                for name in pool.names():
                    if name.startswith(f"csd.{self.server}.{array}."):
                        pool.remove(name)
        return ended

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _prepare(self, image: Image, progress: Progress) -> None:
        connection = self.connection()
        tools = read_qemu(connection.getCapabilities())
        pool, part = self._pool(), _Named(progress, self.name, self._interrupted)
        if self.section.system and (models := confined_by(connection.getCapabilities())):
            log.warning(
                "hypervisor %s: %s confines QEMU to the files of a domain's XML, and a drive has others; if it does "
                "not start, use a session URI there (csd-emu docs hypervisors)",
                *(self.name, " and ".join(models)),
            )
        names = bring_image(pool, image, part)
        files = RemoteTemplates(pool, tools, self._memory_bytes).ensure(
            connection, names, image.cmdline, part, part.check
        )
        self._ready = tools, image.cmdline, files

    def _make_files(self, pool: Pool, plan: DevicePlan) -> DomainSpec:
        """Make the device's own files there and return its domain."""
        tools, cmdline, template = prepared(self._ready)
        shard = self._bring_shard(pool, plan)
        for part in _PARTS:
            pool.remove(self._file(plan, part))
        if (base := pool.find(template.disk.name)) is None:
            raise DeviceError(f"the template's disk {template.disk} was removed there")
        names = {part: self._file(plan, part) for part in _PARTS}
        pool.make(names["disk.qcow2"], base.capacity_bytes, (template.disk, "qcow2"))
        pool.make(names["shard.qcow2"], shard[1], (pool.path(shard[0]), "raw"))
        pool.write_small(names["identity"], plan.identity.read_bytes())
        return DomainSpec(
            name=self.domain_name(plan),
            tag=Tag(plan.array, plan.run, plan.device.name, self.server),
            emulator=tools.emulator,
            machine=tools.machine,
            memory_bytes=self._memory_bytes,
            kernel=template.kernel,
            initrd=template.initrd,
            cmdline=cmdline,
            disk=pool.path(names["disk.qcow2"]),
            ram=template.ram,
            clone=True,
            host=HostPort(advertised(self.section), read_identity(plan.identity).port),
        )

    def _bring_shard(self, pool: Pool, plan: DevicePlan) -> tuple[str, int]:
        """Have the shard there, once for all of the array's drives that hold the same; return its name and size."""
        size = max(plan.shard.stat().st_size, MIN_NAMESPACE_BYTES)
        digests = Digests.of(plan.shard, size)
        name = f"csd.{self.server}.{plan.array}..shard.{digests.sha256}"
        with self._sending:
            if not pool.holds(name, digests.sha256):
                log.info("%s: %s", name, describe(pool.bring(name, plan.shard, digests, Silent().advance)))
        return name, size

    def _remove_files(self, plan: DevicePlan) -> None:
        with contextlib.suppress(libvirt.libvirtError, CsdError):
            pool = self._pool()
            for part in _PARTS:
                pool.remove(self._file(plan, part))

    def _file(self, plan: DevicePlan, part: str) -> str:
        return f"csd.{self.server}.{plan.array}.{plan.device.name}.{part}"

    def _pool(self) -> Pool:
        connection = self.connection()
        known = self._known
        if known is None or known[0] is not connection:
            owner = read_owner(connection.getCapabilities()) if self.section.system else None
            self._known = known = connection, Pool.open(connection, self.section.pool_path, owner)
        return known[1]

    def _disk(self, connection: libvirt.virConnect) -> tuple[float | None, bool]:
        """Return the free space of the pool, and whether image and template are there."""
        if (pool := Pool.look(connection, self.section.pool_path)) is None:
            return None, False
        return float(pool.free_bytes), any(name.startswith("csd-template.") for name in pool.names())

    def _alive(self) -> bool:
        connection = self._connection
        with contextlib.suppress(libvirt.libvirtError):
            return connection is not None and bool(connection.isAlive())
        return False

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(libvirt.libvirtError):
                self._connection.close()
        self._connection = None

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Name the hypervisor in errors."""
        try:
            yield
        except libvirt.libvirtError as error:
            raise EnvironmentUnfit(f"hypervisor {self.name}: {error}; see libvirt's log there") from error
        except EnvironmentUnfit as error:
            if self.section.uri in str(error):
                raise
            raise EnvironmentUnfit(f"hypervisor {self.name}: {error}") from error


class _Named:
    """A `Progress` whose stages begin with a hypervisor's name; work that reports to it ends when it is interrupted."""

    def __init__(self, progress: Progress, name: str, interrupted: threading.Event) -> None:
        self._progress, self._name, self._interrupted = progress, name, interrupted

    def stage(self, text: str) -> None:
        self.check()
        self._progress.stage(f"{self._name}: {text}")

    def advance(self, fraction: float) -> None:
        self.check()
        self._progress.advance(fraction)

    def check(self) -> None:
        if self._interrupted.is_set():
            raise DeviceError(f"hypervisor {self._name}: interrupted")
