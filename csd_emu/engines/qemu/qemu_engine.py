"""Drives as ARM virtual machines: clones of one template per hypervisor, started through libvirt, disks hot-plugged."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Awaitable, Mapping

import libvirt

from csd_emu.config.array_file import QEMU, ArrayConfig, Device
from csd_emu.config.engine_names import ENGINE
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.engines.engine_protocol import (
    ENGINE_FAULTS,
    DevicePlan,
    Engine,
    Fault,
    Handle,
    HypervisorLost,
    Surroundings,
    must_run,
)
from csd_emu.engines.qemu.domain_xml import NETWORK_CARD, HostPort, domain_xml
from csd_emu.engines.qemu.host_address import LOOPBACK, check_listens
from csd_emu.engines.qemu.hypervisor import Hypervisor, destroy, prepared
from csd_emu.engines.qemu.hypervisor_set import TROUBLE, Sites
from csd_emu.engines.qemu.libvirt_daemon import SessionDaemon, calling_libvirt
from csd_emu.engines.qemu.local_hypervisor import clone_spec
from csd_emu.engines.qemu.qemu_monitor import Monitor
from csd_emu.engines.qemu.template import TemplateStore
from csd_emu.engines.qemu.vm_scheduling import (
    Offer,
    Placement,
    PlannedHypervisor,
    VmScheduleReport,
    describe_shortage,
    place,
)
from csd_emu.image import Image, ImageStore
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress, Shared
from csd_emu.util.qemu_tools import find_qemu
from firmware_agent.common.atomic_files import make_folder
from firmware_agent.common.errors import DeviceError, EnvironmentUnfit
from firmware_agent.common.handover import FAILED_MARKER

_SPARE_BYTES = 512 << 20
# What a start on a hypervisor elsewhere may take, with its shard.
_START_SECONDS = 600.0


@ENGINE.register("qemu", "Each drive is an ARM virtual machine whose clock counts instructions.")
class QemuEngine(Engine):
    """Clones of one template per hypervisor; a hypervisor that fails costs its own devices."""

    faults = ENGINE_FAULTS

    def __init__(self, config: ArrayConfig, paths: Paths, plugin: CyclePlugin | None = None) -> None:
        """Find what is needed on this machine; nothing is connected yet. Machines load `plugin` (calibration alone).

        Raises:
            EnvironmentUnfit: something is missing.
        """
        self._config = config
        self._sites = Sites.make(config, paths, plugin)
        self._images, self._folder = ImageStore(paths.images, packages=config.image.packages), paths.state
        self._image: Image | None = None
        self._lock = threading.Lock()
        # Where devices are placed or were found, and why those that have no place do not.
        self._where: dict[str, str] = {}
        self._unplaced: dict[str, str] = {}

    @classmethod
    def of_array(cls, config: ArrayConfig, paths: Paths) -> QemuEngine:
        """Return the engine of an array."""
        return cls(config, paths)

    def surroundings(self, device: Device) -> Surroundings:
        """Return the instruction-counted clock, and the drive's own loopback, where its only way out begins."""
        return Surroundings("counted", LOOPBACK)

    def hypervisor_of(self, device: Device) -> str | None:
        """Return the name of the hypervisor on which the device is placed or was found; None if it has no place."""
        if (only := self._sites.only) is not None:
            return only.name
        if device.name not in self._where and device.name not in self._unplaced:
            with contextlib.suppress(*TROUBLE):
                self._look(self._config.name)
            self._unplaced.setdefault(device.name, "it was not found")
        return self._where.get(device.name)

    def prepare(self, progress: Progress) -> None:
        """Place the devices, and make image and template where they go, if they are not there."""
        make_folder(self._folder, 0o755)
        if shutil.disk_usage(self._folder).free < _SPARE_BYTES:
            raise EnvironmentUnfit(f"{self._folder}: less than {_SPARE_BYTES >> 20} MiB are free; free some")
        check_listens(self._config)
        if self._unlimited is not None:
            self._unlimited.connection()
            self._where = dict.fromkeys(self._names, self._unlimited.name)
        else:
            progress.stage(f"ask {', '.join(self._sites)} what is free")
            self._place()
        image = self._image = self._images.ensure(progress)
        shared = Shared(progress)
        used = [name for name in self._sites if name in self._where.values()]
        _, problems = self._sites.on_each(used, "prepare", lambda site: site.prepare(image, shared), None)
        self._lose(problems, used)

    def plan(self) -> VmScheduleReport:
        """Return where the devices would go now; nothing is made or started.

        Raises:
            EnvironmentUnfit: there is no room for all of them though all hypervisors answer, or none answers.
        """
        offers, there, problems = self._survey()
        placement, unplaced = self._placed(offers, there, problems)
        planned = [
            PlannedHypervisor.of(
                name, site.section.uri, offers.get(name), placement.on(name), str(problems.get(name, ""))
            )
            for name, site in self._sites.items()
        ]
        return VmScheduleReport(self._config.name, self._config.spread, planned, unplaced, unplaced)

    def start(self, plan: DevicePlan) -> Handle:
        """Clone the template, then plug in the device's two namespaces."""
        if (name := plan.device.name) not in self._where:
            if name in self._unplaced:
                raise HypervisorLost(f"{name}: {self._unplaced[name]}")
            raise DeviceError("the qemu engine was not prepared; call prepare first")
        site = self._sites[self._where[name]]
        try:
            return self._sites.call(site, f"start {name}", lambda: site.start(plan), _START_SECONDS)
        except TROUBLE as error:
            raise self._judged(name, error) from error.__cause__

    def find(self, plan: DevicePlan) -> Handle | None:
        """Return the virtual machine of this name."""
        found = self._domain(plan)
        return None if found is None else Handle(plan, found[0].domain_name(plan))

    def alive(self, handle: Handle) -> bool:
        """Return whether the virtual machine exists; its console is fetched on the way."""
        if (found := self._domain(handle.plan)) is not None:
            site, domain = found
            self._sites.call(site, "read a console", lambda: site.fetch_console(handle.plan, domain))
        return found is not None

    async def wait_ready(self, handle: Handle, hello: Awaitable[None], deadline: Deadline) -> None:
        """Wait for the agent's greeting (see `Engine.wait_ready`)."""
        try:
            await super().wait_ready(handle, hello, deadline)
        except TROUBLE as error:
            if FAILED_MARKER in str(error):
                raise
            raise self._judged(handle.plan.device.name, error) from error.__cause__

    def inject(self, handle: Handle, fault: Fault) -> None:
        """Kill, pause or resume the virtual machine, or plug its network cable out or in."""
        if (found := self._domain(handle.plan)) is None:
            raise must_run(handle, fault)
        with calling_libvirt(f"{fault.value} {handle.plan.device.name}"):
            _do(found[1], fault)

    def stop(self, handle: Handle) -> None:
        """End the virtual machine."""
        if (found := self._domain(handle.plan)) is not None:
            destroy(found[1])

    def list_devices(self, array: str) -> list[str]:
        """Return the devices of `array` that exist, by the tags of the domains.

        A hypervisor that does not answer is named in the log, unless none does.
        """
        return sorted(device for devices in self._look(array).values() for device in devices)

    def list_arrays(self) -> list[str]:
        """Return the arrays of which anything exists."""
        found = self._sites.on_all("list arrays", lambda site: site.arrays())
        return sorted({array for arrays in found.values() for array in arrays})

    def sweep(self, array: str) -> list[str]:
        """End every virtual machine that carries the array's tag, and remove its files there.

        A hypervisor that does not answer is named in the log and left as it is, unless none does.
        """
        found = self._sites.on_all(f"sweep {array}", lambda site: site.sweep(array))
        return sorted(device for devices in found.values() for device in devices)

    def close(self) -> None:
        """Close all connections; end the daemon if it has nothing left to do."""
        self._sites.close()

    @property
    def image_hash(self) -> str:
        """Hash of the image that the machines of this engine boot."""
        return prepared(self._image).hash

    @property
    def _names(self) -> list[str]:
        return [device.name for device in self._config.list_devices() if device.engine == QEMU]

    @property
    def _unlimited(self) -> Hypervisor | None:
        """The only hypervisor, if the file sets it no limit: then there is nothing to place."""
        only = self._sites.only
        return only if only is not None and only.section.unlimited else None

    def _place(self) -> None:
        offers, there, problems = self._survey()
        self._sites.tell(problems, list(self._sites))
        placement, self._unplaced = self._placed(offers, there, problems)
        self._where = dict(placement.where)

    def _survey(self) -> tuple[dict[str, Offer], dict[str, str], dict[str, Exception]]:
        """Return what each hypervisor offers, where devices run already, and the errors of those that do not answer.

        Raises:
            CsdError: none answers.
        """
        array = self._config.name

        def ask(site: Hypervisor) -> tuple[Offer, list[str]]:
            running = site.devices(array)
            return site.offer(len(running)), running

        found, problems = self._sites.on_each(self._sites, "ask what is free", ask)
        if not found:
            self._sites.tell(problems, list(self._sites))
        there = {device: name for name, (_, running) in found.items() for device in running}
        return {name: offer for name, (offer, _) in found.items()}, there, problems

    def _placed(
        self, offers: Mapping[str, Offer], there: Mapping[str, str], problems: Mapping[str, Exception]
    ) -> tuple[Placement, dict[str, str]]:
        """Place the devices on the hypervisors that answered; return also why some have no place.

        Raises:
            EnvironmentUnfit: there is no room for all, and all hypervisors answered.
        """
        placement = place(self._names, offers, self._config.spread, there)
        missing, short = len(placement.unplaced), describe_shortage(len(placement.unplaced), offers)
        if missing and not problems:
            raise EnvironmentUnfit(
                f"hypervisors: {missing} of {len(self._names)} drives have no room: {short}; add a hypervisor, raise "
                "its cores, memory or disk in the array file, or take fewer drives"
            )
        gone = "; ".join(f"hypervisor {name} cannot be used ({error})" for name, error in problems.items())
        return placement, dict.fromkeys(placement.unplaced, f"{gone}, and the others are full: {short}")

    def _lose(self, problems: Mapping[str, Exception], asked: list[str]) -> None:
        """Take note of the devices of hypervisors that failed.

        Raises:
            CsdError: all that were asked have.
        """
        self._sites.tell(problems, asked)
        for device, name in [each for each in self._where.items() if each[1] in problems]:
            self._unplaced[device] = f"hypervisor {name} failed: {problems[name]}"
            del self._where[device]

    def _look(self, array: str) -> dict[str, list[str]]:
        """Return hypervisor -> the array's devices there, and remember where they are."""
        found = self._sites.on_all("list devices", lambda site: site.devices(array))
        if array == self._config.name:
            with self._lock:
                self._where |= {device: name for name, devices in found.items() for device in devices}
        return found

    def _domain(self, plan: DevicePlan) -> tuple[Hypervisor, libvirt.virDomain] | None:
        """Return where the device's machine runs, and its domain; None if it does not run."""
        purpose, known = f"look for {plan.device.name}", self._where.get(plan.device.name)
        site = self._sites.only if known is None else self._sites[known]
        if site is not None:
            domain = self._sites.call(site, purpose, lambda: site.domain(plan))
            return None if domain is None else (site, domain)
        for name, domain in self._sites.on_all(purpose, lambda site: site.domain(plan)).items():
            if domain is not None:
                self._where[plan.device.name] = name
                return self._sites[name], domain
        return None

    def _judged(self, device: str, error: Exception) -> Exception:
        """Return the error of a device that did not come up: of one hypervisor among several it is that one's."""
        if self._sites.only is not None:
            return error
        return HypervisorLost(f"{device}, on hypervisor {self._where.get(device)}: {error}")


def describe_domains(config: ArrayConfig, paths: Paths) -> dict[str, str]:
    """Return the domain XML of each drive, as `start` would give it to this machine's libvirt; nothing is started.

    Raises:
        EnvironmentUnfit: QEMU is missing.
    """
    tools, daemon = find_qemu(), SessionDaemon(paths)
    image = ImageStore(paths.images, packages=config.image.packages).describe()
    template = TemplateStore(paths.templates, tools, daemon).find(image, int(config.memory))
    xml = {}
    for device in (each for each in config.list_devices() if each.engine == QEMU):
        folder = paths.arrays / config.name / "devices" / device.name
        plan = DevicePlan(config.name, "dry-run", device, folder, folder, folder)
        host = HostPort(LOOPBACK, config.host.port or 0)
        xml[device.name] = domain_xml(clone_spec(plan, image, template, int(config.memory), tools, host))
    return xml


def _do(domain: libvirt.virDomain, fault: Fault) -> None:
    match fault:
        case Fault.CUT | Fault.HEAL:
            Monitor(domain).set_link(NETWORK_CARD, up=fault is Fault.HEAL)
        case Fault.KILL:
            domain.destroy()
        case Fault.FREEZE:
            domain.suspend()
        case _ if domain.state()[0] == libvirt.VIR_DOMAIN_PAUSED:
            domain.resume()
