"""The template: one machine, booted once until its agent has imported torch, then stopped for good.

Its device state and its RAM stay on disk and never change again; every drive is a clone that maps this RAM
copy-on-write. A template belongs to one image, memory size, machine type and QEMU.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import libvirt
import msgspec

from csd_emu.engines.qemu.domain_xml import DomainSpec, Tag, domain_xml
from csd_emu.engines.qemu.libvirt_daemon import SessionDaemon, calling_libvirt
from csd_emu.engines.qemu.qemu_monitor import ConsoleTail, Monitor, wait_for_line
from csd_emu.image import Image
from csd_emu.util.deadline import Deadline
from csd_emu.util.file_locks import FILE, locked
from csd_emu.util.progress import Progress
from csd_emu.util.qemu_tools import QemuTools, make_overlay
from firmware_agent.common.atomic_files import make_folder
from firmware_agent.common.errors import DeviceError, EnvironmentUnfit
from firmware_agent.common.handover import READY_MARKER

# No array can have this name.
TEMPLATE_ARRAY = "(template)"
# Written last: a template without it is none.
FACTS = "template.json"
# What a clone needs of its template; raise it when the domain's XML changes.
_FORMAT = 3
_BOOT_SECONDS = 600.0
_STATE_SECONDS = 60.0
_QUIET_SECONDS = 20.0
_QUIET_SHARE = 0.08
_LOOK_SECONDS = 0.5
_SPARE_BYTES = 512 << 20
_POLL_SECONDS = 0.1
_COPY_BYTES = 8 << 20
# QEMU reads them by their names, as another user.
SEALED_FOLDER_MODE, SEALED_FILE_MODE = 0o511, 0o444


@dataclass(frozen=True)
class Template:
    """A template on disk."""

    folder: Path

    @property
    def ram(self) -> Path:
        """The machine's memory."""
        return self.folder / "ram"

    @property
    def state(self) -> Path:
        """The machine's device state."""
        return self.folder / "state"

    @property
    def disk(self) -> Path:
        """What the boot wrote, as a qcow2 overlay over the image."""
        return self.folder / "disk.qcow2"

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """What QEMU wrote."""
        return self.ram, self.state, self.disk

    @property
    def facts(self) -> dict[str, str | float]:
        """What is known of it: versions in the guest, and `template_seconds` of wall time that it took."""
        return msgspec.json.decode((self.folder / FACTS).read_bytes(), type=dict[str, str | float])


class TemplateStore:
    """The templates in the cache."""

    def __init__(self, folder: Path, tools: QemuTools, daemon: SessionDaemon) -> None:
        """Keep templates below `folder`."""
        self._folder, self._tools, self._daemon = folder, tools, daemon

    def find(self, image: Image, memory_bytes: int) -> Template:
        """Return where the template for this image and memory size is, or would be."""
        # An image that is built anew has the same hash and another disk.
        build = image.metadata["created"] if image.directory.is_dir() else ""
        key = f"{_FORMAT} {image.hash} {build} {memory_bytes} {self._tools.machine} {self._tools.version}"
        return Template(self._folder / hashlib.sha256(key.encode()).hexdigest()[:16])

    def exists(self, image: Image, memory_bytes: int) -> bool:
        """Return whether the template for this image and memory size is there, and whole.

        It is not if its files do not have the sizes that they were made with, or the image's disk was written to since;
        nor if anybody but this process's user can have changed them.
        """
        template = self.find(image, memory_bytes)
        try:
            return _is_sealed(template) and template.facts["files"] == _fingerprint(template, image)
        except (OSError, KeyError, msgspec.MsgspecError):
            return False

    def ensure(self, connection: libvirt.virConnect, image: Image, memory_bytes: int, progress: Progress) -> Template:
        """Return the template for this image and memory size; boot one if there is none.

        Raises:
            EnvironmentUnfit: there is no space.
            DeviceError: the machine did not boot.
        """
        template = self.find(image, memory_bytes)
        with self._locked(template.folder.name):
            if not self.exists(image, memory_bytes):
                self._make(connection, template, image, memory_bytes, progress)
        return template

    def remove(self, template: Template) -> None:
        """Remove one template; clones that run keep what they have mapped."""
        with self._locked(template.folder.name):
            remove_sealed(template.folder)

    def _make(
        self, connection: libvirt.virConnect, template: Template, image: Image, memory_bytes: int, progress: Progress
    ) -> None:
        if shutil.disk_usage(self._folder).free < memory_bytes + _SPARE_BYTES:
            raise EnvironmentUnfit(
                f"{self._folder}: too little space for a template of {memory_bytes >> 20} MiB; free some"
            )
        booted = Template(template.folder.with_name(f".{template.folder.name}.boot"))
        for folder in (template.folder, booted.folder):
            remove_sealed(folder)
        booted.folder.mkdir(mode=0o755)
        begin = time.monotonic()
        try:
            make_overlay(self._tools, booted.disk, image.disk, "raw")
            for path in (booted.disk, booted.folder):  # from then on names in the folder may be anyone's links
                self._daemon.give(path)
            progress.stage("boot the template: one ARM machine, up to torch imported (about a minute)")
            facts = boot_template(connection, template_spec(booted, image, memory_bytes, self._tools), booted.state)
            template.folder.mkdir(mode=0o700)
            for source, target in zip(booted.files, template.files, strict=True):
                _copy_sealed(source, target)
            facts |= {"template_seconds": time.monotonic() - begin, "image": image.hash}
            facts["files"] = _fingerprint(template, image)
            (template.folder / FACTS).write_bytes(msgspec.json.encode(facts))
            (template.folder / FACTS).chmod(SEALED_FILE_MODE)
            template.folder.chmod(SEALED_FOLDER_MODE)
        except BaseException:
            remove_sealed(template.folder)
            raise
        finally:
            remove_sealed(booted.folder)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Let one process at a time make a template; the others wait and find it made."""
        make_folder(self._folder, 0o755)
        with locked(self._folder / f".{name}.lock", FILE):
            yield


def prune_templates(folder: Path, image_hash: str) -> list[str]:
    """Remove all templates below `folder` but those of the image `image_hash`; return the names of those removed."""
    removed = []
    for path in folder.iterdir() if folder.is_dir() else []:
        if path.is_dir() and not _belongs_to(Template(path), image_hash):
            remove_sealed(path)
            path.with_name(f".{path.name}.lock").unlink(missing_ok=True)
            removed.append(path.name)
    return removed


def template_spec(template: Template, image: Image, memory_bytes: int, tools: QemuTools) -> DomainSpec:
    """Return the domain of the template itself."""
    return DomainSpec(
        name=f"csd-template-{template.folder.name}",
        tag=Tag(TEMPLATE_ARRAY, template.folder.name, "template"),
        emulator=tools.emulator,
        machine=tools.machine,
        memory_bytes=memory_bytes,
        kernel=image.kernel,
        initrd=image.initrd,
        cmdline=image.cmdline,
        disk=template.disk,
        ram=template.ram,
        clone=False,
    )


def boot_template(
    connection: libvirt.virConnect,
    spec: DomainSpec,
    state: Path,
    check: Callable[[], None] = lambda: None,
    poll_seconds: float = _POLL_SECONDS,
) -> dict[str, str | float]:
    """Boot a template's machine up to its agent's ready line, let it come to rest, save its device state, end it.

    Args:
        connection: to the hypervisor; if it breaks the machine ends.
        spec: of the machine.
        state: file there for the device state.
        check: called now and then; raises to have it end.
        poll_seconds: how often, and how often the machine's console is read.

    Returns:
        what the agent said of the versions in the guest.

    Raises:
        EnvironmentUnfit: libvirt refused.
        DeviceError: the machine did not boot.
    """
    deadline = Deadline(_BOOT_SECONDS)
    with calling_libvirt("boot the template"):
        domain = connection.createXML(domain_xml(spec), libvirt.VIR_DOMAIN_START_AUTODESTROY)
        try:
            said = ConsoleTail(Monitor(domain).read_console)

            def alive() -> bool:
                check()
                return bool(domain.isActive())

            facts = wait_for_line(said.text, READY_MARKER, alive, deadline, "the template", poll_seconds)
            _wait_until_quiet(domain)
            domain.suspend()
            Monitor(domain).save_state(str(state), Deadline(_STATE_SECONDS))
        finally:
            with contextlib.suppress(libvirt.libvirtError):
                domain.destroy()
    return msgspec.json.decode(facts.encode(), type=dict[str, str | float])


def _wait_until_quiet(domain: libvirt.virDomain) -> None:
    """Wait until the machine takes little of a core, so that clones do not begin with its background work."""
    deadline, before = Deadline(_QUIET_SECONDS), None
    while not deadline.expired:
        used, now = domain.info()[4] / 1e9, time.monotonic()
        if before is not None and (used - before[0]) < _QUIET_SHARE * (now - before[1]):
            return
        before = (used, now)
        time.sleep(_LOOK_SECONDS)


def remove_sealed(folder: Path) -> None:
    """Remove a template's folder, which may be closed to changes, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        if not folder.is_symlink():
            folder.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _copy_sealed(source: Path, target: Path) -> None:
    """Copy what QEMU wrote to a file that belongs to this process's user and is never changed again.

    It is not enough to take the file itself: whoever has it open goes on writing. No link is followed, holes stay.
    """
    with (
        open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as written,
        open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as sealed,
    ):
        status = os.fstat(written.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DeviceError(f"{source}: the template's QEMU left no file; csd-emu clean, then run it again")
        sealed.truncate(status.st_size)
        for begin, end in _data(written.fileno(), status.st_size):
            while begin < end and (block := os.pread(written.fileno(), min(_COPY_BYTES, end - begin), begin)):
                begin += os.pwrite(sealed.fileno(), block, begin)
        os.fchmod(sealed.fileno(), SEALED_FILE_MODE)


def _data(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a file has data, from and to, and skip its holes."""
    end = 0
    while end < size:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # a hole up to its end
                raise
            return
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, end


def _is_sealed(template: Template) -> bool:
    """Return whether nobody but this process's user can have changed the template since it was made.

    Raises:
        OSError: something of it is missing.
    """
    folder, files = os.lstat(template.folder), [os.lstat(path) for path in (*template.files, template.folder / FACTS)]
    closed = stat.S_ISDIR(folder.st_mode) and not folder.st_mode & 0o022
    regular = all(stat.S_ISREG(each.st_mode) and not each.st_mode & 0o022 and each.st_nlink == 1 for each in files)
    return closed and regular and {each.st_uid for each in (folder, *files)} == {os.geteuid()}


def _fingerprint(template: Template, image: Image) -> str:
    """Return what shows, without reading gigabytes, that none of the files a clone rests on has changed."""
    disk = image.disk.stat()
    return f"{[path.stat().st_size for path in template.files]} {disk.st_size} {disk.st_mtime_ns}"


def _belongs_to(template: Template, image_hash: str) -> bool:
    try:
        return template.facts.get("image") == image_hash
    except (OSError, msgspec.MsgspecError):
        return False
