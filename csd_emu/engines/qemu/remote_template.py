"""Image and template on a hypervisor of which nothing but libvirt is known: all files are volumes of one pool.

Names of files begin with what they belong to: ``csd-image.SHA256.*`` and ``csd-template.KEY.*`` are kept for later
runs, ``csd.SERVER.ARRAY.*`` go with their array.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import libvirt
import msgspec

from csd_emu.engines.qemu.domain_xml import DomainSpec, Tag
from csd_emu.engines.qemu.libvirt_daemon import calling_libvirt
from csd_emu.engines.qemu.storage_pool import Pool
from csd_emu.engines.qemu.template import TEMPLATE_ARRAY, boot_template
from csd_emu.engines.qemu.volume_transfer import Digests, Sent
from csd_emu.image import Image
from csd_emu.util.progress import Progress
from csd_emu.util.qemu_tools import QemuTools
from firmware_agent.common.errors import DeviceError, ImageError
from firmware_agent.common.units import format_bytes

log = logging.getLogger(__name__)
# What a clone needs of its template; raise it when the domain's XML or the names of its files change.
_FORMAT = 2
_POLL_SECONDS = 1.0
# Another host may be making a template at this moment; none takes so long.
_OLD_SECONDS = 3600.0
_PARTS = ("ram", "state", "disk.qcow2")


class _Facts(msgspec.Struct, frozen=True):
    """What is known of a template: which files are its own, when they changed last, and what its agent said."""

    token: str
    modified: dict[str, str]
    seconds: float
    said: dict[str, str | float]


@dataclass(frozen=True)
class RemoteFiles:
    """Paths there of what a template boots from and of what it consists of."""

    disk_image: Path
    kernel: Path
    initrd: Path
    ram: Path
    state: Path
    disk: Path


def bring_image(pool: Pool, image: Image, progress: Progress) -> dict[str, str]:
    """Have the image's files in the pool, sent at most once; return file -> name of its volume.

    Raises:
        ImageError: a file of the image is damaged here.
    """
    names = {}
    for path, kind in ((image.disk, "disk"), (image.kernel, "kernel"), (image.initrd, "initrd")):
        sha256 = str(image.metadata["files"][path.name]["sha256"])
        names[kind] = name = f"csd-image.{sha256}.{kind}"
        if not pool.holds(name, sha256):
            if (digests := Digests.of(path)).sha256 != sha256:
                raise ImageError(
                    f"{path}: its content is damaged (sha256 differs); run `csd-emu image build --rebuild`"
                )
            progress.stage(f"send {path.name} ({format_bytes(path.stat().st_blocks * 512)})")
            log.info("%s: %s", name, describe(pool.bring(name, path, digests, progress.advance)))
    return names


def describe(sent: Sent) -> str:
    """Return what a transfer took, for people."""
    return f"{format_bytes(sent.sent_bytes)} sent, {format_bytes(sent.compared_bytes)} compared"


class RemoteTemplates:
    """The templates in one pool."""

    def __init__(self, pool: Pool, tools: QemuTools, memory_bytes: int) -> None:
        """Use `tools` there; machines have `memory_bytes` of DRAM."""
        self._pool, self._tools, self._memory_bytes = pool, tools, memory_bytes

    def find(self, image: dict[str, str], cmdline: str) -> RemoteFiles | None:
        """Return the template of an image, by its volumes' names, if it is there and nothing of it has changed."""
        key = self._key(image, cmdline)
        facts = self._pool.read_json(_marker(key), _Facts)
        same = facts is not None and self._modified(key, facts.token) == facts.modified
        return self._files(image, key, facts.token) if facts is not None and same else None

    def ensure(
        self,
        connection: libvirt.virConnect,
        image: dict[str, str],
        cmdline: str,
        progress: Progress,
        check: Callable[[], None] = lambda: None,
    ) -> RemoteFiles:
        """Return the template of an image; boot one if there is none.

        Two hosts may do so at once: each has files of its own, and the first to be done is the one that all use.

        Args:
            connection: to the hypervisor.
            image: the names of the image's volumes.
            cmdline: the kernel's.
            progress: told what is done.
            check: called again and again while the machine boots; what it raises ends that.

        Raises:
            EnvironmentUnfit: libvirt refused.
            DeviceError: the machine did not boot.
        """
        if (found := self.find(image, cmdline)) is not None:
            return found
        key, token = self._key(image, cmdline), secrets.token_hex(4)
        try:
            state = self._pool.make(_name(key, token, "state"), 0)
            self._remove_leftovers(connection, key, float(state.modified or 0))
            progress.stage("boot the template: one ARM machine, up to torch imported (about a minute)")
            seconds, said = self._boot(connection, image, cmdline, key, token, check)
            if (winner := self.find(image, cmdline)) is None:
                facts = _Facts(token, self._modified(key, token), seconds, said)
                self._pool.write_small(_marker(key), msgspec.json.encode(facts))
                return self._files(image, key, token)
        except BaseException:
            self._remove(key, token)
            raise
        self._remove(key, token)
        return winner

    def _boot(
        self,
        connection: libvirt.virConnect,
        image: dict[str, str],
        cmdline: str,
        key: str,
        token: str,
        check: Callable[[], None],
    ) -> tuple[float, dict[str, str | float]]:
        """Boot the template's machine; return the wall seconds that it took, and what its agent said."""
        files, begin = self._files(image, key, token), time.monotonic()
        if (disk_image := self._pool.find(image["disk"])) is None:
            raise DeviceError(f"{image['disk']}: was removed there meanwhile; run it again")
        self._pool.make(files.ram.name, self._memory_bytes)
        self._pool.make(files.disk.name, disk_image.capacity_bytes, (files.disk_image, "raw"))
        said = boot_template(connection, self._spec(files, cmdline, key, token), files.state, check, _POLL_SECONDS)
        return time.monotonic() - begin, said

    def _modified(self, key: str, token: str) -> dict[str, str]:
        """Return when each file of a template changed last; those of the image have markers of their own."""
        volumes = {part: self._pool.find(_name(key, token, part)) for part in _PARTS}
        return {part: volume.modified for part, volume in volumes.items() if volume is not None}

    def _spec(self, files: RemoteFiles, cmdline: str, key: str, token: str) -> DomainSpec:
        return DomainSpec(
            name=f"csd-template-{key}-{token}",
            tag=Tag(TEMPLATE_ARRAY, key, "template"),
            emulator=self._tools.emulator,
            machine=self._tools.machine,
            memory_bytes=self._memory_bytes,
            kernel=files.kernel,
            initrd=files.initrd,
            cmdline=cmdline,
            disk=files.disk,
            ram=files.ram,
            clone=False,
        )

    def _files(self, image: dict[str, str], key: str, token: str) -> RemoteFiles:
        booted = [self._pool.path(image[kind]) for kind in ("disk", "kernel", "initrd")]
        return RemoteFiles(*booted, *(self._pool.path(_name(key, token, part)) for part in _PARTS))

    def _key(self, image: dict[str, str], cmdline: str) -> str:
        tools = f"{self._tools.machine} {self._tools.version} {self._tools.emulator}"
        key = f"{_FORMAT} {sorted(image.items())} {cmdline} {self._memory_bytes} {tools}"
        return hashlib.sha256(key.encode()).hexdigest()[:16]

    def _remove(self, key: str, token: str) -> None:
        for part in _PARTS:
            self._pool.remove(_name(key, token, part))

    def _remove_leftovers(self, connection: libvirt.virConnect, key: str, now: float) -> None:
        """Remove the files of templates that were cut off in the making, or are of no use any more.

        Args:
            connection: to the hypervisor.
            key: of the template.
            now: by the clock there, which need not be ours.
        """
        with calling_libvirt("list templates in the making"):
            running = {domain.name() for domain in connection.listAllDomains()}
        for name in (each for each in self._pool.names() if each.startswith(f"csd-template.{key}.")):
            token = name.split(".")[2]
            volume = self._pool.find(name)
            old = volume is not None and now - float(volume.modified or "inf") > _OLD_SECONDS
            if old and f"csd-template-{key}-{token}" not in running:
                self._pool.remove(name)


def _name(key: str, token: str, part: str) -> str:
    return f"csd-template.{key}.{token}.{part}"


def _marker(key: str) -> str:
    return f"csd-template.{key}.json"
