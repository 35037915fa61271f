"""Drives as ARM virtual machines: clones of one template per hypervisor, started through libvirt, disks hot-plugged."""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TypeVar

import libvirt

from csd_emu.array import QEMU, ArrayConfig, Device
from csd_emu.deadline import Deadline
from csd_emu.engines.base import (
    DevicePlan,
    Fault,
    Handle,
    HypervisorLost,
    Surroundings,
    must_run,
    wait_for_hello,
)
from csd_emu.hypervisors import HypervisorSection
from csd_emu.image import Image, ImageStore
from csd_emu.paths import Paths
from csd_emu.progress import Progress
from csd_emu.qemu.connecting import watch_connections, within
from csd_emu.qemu.daemon import SessionDaemon, calling_libvirt
from csd_emu.qemu.domain import domain_xml, network_card
from csd_emu.qemu.local_site import LocalSite, clone_spec
from csd_emu.qemu.monitor import Monitor
from csd_emu.qemu.placing import Offer, Placement, describe_shortage, place
from csd_emu.qemu.remote_site import RemoteSite
from csd_emu.qemu.site import Site, destroy
from csd_emu.qemu.template import TemplateStore
from csd_emu.qemu.tools import find_qemu
from csd_emu.remote.server import server_id
from firmware_agent.errors import ConfigurationError, CsdError, DeviceError, EnvironmentUnfit
from firmware_agent.handover import FAILED_MARKER

log = logging.getLogger(__name__)
T = TypeVar("T")
# Under which address QEMU's user networking shows the loopback interface of the machine that it runs on.
GATEWAY = "10.0.2.2"
_SPARE_BYTES = 512 << 20
# What one call to another hypervisor may take, and a start there, with its shard.
_CALL_SECONDS, _START_SECONDS = 60.0, 600.0
_TROUBLE = (CsdError, libvirt.libvirtError)


@dataclass(frozen=True)
class PlannedSite:
    """One hypervisor in a placement: what it has, the devices that go there, and why it cannot be used, if so."""

    name: str
    uri: str
    offer: Offer | None
    devices: tuple[str, ...]
    problem: str


class QemuEngine:
    """Clones of one template per hypervisor; a hypervisor that fails costs its own devices."""

    faults = frozenset(Fault)

    def __init__(self, config: ArrayConfig, paths: Paths) -> None:
        """Find what is needed on this machine; nothing is connected yet.

        Raises:
            EnvironmentUnfit: something is missing.
        """
        self._config, self._paths = config, paths
        self._sites = _make_sites(config, paths)
        self._images, self._folder = ImageStore(paths.images), paths.state
        self._image: Image | None = None
        self._lock = threading.Lock()
        self._where: dict[str, str] = {}
        self._why_lost: dict[str, str] = {}
        self._said: set[str] = set()

    def surroundings(self, device: Device) -> Surroundings:
        """Return the instruction-counted clock, and QEMU's user networking."""
        name = self.hypervisor_of(device)
        return Surroundings("counted", GATEWAY if name is None else _advertised(self._sites[name].section))

    def hypervisor_of(self, device: Device) -> str | None:
        """Return the name of the hypervisor on which the device is placed or found; None if that is not known."""
        if len(self._sites) == 1:
            return next(iter(self._sites))
        if device.name not in self._where:
            with contextlib.suppress(*_TROUBLE):
                self._look()
        return self._where.get(device.name)

    def prepare(self, progress: Progress) -> None:
        """Place the devices, and make image and template where they go, if they are not there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self._folder).free < _SPARE_BYTES:
            raise EnvironmentUnfit(f"{self._folder}: less than {_SPARE_BYTES >> 20} MiB are free; free some")
        _check_advertised(self._config)
        if (alone := self._alone) is not None:
            alone.connection()
            self._where = {device.name: alone.name for device in self._devices}
        else:
            progress.stage(f"ask {_count(self._sites)} what is free")
            self._place()
        self._image = self._images.ensure(progress)
        if alone is not None:
            alone.prepare(self._image, progress)
            return
        names = [name for name in self._sites if name in self._where.values()]
        image = self._image
        problems = self._on_each(names, lambda site: site.prepare(image, progress))[1]
        self._lose(problems, names)

    def plan(self) -> list[PlannedSite]:
        """Return where the devices would go now; nothing is made or started.

        Raises:
            EnvironmentUnfit: there is no room for all of them, or no hypervisor answers.
        """
        offers, there, problems = self._survey()
        _all_failed(problems, self._sites)
        placement = self._placed(offers, there, problems)
        uris = {name: site.section.uri for name, site in self._sites.items()}
        return [
            PlannedSite(name, uri, offers.get(name), tuple(placement.on(name)), str(problems.get(name, "")))
            for name, uri in uris.items()
        ]

    def start(self, plan: DevicePlan) -> Handle:
        """Clone the template, then plug in the device's two namespaces."""
        name = plan.device.name
        if name not in self._where:
            raise HypervisorLost(f"{name}: {self._why_lost.get(name, 'the qemu engine was not prepared')}")
        site = self._sites[self._where[name]]
        try:
            return self._call(site, f"start {name}", lambda: site.start(plan), _START_SECONDS)
        except _TROUBLE as error:
            if not self._others_go_on(error):
                raise
            raise self._lost(name, error) from error

    def find(self, plan: DevicePlan) -> Handle | None:
        """Return the virtual machine of this name."""
        for site, _ in self._domains(plan):
            return Handle(plan, site.domain_name(plan))
        return None

    def alive(self, handle: Handle) -> bool:
        """Return whether the virtual machine exists; its console is fetched on the way."""
        plan, name = handle.plan, self._where.get(handle.plan.device.name)
        if name is None:
            return self.find(plan) is not None
        site = self._sites[name]
        found = self._call(site, f"look for {plan.device.name}", lambda: site.domain(plan)) is not None
        site.fetch_console(plan)
        return found

    async def wait_ready(self, handle: Handle, hello: Awaitable[None], deadline: Deadline) -> None:
        """Wait for the agent's greeting (see `Engine.wait_ready`)."""
        try:
            await wait_for_hello(self, handle, hello, deadline)
        except (DeviceError, EnvironmentUnfit) as error:
            if FAILED_MARKER in str(error) or not self._others_go_on(error):
                raise
            raise self._lost(handle.plan.device.name, error) from error

    def inject(self, handle: Handle, fault: Fault) -> None:
        """Kill, pause or resume the virtual machine, or plug its network cable out or in."""
        domains = [domain for _, domain in self._domains(handle.plan)]
        if not domains:
            raise must_run(handle, fault)
        with calling_libvirt(f"{fault.value} {handle.plan.device.name}"):
            _do(domains[0], fault)

    def stop(self, handle: Handle) -> None:
        """End the virtual machine."""
        for _, domain in self._domains(handle.plan):
            destroy(domain)

    def list_devices(self, array: str) -> list[str]:
        """Return the devices of `array` that exist, by the tags of the domains; see `sweep` for who does not answer."""
        return sorted(device for devices in self._look(array).values() for device in devices)

    def list_arrays(self) -> list[str]:
        """Return the arrays of which anything exists."""
        found = self._of_all("list arrays", lambda site: site.arrays())
        return sorted({array for arrays in found.values() for array in arrays})

    def sweep(self, array: str) -> list[str]:
        """End every virtual machine that carries the array's tag, and remove its files.

        A hypervisor that does not answer is named in the log and left as it is, unless none does.
        """
        found = self._of_all("sweep", lambda site: site.sweep(array))
        return sorted(device for devices in found.values() for device in devices)

    def close(self) -> None:
        """Close all connections; end the daemon if it has nothing left to do."""
        for site in self._sites.values():
            site.close()

    def remake_template(self, progress: Progress) -> float:
        """Boot the template on this machine anew, even if there is one, and return the wall seconds that it took."""
        local = next((site for site in self._sites.values() if isinstance(site, LocalSite)), None)
        if local is None:
            raise EnvironmentUnfit("hypervisors: none of them is this machine's own, qemu:///session")
        return local.remake_template(self._images.ensure(progress), progress)

    @property
    def image_hash(self) -> str:
        """Hash of the image that the machines of this engine boot."""
        if self._image is None:
            raise DeviceError("the qemu engine was not prepared; call prepare first")
        return self._image.hash

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

    @property
    def _devices(self) -> list[Device]:
        return [device for device in self._config.list_devices() if device.engine == QEMU]

    @property
    def _alone(self) -> Site | None:
        """The only hypervisor, if the file sets it no limit: then there is nothing to place."""
        sites = list(self._sites.values())
        limits = sites[0].section.cores, sites[0].section.memory, sites[0].section.disk
        return sites[0] if len(sites) == 1 and limits == (None, None, None) else None

    def _place(self) -> None:
        offers, there, problems = self._survey()
        self._lose(problems, self._sites)
        self._where = self._placed(offers, there, problems).where

    def _placed(
        self, offers: Mapping[str, Offer], there: Mapping[str, str], problems: Mapping[str, Exception]
    ) -> Placement:
        """Place the devices on those that answered.

        Raises:
            EnvironmentUnfit: there is no room for all, and all hypervisors answered.
        """
        names = [device.name for device in self._devices]
        placement = place(names, offers, self._config.spread, there)
        short = describe_shortage(len(placement.homeless), offers)
        if placement.homeless and not problems:
            raise EnvironmentUnfit(
                f"hypervisors: {len(placement.homeless)} of {len(names)} drives have no room: {short}; add a "
                "hypervisor, raise its cores, memory or disk in the array file, or take fewer drives"
            )
        gone = "; ".join(map(str, problems.values()))
        self._why_lost |= {name: f"there is no room without {gone}; {short}" for name in placement.homeless}
        return placement

    def _survey(self) -> tuple[dict[str, Offer], dict[str, str], dict[str, Exception]]:
        """Return what each hypervisor offers, where devices run already, and the errors of those that do not answer."""
        array = self._config.name

        def ask(site: Site) -> tuple[Offer, list[str]]:
            running = site.devices(array)
            return site.offer(len(running)), running

        found, problems = self._on_each(list(self._sites), ask, _CALL_SECONDS)
        there = {device: name for name, (_, running) in found.items() for device in running}
        return {name: offer for name, (offer, _) in found.items()}, there, problems

    def _lose(self, problems: Mapping[str, Exception], asked: Sequence[str] | Mapping[str, Site]) -> None:
        """Take note of the devices of hypervisors that failed.

        Raises:
            EnvironmentUnfit: all that were asked have.
        """
        _all_failed(problems, asked)
        for name, error in problems.items():
            self._warn(name, error)
            for device in [device for device, on in self._where.items() if on == name]:
                self._why_lost[device] = str(error)
                del self._where[device]

    def _look(self, array: str | None = None) -> dict[str, list[str]]:
        """Return hypervisor -> the array's devices there, and remember where they are."""
        wanted = array or self._config.name
        found = self._of_all("list devices", lambda site: site.devices(wanted))
        if wanted == self._config.name:
            with self._lock:
                self._where |= {device: name for name, devices in found.items() for device in devices}
        return found

    def _domains(self, plan: DevicePlan) -> list[tuple[Site, libvirt.virDomain]]:
        """Return where the device's domain runs, and the domain: none, or one."""
        known = self._where.get(plan.device.name)
        names = list(self._sites) if known is None else [known]
        if len(names) == 1:
            site = self._sites[names[0]]
            found = {site.name: self._call(site, f"look for {plan.device.name}", lambda: site.domain(plan))}
        else:
            found = self._of_all(f"look for {plan.device.name}", lambda site: site.domain(plan))
        return [(self._sites[name], domain) for name, domain in found.items() if domain is not None]

    def _of_all(self, purpose: str, work: Callable[[Site], T]) -> dict[str, T]:
        """Return hypervisor -> what `work` returned; of those that fail a line in the log.

        Raises:
            CsdError: all have failed.
        """
        found, problems = self._on_each(list(self._sites), work, _CALL_SECONDS, purpose)
        _all_failed(problems, self._sites)
        for name, error in problems.items():
            self._warn(name, error)
        return found

    def _on_each(
        self, names: Sequence[str], work: Callable[[Site], T], seconds: float | None = None, purpose: str = "work"
    ) -> tuple[dict[str, T], dict[str, Exception]]:
        """Do `work` on these hypervisors at once; return what it returned, and the errors."""
        found: dict[str, T] = {}
        problems: dict[str, Exception] = {}

        def one(name: str) -> None:
            site = self._sites[name]
            try:
                found[name] = self._call(site, purpose, lambda: work(site), seconds)
            except _TROUBLE as error:
                problems[name] = error

        if len(names) == 1:
            one(names[0])
        else:
            with ThreadPoolExecutor(max(1, len(names))) as pool:
                list(pool.map(one, names))
        order = [name for name in names if name in found]
        return {name: found[name] for name in order}, {name: problems[name] for name in names if name in problems}

    def _call(self, site: Site, purpose: str, work: Callable[[], T], seconds: float | None = _CALL_SECONDS) -> T:
        """Do `work`, which calls libvirt; no longer than `seconds` where the other side may be far away."""
        if seconds is None or isinstance(site, LocalSite):
            return work()
        return within(seconds, f"{purpose} on hypervisor {site.name}", work)

    def _others_go_on(self, error: Exception) -> bool:
        """Whether the error of a device costs only what is on its hypervisor."""
        return len(self._sites) > 1 and not isinstance(error, HypervisorLost)

    def _lost(self, device: str, error: Exception) -> HypervisorLost:
        return HypervisorLost(f"{device}, on hypervisor {self._where.get(device)}: {error}")

    def _warn(self, name: str, error: Exception) -> None:
        message = f"hypervisor {name}: {error}"
        if message not in self._said:
            self._said.add(message)
            log.warning("%s", message)


def describe_domains(config: ArrayConfig, paths: Paths) -> dict[str, str]:
    """Return the domain XML of each drive, as `start` would give it to this machine's libvirt; nothing is started.

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


def _make_sites(config: ArrayConfig, paths: Paths) -> dict[str, Site]:
    sections, memory = config.named_hypervisors, int(config.memory)
    sites: dict[str, Site] = {}
    if any(not section.local for section in sections.values()):
        watch_connections()  # before any connection is opened
    for name, section in sections.items():
        if section.local:
            sites[name] = LocalSite(name, section, paths, memory)
        else:
            sites[name] = RemoteSite(name, section, server_id(paths.state), memory)
    return sites


def _advertised(section: HypervisorSection) -> str:
    """Return the address that drives on a hypervisor dial."""
    if section.advertise is not None:
        return section.advertise
    return GATEWAY if section.host is None else _own_address(section.host)


def _own_address(host: str) -> str:
    """Return the address from which this machine reaches another one; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise EnvironmentUnfit(
            f"hypervisors: how {host} reaches this machine is not known ({error}); give advertise, the "
            "address of this machine"
        ) from error
    return GATEWAY if ip_address(address).is_loopback else address


def _check_advertised(config: ArrayConfig) -> None:
    """Refuse an array that listens on loopback alone while drives of other machines are to dial in.

    Raises:
        ConfigurationError: it does.
    """
    for name, section in config.named_hypervisors.items():
        if section.local or not config.host.address.is_loopback:
            continue
        with contextlib.suppress(EnvironmentUnfit):  # said when it is that hypervisor's turn
            if (address := _advertised(section)) != GATEWAY:
                raise ConfigurationError(
                    f"host.address: the array listens on {config.host.address} alone, and drives on hypervisor {name} "
                    f"would dial {address}; set host.address to 0.0.0.0 or to that address of this machine"
                )


def _all_failed(problems: Mapping[str, Exception], asked: Sequence[str] | Mapping[str, Site]) -> None:
    """Raise if all hypervisors that were asked have failed."""
    if problems and len(problems) == len(asked):
        if len(problems) == 1:
            raise next(iter(problems.values()))
        raise EnvironmentUnfit("\n".join(f"{name}: {error}" for name, error in problems.items()))


def _do(domain: libvirt.virDomain, fault: Fault) -> None:
    if fault in (Fault.CUT, Fault.HEAL):
        Monitor(domain).set_link(network_card(domain.XMLDesc()), up=fault is Fault.HEAL)
    elif fault is Fault.KILL:
        domain.destroy()
    elif fault is Fault.FREEZE:
        domain.suspend()
    elif domain.state()[0] == libvirt.VIR_DOMAIN_PAUSED:
        domain.resume()


def _count(sites: Mapping[str, Site]) -> str:
    return f"{len(sites)} hypervisors" if len(sites) > 1 else "the hypervisor"


def _private_bytes(rollup: str) -> int:
    fields = [line.split() for line in rollup.splitlines()]
    return sum(int(field[1]) << 10 for field in fields if field[0] in ("Private_Clean:", "Private_Dirty:"))
