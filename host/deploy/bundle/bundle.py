"""Bundles: what is copied to a drive, made on the server and kept there by the digest of what went in.

A bundle has two layers. The base holds the Python packages (or a whole root file system); it is large and changes
rarely. The version holds the agent, the control script and its unit; it is small, names its base, and its ID is the
bundle's. So an upgrade copies kilobytes unless the packages changed too.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import firmware_agent
from csd_emu.image.image_recipe import copy_sources, image_folder, tree_hash
from csd_emu.image.image_rootfs import BuildPython, deal, find_python, make_link, make_root, unpack_package
from csd_emu.image.packages import GUEST_ARCHITECTURE, PackageCache
from csd_emu.image.runner import Runner
from csd_emu.image.wheels import LockedWheels, WheelCache, unpack_wheel
from csd_emu.util.file_locks import FILE, locked
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import ImageError
from host.deploy.bundle.bundle_recipe import (
    DriveRecipe,
    RootfsRecipe,
    Variant,
    default_folder,
    load_recipe,
)
from host.deploy.bundle.layer_archives import ID_CHARACTERS, Layer, pack_layer, read_layer
from host.deploy.compatibility import Form

# Raised whenever the same inputs would give other bytes.
BUILDER_VERSION = 1
VERSION_FILE = "version.json"
_SCRIPTS = ("csd-agent.init", "csd-agent.service", "csd-agent-health.service")
_PARTIAL = ".partial-"


@dataclass(frozen=True)
class Packed:
    """A layer and the folder on the server that holds its parts."""

    layer: Layer
    folder: Path


@dataclass(frozen=True)
class _Sources:
    """What a base is made of: wheels, Debian packages, and the words that tell it from others."""

    wanted: LockedWheels
    archives: list[Path]
    words: tuple[object, ...]


@dataclass(frozen=True)
class Bundle:
    """What a drive of one form gets.

    Attributes:
        variant: which one.
        base: packages or root file system; lies in ``layers/ID`` on a drive.
        version: agent and control script; lies in ``versions/ID``.
    """

    variant: Variant
    base: Packed
    version: Packed

    @property
    def id(self) -> str:
        """Names the version: the first digits of the SHA-256 of the archive that holds it, which names its base."""
        return self.version.layer.id


class BundleStore:
    """The bundles of one user, each made once; used from several threads and processes."""

    def __init__(
        self,
        folder: Path,
        downloads: Path,
        wheels: tuple[Path, ...] = (Path("wheels"),),
        recipe: DriveRecipe | None = None,
        agent: Path | None = None,
        runner: Runner | None = None,
    ) -> None:
        """Keep bundles in `folder`, which is made when it is needed.

        Args:
            folder: the store.
            downloads: where images keep their downloads; wheels are shared with them.
            wheels: folders whose wheels are used before any package index is asked.
            recipe: by default the one that comes with csd-emu.
            agent: the package ``firmware_agent``, by default the installed one.
            runner: runs pip and the drive's Python.
        """
        self._folder, self._downloads, self._wheels = folder, downloads, wheels
        self._recipe = recipe or load_recipe(default_folder())
        self._agent = agent or Path(firmware_agent.__file__).parent
        self._runner = runner or Runner()
        self._lock = threading.Lock()

    def ensure(self, variant: Variant, progress: Progress) -> Bundle:
        """Return the bundle of a form; make what is not there yet.

        Raises:
            ConfigurationError: there is no such form.
            EnvironmentUnfit: this machine lacks something to make it.
            ImageError: a download failed, or a bundle on the server is damaged.
        """
        with self._lock, self._locked():
            base = self._base(variant, progress)
            return Bundle(variant, base, self._version(variant, base, progress))

    def _base(self, variant: Variant, progress: Progress) -> Packed:
        sources = self._sources(variant, progress)
        folder = self._place(
            variant.form.value,
            (*sources.words, self._recipe.leave_out, self._recipe.uncompiled, self._compiled_by(variant)),
        )
        if not folder.is_dir():
            progress.stage(f"download Python packages for CPython {variant.python} on aarch64")
            cache = WheelCache(self._downloads / "wheels", self._wheels, sources.wanted, self._runner)
            wheels = cache.fetch(progress.advance)
            progress.stage(f"pack {len(wheels)} packages for CPython {variant.python}")
            with self._making(folder) as (tree, target):
                site = tree / ROOTFS_SITE if variant.form is Form.ROOTFS else tree
                if variant.form is Form.ROOTFS:
                    fill_rootfs(self._runner, self._recipe.rootfs, sources.archives, tree)
                self._runner.parallel(
                    lambda wheel: unpack_wheel(wheel, site, self._recipe.leave_out), wheels, lambda _: None
                )
                self._compile(variant, tree)
                pack_layer(tree, target, self._recipe.part_bytes)
        return Packed(read_layer(folder), folder)

    def _sources(self, variant: Variant, progress: Progress) -> _Sources:
        wanted = self._recipe.wheels(variant.python)
        locked = wanted.lock_file.read_text(encoding="utf-8")
        if variant.form is Form.WHEELS:
            return _Sources(wanted, [], (locked,))
        recipe = self._recipe.rootfs
        progress.stage(f"download Debian {recipe.suite} packages for aarch64")
        cache = PackageCache(self._downloads, recipe.suite, GUEST_ARCHITECTURE, self._runner)
        packages = cache.fetch(recipe.install, recipe.without, progress.advance)
        archives = [cache.archives / package.file for package in packages]
        return _Sources(wanted, archives, (locked, recipe, sorted(package.sha256 for package in packages)))

    def _version(self, variant: Variant, base: Packed, progress: Progress) -> Packed:
        scripts = tree_hash(self._recipe.folder, "")
        words = (tree_hash(self._agent, ""), scripts, base.layer.id, variant.form.value, self._compiled_by(variant))
        if not (folder := self._place("version", words)).is_dir():
            progress.stage("pack the agent")
            with self._making(folder) as (tree, target):
                self._fill_version(tree, variant, base.layer.id)
                pack_layer(tree, target, 1 << 40)
        return Packed(read_layer(folder), folder)

    def _fill_version(self, tree: Path, variant: Variant, base: str) -> None:
        copy_sources(self._agent, tree / "agent" / self._agent.name)
        self._compile(variant, tree)
        (tree / "bin").mkdir()
        shutil.copyfile(self._recipe.folder / "csd-agent", tree / "bin/csd-agent")
        (tree / "bin/csd-agent").chmod(0o755)
        for name in _SCRIPTS:
            shutil.copyfile(self._recipe.folder / name, tree / name)
        (tree / ("site" if variant.form is Form.WHEELS else "rootfs")).symlink_to(f"../../layers/{base}")
        facts = {
            "form": variant.form.value,
            "python": variant.python,
            "layer": base,
            "agent": firmware_agent.__version__,
        }
        (tree / VERSION_FILE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    def _compile(self, variant: Variant, tree: Path) -> None:
        """Compile the sources below `tree`, if a Python of the drive's version is on this machine."""
        if (python := find_python(variant.python)) is not None:
            site = tree / ROOTFS_SITE
            sources = [
                path.relative_to(tree)
                for path in tree.rglob("*.py")
                if not any(
                    fnmatch.fnmatch(path.relative_to(site if path.is_relative_to(site) else tree).as_posix(), pattern)
                    for pattern in self._recipe.uncompiled
                )
            ]
            compile_sources(self._runner, python, tree, sources)

    def _compiled_by(self, variant: Variant) -> str:
        return "nothing" if find_python(variant.python) is None else variant.python

    def _place(self, kind: str, words: tuple[object, ...]) -> Path:
        salt = repr((BUILDER_VERSION, self._recipe.part_bytes, words))
        return self._folder / f"{kind}-{hashlib.sha256(salt.encode()).hexdigest()[:ID_CHARACTERS]}"

    @contextmanager
    def _making(self, folder: Path) -> Iterator[tuple[Path, Path]]:
        """Give an empty folder for the tree and one for its archives; the latter becomes `folder`."""
        try:
            with tempfile.TemporaryDirectory(dir=self._folder, prefix=_PARTIAL) as name:
                tree, target = Path(name) / "tree", Path(name) / "packed"
                tree.mkdir()
                target.mkdir()
                yield tree, target
                target.rename(folder)
        except OSError as error:
            raise ImageError(f"{self._folder}: no bundle can be made there ({error}); free some disk space") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        with locked(self._folder / ".lock", FILE):
            for leftover in self._folder.glob(f"{_PARTIAL}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            yield


_PROCESSES = 4
# Runs in the Python of the drive's version. Marshal's later formats depend on what else the process has seen, the
# second does not. Bytecode is never compared with its source, whose time means nothing on a drive.
_COMPILER = """
import importlib.util, marshal, os, sys
root, names = sys.argv[1:]
for name in open(names, encoding="utf-8").read().splitlines():
    path = os.path.join(root, name)
    with open(path, "rb") as file:
        source = file.read()
    try:
        code = compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        continue  # packages carry samples for other versions
    target = importlib.util.cache_from_source(path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little"))
        file.write(importlib.util.source_hash(source) + marshal.dumps(code, 2))
"""


def compile_sources(runner: Runner, python: BuildPython, root: Path, names: Sequence[Path]) -> None:
    """Compile the files `names`, relative to `root`, each into the cache folder beside it.

    Raises:
        ImageError: that Python cannot be run.
    """
    shares = deal([root / name for name in names], max(1, min(_PROCESSES, len(names))))
    runner.parallel(lambda share: _compile(runner, python, root, share), shares, lambda _: None)


def _compile(runner: Runner, python: BuildPython, root: Path, sources: Sequence[Path]) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="csd-compile-", suffix=".txt", encoding="utf-8") as names:
        names.writelines(f"{path.relative_to(root).as_posix()}\n" for path in sources)
        names.flush()
        command: list[str | Path] = [
            *(word for word in python.command if word != "-I"),
            "-s",
            "-c",
            _COMPILER,
            root,
            names.name,
        ]
        # The order of a set's members depends on the seed.
        runner.run(command, "compile the drive's packages", environment={**python.environment, "PYTHONHASHSEED": "0"})


# Where the Python packages lie in it, as in the image of emulated drives; the control script knows it too.
ROOTFS_SITE = "opt/csd/site"
# Places to mount on.
_PLACES = ("dev", "proc", "sys", "tmp", "run", "root")


def fill_rootfs(runner: Runner, recipe: RootfsRecipe, archives: Sequence[Path], root: Path) -> None:
    """Unpack Debian packages into the empty folder `root`, and add what their scripts would have written.

    Raises:
        ImageError: a package is damaged or the disk is full.
    """
    make_root(root)
    options = [f"--exclude={pattern}" for pattern in recipe.leave_out]
    runner.parallel(lambda archive: unpack_package(runner, archive, root, options), archives, lambda _: None)
    for name in _PLACES:
        (root / name).mkdir(exist_ok=True)
    overlay = image_folder() / "overlay"
    for name in recipe.overlay:
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copyfile(overlay / name, target)
    make_link(root / "usr/bin/sh", "dash")
    (root / ROOTFS_SITE).mkdir(parents=True)
