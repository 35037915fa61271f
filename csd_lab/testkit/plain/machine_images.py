"""Disks of plain machines, made once per recipe, without root, and kept in the cache; a recipe is one TOML file."""

from __future__ import annotations

import fcntl
import fnmatch
import hashlib
import shutil
import struct
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from csd_emu.image.image_recipe import HASH_CHARACTERS, tree_hash
from csd_emu.image.image_rootfs import (
    compile_tree,
    find_python,
    kernel_release,
    make_disk,
    make_link,
    make_root,
    unpack_package,
)
from csd_emu.image.initramfs import Entry, KeyPair, write_initramfs
from csd_emu.image.packages import Package, PackageCache
from csd_emu.image.runner import Runner, find_tool
from csd_emu.util.paths import packaged_folder
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import ConfigurationError, ImageError

# Raised whenever the same recipe would give other bytes.
_BUILDER_VERSION = 3


@dataclass(frozen=True)
class PlainRecipe:
    """One recipe, read.

    Attributes:
        name: of the file.
        folder: holds the recipes, ``init`` and ``overlay/``.
        suite, architecture: of Debian.
        updated: with Debian's later updates, else as it was last released.
        install, without: packages, and packages that apt takes for installed.
        leave_out: GNU tar patterns of files that are not unpacked.
        kernel_package: fnmatch pattern of the package file that holds the kernel.
        initramfs_modules: what is loaded before the root is mounted; what they rest on is found.
        overlays: names of folders laid over the packages, in order.
        links: symbolic links, path -> target.
        ssh_server: ``openssh`` or ``dropbear``.
        enable: systemd units.
    """

    name: str
    folder: Path
    suite: str
    architecture: str
    updated: bool
    install: tuple[str, ...]
    without: tuple[str, ...]
    leave_out: tuple[str, ...]
    kernel_package: str
    initramfs_modules: tuple[str, ...]
    overlays: tuple[str, ...]
    links: Mapping[str, str]
    ssh_server: str
    enable: tuple[str, ...]

    @property
    def overlay_folders(self) -> tuple[Path, ...]:
        """The folders laid over the packages."""
        return tuple(self.folder / "overlay" / name for name in self.overlays)

    @property
    def hash(self) -> str:
        """Of all that the disk depends on."""
        parts = [f"builder {_BUILDER_VERSION}", (self.folder / f"{self.name}.toml").read_text(encoding="utf-8")]
        parts += [(self.folder / "init").read_text(encoding="utf-8")]
        parts += [tree_hash(folder, folder.name) for folder in self.overlay_folders]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:HASH_CHARACTERS]


def plain_folder() -> Path:
    """Return the folder of recipes: inside an installed package, or in the source tree."""
    return packaged_folder("csd_lab.testkit.plain", "recipe_files", "images/targets")


def plain_names(folder: Path | None = None) -> list[str]:
    """Return the names of all recipes."""
    return sorted(path.stem for path in (folder or plain_folder()).glob("*.toml"))


def load_plain_recipe(name: str, folder: Path | None = None) -> PlainRecipe:
    """Read one recipe.

    Raises:
        ConfigurationError: there is none of this name.
        ImageError: the file is no TOML, or lacks a key.
    """
    folder = folder or plain_folder()
    if name not in plain_names(folder):
        raise ConfigurationError(
            f"plain machine {name!r} is not known; choose one of: {', '.join(plain_names(folder))}"
        )
    path = folder / f"{name}.toml"
    try:
        return _recipe(name, folder, tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ImageError(f"{path}: cannot be read ({error}); reinstall csd-emu") from error
    except KeyError as error:
        raise ImageError(f"{path}: the key {error} is missing; reinstall csd-emu") from error


def _recipe(name: str, folder: Path, table: Mapping[str, Any]) -> PlainRecipe:
    debian, kernel, root = table["debian"], table["kernel"], table["root"]
    return PlainRecipe(
        name=name,
        folder=folder,
        suite=debian["suite"],
        architecture=debian["architecture"],
        updated=debian.get("updated", True),
        install=tuple(debian["install"]),
        without=tuple(debian["without"]),
        leave_out=tuple(debian["leave_out"]),
        kernel_package=kernel["package"],
        initramfs_modules=tuple(kernel["initramfs"]),
        overlays=tuple(root["overlays"]),
        links=root.get("links", {}),
        ssh_server=root["ssh_server"],
        enable=tuple(table.get("systemd", {}).get("enable", ())),
    )


def load_order(folder: Path, wanted: Sequence[str]) -> list[Path]:
    """Return the files of the modules `wanted` and of all they rest on, each after what it rests on.

    Args:
        folder: ``lib/modules/RELEASE``, with the ``modules.dep`` and ``modules.builtin`` of depmod.
        wanted: names; what is built into the kernel needs no file.

    Raises:
        ImageError: the kernel has no such module.
    """
    lines = (line.partition(":") for line in (folder / "modules.dep").read_text(encoding="utf-8").splitlines())
    rests_on = {path: others.split() for path, _, others in lines}
    paths = {_name(path): path for path in rests_on}
    builtin = {_name(line) for line in (folder / "modules.builtin").read_text(encoding="utf-8").splitlines()}
    order: list[str] = []
    for name in map(_name, wanted):
        if name in paths:
            _add(paths[name], rests_on, order)
        elif name not in builtin:
            raise ImageError(f"kernel {folder.name}: has no module {name}; correct the recipe")
    return [folder / path for path in order]


def _add(path: str, rests_on: dict[str, list[str]], order: list[str]) -> None:
    for other in rests_on[path]:
        _add(other, rests_on, order)
    if path not in order:
        order.append(path)


def _name(path: str) -> str:
    """Return a module's name as the kernel knows it: files use hyphens and underlines as they please."""
    return path.rpartition("/")[2].removesuffix(".ko").replace("-", "_")


DISK, KERNEL, INITRD, LOGIN_KEY, HOST_KEY = "disk.img", "vmlinuz", "initrd.img", "login_key", "host_key.pub"
DISK_BYTES = 6 << 30
# A real disk has a journal: these machines lose their power.
_FEATURES = "^metadata_csum,^resize_inode"
_INODES = 1 << 18
_HOST_KEY_PATHS = {"openssh": "etc/ssh/ssh_host_ed25519_key", "dropbear": "etc/dropbear/host_key"}
_UNITS, _VENDOR_UNITS = "etc/systemd/system", "usr/lib/systemd/system"
_COMMON_LINKS = {
    "usr/bin/awk": "mawk",
    "usr/bin/sh": "dash",
    "var/run": "/run",
    "var/lock": "/run/lock",
    "etc/mtab": "/proc/self/mounts",
}
# Each takes seconds of a boot that is emulated, and none is missed by who comes over SSH.
_MASKED = (
    *("getty.target", "serial-getty@.service", "console-getty.service", "systemd-logind.service", "timers.target"),
    *("systemd-binfmt.service", "systemd-journal-flush.service", "systemd-firstboot.service", "dev-hugepages.mount"),
    *("sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-kernel-config.mount", "dev-mqueue.mount"),
    *("sys-fs-fuse-connections.mount", "e2scrub_reap.service", "systemd-pstore.service", "systemd-update-utmp.service"),
    *("systemd-update-utmp-runlevel.service", "systemd-remount-fs.service"),
)


@dataclass(frozen=True)
class PlainImage:
    """One image on disk.

    Attributes:
        recipe: what it was made of.
        folder: holds its files, which never change: `DISK`, a raw ext4 file system of `DISK_BYTES`, sparse; `KERNEL`,
            and `INITRD`, which finds the disk; `LOGIN_KEY`, the private key that root, and the user ``operator``, let
            in; `HOST_KEY`, the public key by which the machine shows itself until it is given its own.
    """

    recipe: PlainRecipe
    folder: Path

    @property
    def host_key_path(self) -> str:
        """Where the machine keeps its private host key, from its root."""
        return _HOST_KEY_PATHS[self.recipe.ssh_server]


class PlainImages:
    """The plain images of one cache folder."""

    def __init__(self, cache: Path, runner: Runner | None = None) -> None:
        """Keep images, and what they are made of, in the folder ``targets`` of `cache`."""
        self._folder = cache / "targets"
        self._runner = runner or Runner()

    def ensure(self, name: str, progress: Progress) -> PlainImage:
        """Return the image of the recipe `name`; make it, in half a minute, if it is not there.

        Raises:
            ConfigurationError: there is no such recipe.
            EnvironmentUnfit: a tool, disk space or Debian's keyring is missing.
            ImageError: a download or the build failed.
        """
        recipe = load_plain_recipe(name)
        image = PlainImage(recipe, self._folder / f"{name}-{recipe.hash}")
        if not image.folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            with _locked(self._folder / ".lock"):
                if not image.folder.is_dir():
                    self._build(image, progress)
        return image

    def _build(self, image: PlainImage, progress: Progress) -> None:
        recipe = image.recipe
        progress.stage(f"download the packages of {recipe.name} (Debian {recipe.suite}, {recipe.architecture})")
        cache = PackageCache(
            self._folder / "downloads", recipe.suite, recipe.architecture, self._runner, updated=recipe.updated
        )
        packages = cache.fetch(recipe.install, recipe.without, progress.advance)
        progress.stage(f"make the disk of {recipe.name}")
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".build-") as name:
            partial = Path(name) / "image"
            root = Path(name) / "root"
            partial.mkdir()
            make_root(root)
            # It takes seconds, which are not shown.
            self._runner.parallel(lambda each: self._unpack(recipe, root, cache, each), packages, lambda _: None)
            self._compile(root)
            _lay_over(recipe, root)
            _set_links(recipe, root)
            _make_keys(recipe, root, partial)
            self._take_kernel(recipe, root, partial)
            make_disk(self._runner, root, partial / DISK, DISK_BYTES, features=_FEATURES, inodes=_INODES)
            partial.chmod(0o755)
            partial.rename(image.folder)

    def _unpack(self, recipe: PlainRecipe, root: Path, cache: PackageCache, package: Package) -> None:
        if package.file.startswith("linux-image-") and not fnmatch.fnmatch(package.file, recipe.kernel_package):
            return
        options = [f"--exclude={pattern}" for pattern in (*recipe.leave_out, "./usr/share/doc", "./usr/share/locale")]
        unpack_package(self._runner, cache.archives / package.file, root, options)

    def _compile(self, root: Path) -> None:
        """Compile the machine's own Python as its package would have, if there is a Python of its version here."""
        for program in (root / "usr/bin").glob("python3.*"):
            python = find_python(program.name.removeprefix("python"))
            if python is not None:
                compile_tree(self._runner, python, root, [f"usr/lib/{program.name}", "usr/lib/python3"], strict=False)

    def _take_kernel(self, recipe: PlainRecipe, root: Path, target: Path) -> None:
        release = kernel_release(root)
        (root / f"boot/vmlinuz-{release}").replace(target / KERNEL)
        self._runner.run([find_tool("depmod", "kmod"), "-b", root, release], "list the kernel's modules")
        modules = load_order(root / "usr/lib/modules" / release, recipe.initramfs_modules)
        entries = [Entry("dev", 0o755), Entry("root", 0o755)]
        entries += [Entry("init", 0o755, (recipe.folder / "init").read_bytes())]
        entries += [Entry("bin/busybox", 0o755, (root / "usr/bin/busybox").read_bytes())]
        entries += [Entry("modules/order", 0o644, "".join(f"{path.stem}\n" for path in modules).encode())]
        entries += [Entry(f"modules/{path.name}", 0o644, path.read_bytes()) for path in modules]
        write_initramfs(target / INITRD, entries)


def host_key_file(recipe: PlainRecipe, pair: KeyPair) -> bytes:
    """Return a private host key as the recipe's SSH server reads it."""
    if recipe.ssh_server == "openssh":
        return pair.private
    key = serialization.load_ssh_private_key(pair.private, None)
    if not isinstance(key, Ed25519PrivateKey):  # pragma: no cover - KeyPair makes no other
        raise TypeError("not an ed25519 key")
    # Dropbear's own format: the kind, then the private and the public half, each field with its length before it.
    halves = key.private_bytes_raw() + key.public_key().public_bytes_raw()
    return b"".join(struct.pack(">I", len(part)) + part for part in (b"ssh-ed25519", halves))


def _lay_over(recipe: PlainRecipe, root: Path) -> None:
    for overlay in recipe.overlay_folders:
        for source in sorted(overlay.rglob("*")):
            target = root / source.relative_to(overlay)
            if source.is_dir():
                target.mkdir(mode=0o755, parents=True, exist_ok=True)
                continue
            target.unlink(missing_ok=True)
            shutil.copyfile(source, target)
            # A wheel or a checkout under another umask does not keep modes.
            script = source.read_bytes().startswith(b"#!")
            target.chmod(0o755 if script else 0o600 if source.name.endswith("shadow") else 0o644)
    for folder in ("dev", "proc", "run", "sys", "tmp", "var/tmp"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder).chmod(0o1777 if folder.endswith("tmp") else 0o755)


def _set_links(recipe: PlainRecipe, root: Path) -> None:
    for name, target in (_COMMON_LINKS | dict(recipe.links)).items():
        make_link(root / name, target)
    if not recipe.enable:
        return
    # Without one systemd would enable every unit that there is.
    machine_id = hashlib.sha256(f"machine-id {recipe.hash}".encode()).hexdigest()[:32]
    (root / "etc/machine-id").write_text(machine_id + "\n", encoding="utf-8")
    units = root / _UNITS
    make_link(units / "default.target", f"/{_VENDOR_UNITS}/multi-user.target")
    for name in _MASKED:
        make_link(units / name, "/dev/null")
    for name in recipe.enable:
        own = f"{_UNITS}/{name}" if (units / name).exists() else f"{_VENDOR_UNITS}/{name}"
        if not (root / own).exists():
            raise ImageError(f"{name}: no such unit in the packages or the overlays; correct {recipe.name}.toml")
        make_link(units / "multi-user.target.wants" / name, f"/{own}")


def _make_keys(recipe: PlainRecipe, root: Path, target: Path) -> None:
    login, host = KeyPair.make(), KeyPair.make()
    _write(root / _HOST_KEY_PATHS[recipe.ssh_server], host_key_file(recipe, host), 0o600)
    for home in ("root", "home/operator"):
        (root / home / ".ssh").mkdir(parents=True, exist_ok=True)
        (root / home / ".ssh").chmod(0o700 if home == "root" else 0o755)
        _write(root / home / ".ssh/authorized_keys", login.public, 0o600 if home == "root" else 0o644)
    (root / "root").chmod(0o700)
    _write(target / LOGIN_KEY, login.private, 0o600)
    _write(target / HOST_KEY, host.public, 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=mode)
    path.chmod(mode)
    path.write_bytes(content)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time make an image; the others wait and find it made."""
    with path.open("a") as lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        yield
