"""A hypervisor's storage pool: the folder there that holds csd-emu's files, reached through libvirt alone."""

from __future__ import annotations

import contextlib
import hashlib
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import libvirt
import msgspec

from csd_emu.engines.qemu.volume_transfer import Digests, Sent, transfer
from csd_emu.util.deadline import Deadline
from csd_emu.util.xml_elements import element
from firmware_agent.common.errors import EnvironmentUnfit

T = TypeVar("T")
# What libvirt's protocol takes in one message of a stream.
_PIECE_BYTES = 256 << 10
# Written last: a volume without it is not whole.
_MARKER = ".complete"
# libvirt refuses a volume that it is at work on for another run, a piece of a file at a time as a rule.
_BUSY_SECONDS, _POLL_SECONDS = 60.0, 0.1
_NO_VOLUME, _NO_POOL = libvirt.VIR_ERR_NO_STORAGE_VOL, libvirt.VIR_ERR_NO_STORAGE_POOL


class _Exists(EnvironmentUnfit):
    """Raised when a volume of this name is there already."""


class VolumeMarker(msgspec.Struct, frozen=True):
    """What a marker says of its volume; `modified` is the file's time of change there."""

    size_bytes: int
    sha256: str
    modified: str


class Owner(NamedTuple):
    """The user and group under whom QEMU runs there."""

    user: int
    group: int


class Volume:
    """A file in the pool."""

    def __init__(self, volume: libvirt.virStorageVol) -> None:
        """Take libvirt's."""
        self._volume = volume

    @property
    def capacity_bytes(self) -> int:
        """The size that the guest sees."""
        return int(self._volume.info()[1])

    @property
    def modified(self) -> str:
        """When its content changed last, as the hypervisor's clock says."""
        return ElementTree.fromstring(self._volume.XMLDesc()).findtext("target/timestamps/mtime") or ""

    def read(self) -> Iterator[bytes | int]:
        """Yield the content: pieces of data, and lengths of holes, which do not travel."""
        with self._stream() as stream:
            _when_free(lambda: self._volume.download(stream, 0, 0, libvirt.VIR_STORAGE_VOL_DOWNLOAD_SPARSE_STREAM))
            while (piece := stream.recvFlags(_PIECE_BYTES, libvirt.VIR_STREAM_RECV_STOP_AT_HOLE)) != b"":
                yield int(stream.recvHole()) if piece == -3 else piece

    def write(self, offset: int, data: bytes) -> None:
        """Write `data` at byte `offset`; returns when libvirt has confirmed it."""
        with self._stream() as stream:
            _when_free(lambda: self._volume.upload(stream, offset, len(data)))
            view = memoryview(data)
            while view:
                view = view[stream.send(bytes(view[:_PIECE_BYTES])) :]

    @contextlib.contextmanager
    def _stream(self) -> Iterator[libvirt.virStream]:
        """Give a stream for the block, which is finished at its end, and aborted if it fails."""
        stream = self._volume.connect().newStream()
        try:
            yield stream
            stream.finish()
        except BaseException:
            with contextlib.suppress(libvirt.libvirtError):
                stream.abort()
            raise

    def content(self) -> bytes:
        """Return the content of a small volume, holes as zeros."""
        return b"".join(bytes(piece) if isinstance(piece, int) else piece for piece in self.read())


class Pool:
    """The volumes in one folder of a hypervisor; names are those of files."""

    def __init__(self, pool: libvirt.virStoragePool, folder: str, owner: Owner | None) -> None:
        """Take libvirt's pool of `folder`; `owner`: whose its files are to be, None for the daemon's own user."""
        self._pool, self.folder, self._owner = pool, folder, owner

    @classmethod
    def open(cls, connection: libvirt.virConnect, folder: str | None, owner: Owner | None = None) -> Pool:
        """Return the pool of a folder, made with it if need be.

        Args:
            connection: to the hypervisor.
            folder: None for ``csd-emu`` in the folder of the pool ``default`` there.
            owner: see `Pool`.

        Raises:
            EnvironmentUnfit: there is no storage driver, or no folder is known.
        """
        folder = folder or default_folder(connection)
        try:
            pool = _start(connection, folder, libvirt.VIR_STORAGE_POOL_CREATE_WITH_BUILD)
        except libvirt.libvirtError as error:
            raise _unfit(error, folder) from error
        return cls(pool, folder, owner)

    @classmethod
    def look(cls, connection: libvirt.virConnect, folder: str | None) -> Pool | None:
        """Return the pool of a folder if there is such a folder (see `open`); none is made."""
        with contextlib.suppress(libvirt.libvirtError, EnvironmentUnfit):
            folder = folder or default_folder(connection)
            return cls(_start(connection, folder, 0), folder, None)
        return None

    @property
    def free_bytes(self) -> int:
        """Space that is left in its file system."""
        return int(self._pool.info()[3])

    def path(self, name: str) -> Path:
        """Return the path there of the file called `name`."""
        return Path(self.folder) / name

    def names(self) -> list[str]:
        """Return the names of all files."""
        return sorted(volume.name() for volume in self._pool.listAllVolumes())

    def find(self, name: str) -> Volume | None:
        """Return the volume called `name`, if there is one."""
        try:
            return Volume(self._pool.storageVolLookupByName(name))
        except libvirt.libvirtError as error:
            if error.get_error_code() == _NO_VOLUME:
                return None
            raise

    def make(self, name: str, capacity_bytes: int, backing: tuple[Path, str] | None = None) -> Volume:
        """Make a volume of zeros, or a qcow2 file over `backing`, the path and format of another.

        Raises:
            EnvironmentUnfit: there is one of this name.
        """
        try:
            return Volume(self._pool.createXML(volume_xml(name, capacity_bytes, backing, self._owner)))
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_STORAGE_VOL_EXIST:
                raise _Exists(f"{name}: is made by another run at this moment; try again") from error
            raise

    def remove(self, name: str) -> None:
        """Remove a volume; one that is not there is a success."""
        with contextlib.suppress(libvirt.libvirtError):  # it was removed meanwhile
            self._pool.storageVolLookupByName(name).delete()

    def write_small(self, name: str, content: bytes) -> None:
        """Make a volume that holds `content`, in place of one of this name; one that another run makes now stays."""
        self.remove(name)
        with contextlib.suppress(_Exists):
            self.make(name, len(content)).write(0, content)

    def read_json(self, name: str, kind: type[T]) -> T | None:
        """Return the structure in a small volume; None if there is none, or if a write of it was cut."""
        with contextlib.suppress(msgspec.MsgspecError):
            if (volume := self.find(name)) is not None:
                return msgspec.json.decode(volume.content(), type=kind)
        return None

    def holds(self, name: str, sha256: str) -> bool:
        """Return whether a volume was sent whole and has not changed since, as far as its time of change shows."""
        volume, said = self.find(name), self.read_json(name + _MARKER, VolumeMarker)
        return volume is not None and said is not None and (said.sha256, said.modified) == (sha256, volume.modified)

    def bring(self, name: str, source: Path, digests: Digests, tell: Callable[[float], None]) -> Sent:
        """Have the volume `name` hold what `source` does, and mark it as whole.

        What lies there already is compared and used, for example after a transfer that was cut.
        """
        volume, fresh = self._obtain(name, digests.size_bytes)
        self.remove(name + _MARKER)
        sent = transfer(source, volume, digests, fresh, tell)
        seen = VolumeMarker(digests.size_bytes, digests.sha256, volume.modified)
        self.write_small(name + _MARKER, msgspec.json.encode(seen))
        return sent

    def _obtain(self, name: str, size_bytes: int) -> tuple[Volume, bool]:
        """Return the volume of this name and size, and whether it was made just now, by this run."""
        if (volume := self.find(name)) is not None:
            if volume.capacity_bytes == size_bytes:
                return volume, False
            self.remove(name)
        try:
            return self.make(name, size_bytes), True
        except _Exists:
            if (found := self.find(name)) is None:
                raise
            return found, False


def _when_free(work: Callable[[], T]) -> T:
    """Return what `work` returns, once libvirt is no longer at work on its volume for another run."""
    deadline = Deadline(_BUSY_SECONDS)
    while True:
        try:
            return work()
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_OPERATION_INVALID or deadline.expired:
                raise
        time.sleep(min(_POLL_SECONDS, deadline.left_seconds))


def _start(connection: libvirt.virConnect, folder: str, flags: int) -> libvirt.virStoragePool:
    """Return the pool of a folder, active and up to date."""
    if (pool := find_pool(connection, folder)) is None:
        return connection.storagePoolCreateXML(_pool_xml(folder), flags)
    if not pool.isActive():
        pool.create()
    with contextlib.suppress(libvirt.libvirtError):  # another run makes a volume at this moment
        pool.refresh()
    return pool


def find_pool(connection: libvirt.virConnect, folder: str) -> libvirt.virStoragePool | None:
    """Return the pool whose folder this is, whatever it is called."""
    for pool in connection.listAllStoragePools():
        with contextlib.suppress(libvirt.libvirtError):  # it ended meanwhile
            if _folder(pool) == folder:
                return pool
    return None


def default_folder(connection: libvirt.virConnect) -> str:
    """Return the folder for csd-emu's files in that of the pool ``default``.

    Raises:
        EnvironmentUnfit: there is no such pool, or no storage driver.
    """
    try:
        return f"{_folder(connection.storagePoolLookupByName('default'))}/csd-emu"
    except libvirt.libvirtError as error:
        if error.get_error_code() == _NO_POOL:
            raise EnvironmentUnfit(
                "it has no storage pool 'default', so no folder for files is known there; give pool_path in the array "
                "file"
            ) from error
        raise _unfit(error, "its storage pool 'default'") from error


def volume_xml(name: str, capacity_bytes: int, backing: tuple[Path, str] | None, owner: Owner | None) -> str:
    """Return the XML of a new volume: raw and sparse, or qcow2 over `backing`."""
    rights = {} if owner is None else {"mode": "0600", "owner": str(owner.user), "group": str(owner.group)}
    permissions = [element("permissions", *(element(tag, value) for tag, value in rights.items()))] if rights else []
    store = [
        element("backingStore", element("path", str(path)), element("format", type=form))
        for path, form in ([] if backing is None else [backing])
    ]
    volume = element(
        "volume",
        element("name", name),
        element("capacity", str(capacity_bytes), unit="bytes"),
        element("allocation", "0", unit="bytes"),
        element("target", element("format", type="raw" if backing is None else "qcow2"), *permissions),
        *store,
        type="file",
    )
    return ElementTree.tostring(volume, encoding="unicode")


def _pool_xml(folder: str) -> str:
    name = f"csd-emu-{hashlib.sha256(folder.encode()).hexdigest()[:8]}"
    pool = element("pool", element("name", name), element("target", element("path", folder)), type="dir")
    return ElementTree.tostring(pool, encoding="unicode")


def _folder(pool: libvirt.virStoragePool) -> str:
    return ElementTree.fromstring(pool.XMLDesc()).findtext("target/path") or ""


def _unfit(error: libvirt.libvirtError, what: str) -> EnvironmentUnfit:
    if error.get_error_code() == libvirt.VIR_ERR_NO_SUPPORT:
        return EnvironmentUnfit(
            "its libvirt has no storage driver; install it there (Debian: libvirt-daemon-driver-storage)"
        )
    return EnvironmentUnfit(f"{what} cannot be used there ({error}); make it writable, or give another pool_path")
