"""State of an array that is up: one JSON file in its folder, and locks of those who work on it or keep it up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.util.deadline import Deadline
from csd_emu.util.file_locks import FOLDER, locked, try_lock
from firmware_agent.common.atomic_files import make_folder, replace_file, shared_mode
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from firmware_agent.common.frames.session_frames import Hello
from host.core.owned_files import check_owner, read_whole

STATE_FILE = "array.json"


class ArrayBusy(EnvironmentUnfit):
    """Raised when another process works on the array."""


class DeviceState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device of an array that is up."""

    name: str
    number: int
    profile: str
    incarnation: int
    manifest_sha256: str
    samples: int


class ArrayState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array that is up. `config` and `data` are what it was made from, `run` tags its devices.

    `kept` says that `csd-emu up` made it; another is left over from a run that was killed. `listen_address` is set if
    the host listens for its drives elsewhere than the configuration says: behind a shaped link. `own_sha256` is the
    hash of who has which records, where code of the user's decided that.
    """

    config: dict[str, Any]
    data: dict[str, Any]
    seed: int
    run: str
    kept: bool
    port: int
    devices: tuple[DeviceState, ...]
    listen_address: str | None = None
    own_sha256: str = ""

    @property
    def address(self) -> IPv4Address:
        """Where its host listens."""
        return IPv4Address(self.listen_address or self.config["host"]["address"])

    def with_incarnation(self, device: str, incarnation: int) -> ArrayState:
        """Return the state with another newest incarnation of one device."""
        devices = tuple(
            msgspec.structs.replace(each, incarnation=incarnation) if each.name == device else each
            for each in self.devices
        )
        return msgspec.structs.replace(self, devices=devices)

    def with_holdings(self, hellos: Mapping[str, Hello]) -> ArrayState:
        """Return the state with what drives said of records that they hold in place."""
        devices = tuple(
            each
            if each.manifest_sha256 or each.name not in hellos
            else msgspec.structs.replace(
                each, manifest_sha256=hellos[each.name].manifest_sha256, samples=hellos[each.name].samples
            )
            for each in self.devices
        )
        return msgspec.structs.replace(self, devices=devices)

    def save(self, folder: Path) -> None:
        """Write the state into the array's folder, in one step."""
        replace_file(folder / STATE_FILE, msgspec.json.format(msgspec.json.encode(self)), 0o600)

    @classmethod
    def load(cls, folder: Path) -> ArrayState | None:
        """Return the state in `folder`, or None if there is none.

        Raises:
            ConfigurationError: the file is damaged, or another user's.
        """
        check_owner(folder, STATE_FILE)
        remedy = f"run csd-emu clean {folder.name}"
        return read_whole(folder / STATE_FILE, msgspec.json.Decoder(cls).decode, ConfigurationError, remedy)


@contextlib.contextmanager
def array_folder(arrays: Path, name: str) -> Iterator[Path]:
    """Lock the array's folder, made if need be, for the time of a command; an empty one is removed at the end.

    Raises:
        ArrayBusy: another process works on this array.
        EnvironmentUnfit: the folder cannot be made.
    """
    folder = arrays / name
    try:
        descriptor = _lock(folder)
    except OSError as error:
        raise EnvironmentUnfit(f"{folder} cannot be used ({error}); free space, or set CSD_EMU_HOME") from error
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
        os.close(descriptor)


@contextlib.contextmanager
def devices_held(devices: Path) -> Iterator[None]:
    """Hold off everyone else who would start a device of an array beside the run on it, or end the array.

    Whoever starts a device by a second process does it in here; and so the array's end either comes first, and then the
    folder is gone, or finds the device and ends it too. Waits for its turn.

    Args:
        devices: the folder of the array's devices; without it there is nothing to hold.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(FileNotFoundError):
            stack.enter_context(locked(devices))
        yield


def empty_folder(folder: Path) -> None:
    """Remove everything in `folder`, which stays."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _make(folder: Path) -> None:
    """Make the array's folder, and the state's above it, for this user alone; QEMU's service user may pass root's."""
    for each in (folder.parent.parent, folder.parent, folder):
        make_folder(each, shared_mode())


def _lock(folder: Path) -> int:
    while True:
        _make(folder)
        descriptor = os.open(folder, FOLDER)
        free = try_lock(descriptor)
        # Between mkdir and the lock another process may have ended and removed the folder.
        if free and folder.exists() and os.fstat(descriptor).st_ino == folder.stat().st_ino:
            return descriptor
        os.close(descriptor)
        if not free:
            raise ArrayBusy(
                f"array {folder.name!r} is in use by another csd-emu process; wait for it, or give this array another "
                "name"
            )


# Others hold the lock for a moment, to see whether anyone else does.
_LOOK_SECONDS, _POLL_SECONDS = 2.0, 0.05


@contextlib.contextmanager
def present(path: Path) -> Iterator[None]:
    """Hold the lock at `path` inside the block; the file is there only then.

    Raises:
        EnvironmentUnfit: another process holds it, or it cannot be made.
    """
    try:
        make_folder(path.parent, shared_mode())
        descriptor = _take(path, Deadline(_LOOK_SECONDS))
    except OSError as error:
        raise EnvironmentUnfit(f"{path} cannot be made ({error.strerror}); make its folder writable") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def is_present(path: Path) -> bool:
    """Return whether a process holds the lock at `path`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _take(path: Path, deadline: Deadline) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        # Between open and lock another process may have ended and removed the file.
        if try_lock(descriptor) and path.exists() and os.fstat(descriptor).st_ino == path.lstat().st_ino:
            return descriptor
        os.close(descriptor)
        if deadline.expired:
            raise EnvironmentUnfit(f"another process keeps this array up already ({path} is locked); end it first")
        threading.Event().wait(_POLL_SECONDS)
