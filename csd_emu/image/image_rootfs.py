"""The guest's file system: packages unpacked without their scripts, in a folder and as a disk, with bytecode.

The bytecode is made on the build machine, so that no emulated core compiles anything.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from csd_emu.image.image_recipe import ImageRecipe
from csd_emu.image.packages import PackageCache
from csd_emu.image.runner import Runner, find_tool
from firmware_agent.common.errors import ImageError

SITE = "opt/csd/site"
_UNITS = "etc/systemd/system"
_VENDOR_UNITS = "/usr/lib/systemd/system"
_MERGED = ("bin", "sbin", "lib")
_LINKS = {
    "usr/bin/awk": "mawk",
    "usr/bin/sh": "dash",
    "var/run": "/run",
    "var/lock": "/run/lock",
    "etc/mtab": "/proc/self/mounts",
    f"{_UNITS}/default.target": f"{_VENDOR_UNITS}/multi-user.target",
}


def make_root(root: Path, extra_folders: Sequence[str] = ()) -> None:
    """Make an empty root whose /bin, /sbin and /lib are links into /usr, as on every Debian since 12."""
    for name in (*_MERGED, *extra_folders):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")


def unpack_package(runner: Runner, package: Path, root: Path, options: Sequence[str]) -> None:
    """Unpack one Debian package below `root`, everything owned by whoever builds.

    Args:
        runner: runs dpkg-deb and tar.
        package: the file.
        root: made by `make_root`.
        options: more arguments for tar, such as ``--exclude=PATTERN``.

    Raises:
        ImageError: the package is damaged or the disk is full.
    """
    source: list[str | Path] = [find_tool("dpkg-deb", "dpkg"), "--fsys-tarfile", package]
    sink: list[str | Path] = [
        find_tool("tar", "tar"),
        "-x",
        "-C",
        root,
        "-p",
        "--no-same-owner",
        "--keep-directory-symlink",
        *options,
    ]
    runner.pipe(source, sink, f"unpack {package.name}")


def kernel_options(recipe: ImageRecipe) -> list[str]:
    """Return tar arguments that unpack of a kernel package only the kernel and the recipe's modules."""
    modules = [f"./lib/modules/*/kernel/{prefix}*" for prefix in recipe.modules]
    return ["--wildcards", "./boot/vmlinuz-*", "./lib/modules/*/modules.*", *modules]


def complete_root(runner: Runner, recipe: ImageRecipe, root: Path) -> str:
    """Add what the packages' scripts would have made, and return the kernel's release.

    Raises:
        ImageError: the packages do not hold what the recipe expects.
    """
    release = kernel_release(root)
    runner.run([find_tool("depmod", "kmod"), "-b", root, release], "list the kernel's modules")
    _copy_overlay(recipe.overlay, root)
    for name, target in _LINKS.items():
        make_link(root / name, target)
    _set_units(recipe, root)
    machine_id = hashlib.sha256(f"machine-id {recipe.layer_hash()}".encode()).hexdigest()[:32]
    (root / "etc/machine-id").write_text(machine_id + "\n", encoding="utf-8")
    return release


def kernel_release(root: Path) -> str:
    """Return the release of the one kernel below `root`."""
    if len(releases := [path.name for path in (root / "usr/lib/modules").glob("*")]) != 1:
        raise ImageError(f"{root}: {len(releases)} kernels instead of one; remove the download cache and run it again")
    return releases[0]


def take_kernel(recipe: ImageRecipe, root: Path, release: str, target: Path) -> None:
    """Move the kernel out of `root`, and copy what the initramfs needs, into the folder `target`."""
    (root / f"boot/vmlinuz-{release}").replace(target / "vmlinuz")
    modules = target / "modules"
    modules.mkdir()
    paths = {path.stem: path for path in (root / "usr/lib/modules" / release).rglob("*.ko")}
    for name in recipe.initramfs_modules:
        if name not in paths:
            raise ImageError(f"kernel {release}: has no module {name}; correct recipe.toml")
        shutil.copyfile(paths[name], modules / f"{name}.ko")
    shutil.copyfile(root / "usr/bin/busybox", target / "busybox")


def _copy_overlay(overlay: Path, root: Path) -> None:
    # Modes are set here because a wheel or a checkout under another umask does not keep them.
    for source in sorted(overlay.rglob("*")):
        target = root / source.relative_to(overlay)
        if source.is_dir():
            target.mkdir(mode=0o755, parents=True, exist_ok=True)
        else:
            target.unlink(missing_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o644)


def _set_units(recipe: ImageRecipe, root: Path) -> None:
    units = root / _UNITS
    for name in recipe.mask:
        make_link(units / name, "/dev/null")
    # Generators look for disks, consoles and crypt tables that a drive does not have; each is a process at boot.
    for generator in (root / "usr/lib/systemd/system-generators").iterdir():
        make_link(root / "etc/systemd/system-generators" / generator.name, "/dev/null")
    for name in recipe.enable:
        own = f"/{_UNITS}/{name}" if (units / name).exists() else f"{_VENDOR_UNITS}/{name}"
        if not (root / own.lstrip("/")).exists():
            raise ImageError(f"{name}: no such unit in the packages or the overlay; correct recipe.toml")
        make_link(units / "multi-user.target.wants" / name, own)


def make_link(path: Path, target: str) -> None:
    """Make `path` a symbolic link, whatever is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


_INODES = 32768
# No journal: a drive's root is thrown away, never recovered. No checksums: an emulated core would compute them.
_FEATURES = "^has_journal,^metadata_csum,^resize_inode"


def make_disk(
    runner: Runner, root: Path, disk: Path, size_bytes: int, *, features: str = _FEATURES, inodes: int = _INODES
) -> None:
    """Write a raw, sparse ext4 disk with the content of `root`; every file in it belongs to root.

    Args:
        runner: runs mke2fs.
        root: the content.
        disk: is written.
        size_bytes: of the disk as a machine sees it.
        features: of ext4, as mke2fs takes them.
        inodes: how many files the disk can hold.

    Raises:
        EnvironmentUnfit: mke2fs, or for an ordinary user fakeroot, is missing.
        ImageError: the content does not fit or this machine's disk is full.
    """
    command: list[str | Path] = [
        *(find_tool("mke2fs", "e2fsprogs"), "-q", "-F", "-t", "ext4", "-O", features, "-m", "0", "-N", str(inodes)),
        *("-E", "root_owner=0:0,lazy_itable_init=0", "-L", "csd-root", "-d", root, disk, f"{size_bytes // 1024}k"),
    ]
    if os.geteuid() != 0:
        # It shows mke2fs the builder's own files as root's, which is all that is needed of it.
        command = [find_tool("fakeroot", "fakeroot"), *command]
    runner.run(command, f"fill the root disk {disk}")


_SOURCES_WORTH_A_PROCESS = 50
_START_SECONDS = 30.0


@dataclass(frozen=True)
class BuildPython:
    """A Python of the guest's version that runs on the build machine."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def find_python(version: str) -> BuildPython | None:
    """Return an installed CPython of `version`, ``major.minor``; None if there is none."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version and sys.implementation.name == "cpython":
        return BuildPython((sys.executable, "-I"))
    found = shutil.which(f"python{version}")
    return BuildPython((found, "-I")) if found and _runs(found) else None


def _runs(python: str) -> bool:
    """Return whether a program of this name is more than a version manager's stand-in for what is not chosen."""
    try:
        done = subprocess.run([python, "-I", "-c", ""], capture_output=True, check=False, timeout=_START_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


class PythonCache:
    """Debian's Python for the build machine's architecture, unpacked in a folder and run by its own loader."""

    def __init__(self, folder: Path, packages: PackageCache, recipe: ImageRecipe, runner: Runner) -> None:
        self._folder, self._packages, self._recipe, self._runner = folder, packages, recipe, runner

    def fetch(self) -> list[Path]:
        """Return its package files; raises like `PackageCache.fetch`."""
        packages = self._packages.fetch(self._recipe.build_install, self._recipe.build_without)
        return [self._packages.archives / package.file for package in packages]

    def unpack(self, archives: Sequence[Path]) -> BuildPython:
        """Unpack `archives`, if that was not done before, and return the Python in them.

        Raises:
            ImageError: they hold no Python or no loader.
        """
        name = "-".join(sorted(path.name for path in archives))
        root = self._folder / f"python-{self._recipe.python}-{zlib.crc32(name.encode()):08x}"
        if not root.is_dir():
            partial = root.with_name(f".{root.name}")
            shutil.rmtree(partial, ignore_errors=True)
            make_root(partial, ("lib64",))
            for archive in archives:
                unpack_package(self._runner, archive, partial, ["--exclude=./usr/share"])
            partial.rename(root)
        return self._python(root)

    def _python(self, root: Path) -> BuildPython:
        loaders = sorted(root.glob("usr/lib*/ld-linux*.so.*"))
        libraries = sorted(path.parent for path in root.glob("usr/lib/*/libc.so.6"))
        program = root / f"usr/bin/python{self._recipe.python}"
        if not (loaders and libraries and program.exists()):
            raise ImageError(f"{root}: holds no Python {self._recipe.python}; remove the folder and run it again")
        command = (str(loaders[0]), "--library-path", str(libraries[0]), str(program), "-s")
        return BuildPython(command, {"PYTHONHOME": str(root / "usr")})


def compile_tree(runner: Runner, python: BuildPython, root: Path, folders: Sequence[str], *, strict: bool) -> None:
    """Compile the folders below `root` for a guest that has them below ``/``, on all cores.

    The bytecode is never compared with its source: file times do not survive the way into the guest.

    Raises:
        ImageError: with `strict`, a source does not compile.
    """
    found = [path for folder in folders for path in (root / folder).rglob("*.py")]
    sources = [path for path in found if not path.is_symlink()]  # one into /etc would lead out of the tree
    shares = deal(sources, max(1, min(os.cpu_count() or 1, len(sources) // _SOURCES_WORTH_A_PROCESS)))
    # compileall's own workers would outlive it when it is killed; these are programs of the runner.
    runner.parallel(lambda share: _compile(runner, python, root, share, strict), shares, lambda _: None)


def deal(sources: Sequence[Path], shares: int) -> list[list[Path]]:
    """Deal files out so that every share has about as many bytes."""
    largest_first = sorted(sources, key=lambda path: (-path.stat().st_size, path))
    return [largest_first[start::shares] for start in range(shares)]


def _compile(runner: Runner, python: BuildPython, root: Path, sources: Sequence[Path], strict: bool) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="csd-compile-", suffix=".txt") as names:
        names.writelines(f"{path}\n" for path in sources)
        names.flush()
        command = [
            *(*python.command, "-m", "compileall", "-q" if strict else "-qq", "-i", names.name),
            *("--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/"),
        ]
        accept = (0,) if strict else (0, 1)
        runner.run(command, "compile", environment=python.environment, accept=accept, remedy="correct the source")
