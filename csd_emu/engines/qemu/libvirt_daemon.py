"""The rootless libvirt daemon behind ``qemu:///session``.

It is csd-emu's own, so that it ends with the last machine and leaves nothing running: libvirt's usual one stays for
minutes, and its log daemon too. Started as root, daemon and QEMU run as the unprivileged user `SERVICE_USER`: emulated
drives run other people's models, and have no business with root's rights.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import libvirt
import psutil

from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.remedies import INSTALL_QEMU
from firmware_agent.common.atomic_files import enter_folder, give_away, make_folder
from firmware_agent.common.errors import EnvironmentUnfit

SERVICE_USER = "csd-emu"
# Without a client and without a domain the daemon ends by itself.
_IDLE_SECONDS = 10
_START_SECONDS = 30.0
_POLL_SECONDS = 0.02
_MAX_SOCKET_PATH = 100
# libvirt puts each machine's monitor below its configuration: /libvirt/qemu/lib/domain-NNNN-<20>/monitor.sock
_MAX_CONFIGURATION_PATH = 107 - 63
# daemon -> its socket's name
_DAEMONS = {"libvirtd": "libvirt-sock", "virtqemud": "virtqemud-sock"}


# Errors are raised; nothing shall print them too.
libvirt.registerErrorHandler(lambda *_: None, None)


@contextlib.contextmanager
def calling_libvirt(purpose: str) -> Iterator[None]:
    """Turn libvirt's errors inside the block into ours.

    Raises:
        EnvironmentUnfit: libvirt refused, or does not answer.
    """
    try:
        yield
    except libvirt.libvirtError as error:
        raise EnvironmentUnfit(f"libvirt could not {purpose}: {error}; csd-emu clean ends what may be left") from error


class SessionDaemon:
    """Starts the session daemon if need be, and ends it when it has nothing left to do."""

    def __init__(self, paths: Paths) -> None:
        """Find daemon, user and socket.

        Raises:
            EnvironmentUnfit: something is missing.
        """
        self.owner = _service_owner() if os.geteuid() == 0 else None
        self._runtime = paths.runtime
        self._state = paths.state
        self._home = paths.state / "libvirt"
        self._program, self._socket = _find_daemon(self._runtime / "libvirt")
        self._lock: int | None = None
        if len(str(self._socket)) > _MAX_SOCKET_PATH:
            raise EnvironmentUnfit(f"{self._socket} is too long for a socket; set CSD_EMU_HOME to a shorter path")

    @property
    def uri(self) -> str:
        """The address of the daemon."""
        return f"qemu+unix:///session?socket={self._socket}"

    @property
    def answers(self) -> bool:
        """Whether a daemon runs, started by this process or another, perhaps in another container."""
        try:
            libvirt.open(self.uri).close()
        except libvirt.libvirtError:
            return False
        return True

    def connect(self) -> libvirt.virConnect:
        """Return a connection; the daemon is started if it does not answer.

        Raises:
            EnvironmentUnfit: it cannot be started or reached.
        """
        self._hold()
        deadline = Deadline(_START_SECONDS)
        process: subprocess.Popen[bytes] | None = None
        while True:
            with contextlib.suppress(libvirt.libvirtError):
                return libvirt.open(self.uri)
            if not self._program:
                raise _no_daemon()
            if process is None or process.poll() is not None:
                if process is not None:
                    self._check_reach()
                process = self._start()
            if deadline.expired:
                self._check_reach()
                raise EnvironmentUnfit(f"libvirt: {self._program} does not answer on {self._socket}; see {self._log}")
            time.sleep(_POLL_SECONDS)

    def release(self, idle: bool) -> None:
        """Let go of the daemon; if it is `idle`, and no other process uses it, end it."""
        if self._lock is not None:
            with contextlib.suppress(BlockingIOError):
                if idle:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._end()
            os.close(self._lock)
            self._lock = None

    def give(self, path: Path) -> None:
        """Make `path` usable by the user under whom QEMU runs, a file by nobody else."""
        if not path.is_dir():
            path.chmod(0o600)
        if self.owner is not None:
            give_away(path, self.owner.pw_uid, self.owner.pw_gid)

    def open_to(self, folder: Path) -> None:
        """Let the user under whom QEMU runs reach what is in `folder` by its name, but neither list nor change it."""
        if self.owner is None:
            folder.chmod(0o700)
        else:
            os.chown(folder, os.geteuid(), self.owner.pw_gid, follow_symlinks=False)
            folder.chmod(0o710)

    @property
    def _log(self) -> Path:
        return self._state / "daemon.log"

    def _hold(self) -> None:
        """Take part in the lock that keeps others from ending the daemon; wait for one who is ending it."""
        if self._lock is None:
            self._make_folders()
            self._lock = os.open(self._state / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _make_folders(self) -> None:
        """Make the daemon's folders. What root itself writes lies outside of what the service user may change."""
        mode = 0o700 if self.owner is None else 0o711
        for folder in (self._state, self._runtime, self._home):
            make_folder(folder, mode)
        if self.owner is not None:
            give_away(self._state, os.geteuid(), os.getegid())
        for folder in (self._runtime, self._home):
            self.give(folder)
        self._configure()

    def _configure(self) -> None:
        """Have QEMU's messages written by libvirt itself: the log daemon would outlive the last machine."""
        with contextlib.ExitStack() as stack:
            # The service user may write here: what it has put in a folder's place is not entered.
            folder = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            for name in (self._configuration.name, "libvirt"):
                folder = enter_folder(folder, name, 0o700)
                stack.callback(os.close, folder)
                self._give_open(folder)
            with contextlib.suppress(FileExistsError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open("qemu.conf", flags, 0o644, dir_fd=folder)
                with open(descriptor, "w", encoding="ascii") as stream:
                    self._give_open(descriptor)
                    stream.write('stdio_handler = "file"\n')

    def _give_open(self, descriptor: int) -> None:
        if self.owner is not None:
            os.fchown(descriptor, self.owner.pw_uid, self.owner.pw_gid)

    def _check_reach(self) -> None:
        """Check, when the daemon has failed, that its user may enter every folder on the way to its own.

        Raises:
            EnvironmentUnfit: it may not.
        """
        for folder in (self._runtime, self._home):
            for parent in reversed(folder.parents):
                if self.owner is not None and not may_enter(self.owner, parent.stat()):
                    raise EnvironmentUnfit(
                        f"{parent} cannot be entered by the user {self.owner.pw_name}, under whom libvirt and QEMU "
                        f"run; chmod o+x {parent}, or set CSD_EMU_HOME to a folder elsewhere"
                    )

    @property
    def _configuration(self) -> Path:
        return self._home / "config"

    def _end(self) -> None:
        owner = os.geteuid() if self.owner is None else self.owner.pw_uid
        name = Path(self._program).name
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            process = psutil.Process(int((self._runtime / "libvirt" / f"{name}.pid").read_text()))
            if process.uids().real == owner and process.name() == name:
                process.send_signal(signal.SIGTERM)
                psutil.wait_procs([process], timeout=_START_SECONDS)
        forget(self._configuration)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "XDG_RUNTIME_DIR": str(self._runtime)}
        configuration = shorten(self._configuration, _MAX_CONFIGURATION_PATH)
        environment |= {"HOME": str(self._home), "XDG_CONFIG_HOME": str(configuration)}
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                [self._program, "--timeout", str(_IDLE_SECONDS)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
                cwd="/",
                user=self.owner.pw_uid if self.owner else None,
                group=self.owner.pw_gid if self.owner else None,
                extra_groups=[] if self.owner else None,
                umask=0o022,
            )


def may_enter(user: pwd.struct_passwd, folder: os.stat_result) -> bool:
    """Return whether the modes of a folder let this user, who has one group, go through it."""
    if folder.st_uid == user.pw_uid:
        return bool(folder.st_mode & stat.S_IXUSR)
    return bool(folder.st_mode & (stat.S_IXGRP if folder.st_gid == user.pw_gid else stat.S_IXOTH))


def _service_owner() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(SERVICE_USER)
    except KeyError:
        raise EnvironmentUnfit(f"the user {SERVICE_USER}, under whom QEMU runs, is missing; {INSTALL_QEMU}") from None


def _find_daemon(folder: Path) -> tuple[str, Path]:
    """Return the daemon's program and its socket in `folder`; no program if the socket is another container's."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin"
    each = [(shutil.which(name, path=path) or "", folder / socket_name) for name, socket_name in _DAEMONS.items()]
    if not (usable := [one for one in each if one[0]] or [one for one in each if one[1].is_socket()]):
        raise _no_daemon()
    return usable[0]


def _no_daemon() -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"libvirt's daemon ({' or '.join(_DAEMONS)}) does not run and is not installed; {INSTALL_QEMU}"
    )


# Sticky: nobody else can replace a link there, and whose it is is looked at.
_FOLDER = Path("/tmp")


def shorten(folder: Path, most: int) -> Path:
    """Return the folder, or a link to it in ``/tmp`` if its path has more than `most` bytes.

    The link is made if it is missing, and always the same one for the same user and folder.

    Raises:
        EnvironmentUnfit: something else has the link's name.
    """
    if len(os.fsencode(folder)) <= most:
        return folder
    link = _link(folder)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(folder)
    if not (link.is_symlink() and link.lstat().st_uid == os.geteuid() and link.readlink() == folder):
        raise EnvironmentUnfit(
            f"{folder} is too long for a socket, and {link}, which should be a link to it, is something else; "
            "remove it, or set CSD_EMU_HOME to a shorter path"
        )
    return link


def forget(folder: Path) -> None:
    """Remove what `shorten` has made for the folder, if anything."""
    link = _link(folder)
    with contextlib.suppress(OSError):
        if link.is_symlink() and link.readlink() == folder:
            link.unlink()


def _link(folder: Path) -> Path:
    return _FOLDER / f"csd-emu-{os.geteuid()}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"
