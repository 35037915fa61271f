"""The initramfs: finds the root disk, and carries what differs between images of one layer - the agent and the keys.

So a changed agent needs no new disk, and images of one layer share theirs.
"""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from csd_emu.image.image_recipe import ImageRecipe, copy_sources
from csd_emu.image.image_rootfs import BuildPython, compile_tree
from csd_emu.image.runner import Runner

_ALIGNMENT = 4
_TRAILER = "TRAILER!!!"
# Any fixed date will do; zero would look like an error in the guest.
_TIME_SECONDS = 1


@dataclass(frozen=True)
class Entry:
    """A file or folder: its path without a leading slash, permission bits, and content (None for a folder)."""

    path: str
    mode: int
    content: bytes | None = None


def archive(entries: Iterable[Entry]) -> bytes:
    """Return the archive; everything belongs to root, and missing parent folders are added with mode 0755."""
    blocks: list[bytes] = []
    made: set[str] = set()
    for entry in entries:
        for parent in [str(parent) for parent in reversed(PurePosixPath(entry.path).parents) if str(parent) != "."]:
            if parent not in made:
                blocks.append(_block(Entry(parent, 0o755), len(blocks) + 1))
                made.add(parent)
        if entry.content is not None or entry.path not in made:
            blocks.append(_block(entry, len(blocks) + 1))
        made.add(entry.path)
    return b"".join(blocks) + _record(_TRAILER, 0, b"", 0)


def _block(entry: Entry, inode: int) -> bytes:
    kind = stat.S_IFDIR if entry.content is None else stat.S_IFREG
    return _record(entry.path, kind | entry.mode, entry.content or b"", inode)


def _record(name: str, mode: int, content: bytes, inode: int) -> bytes:
    encoded = name.encode() + b"\0"
    fields = [inode, mode, 0, 0, 1, _TIME_SECONDS, len(content), 0, 0, 0, 0, len(encoded), 0]
    return _padded(b"070701" + b"".join(b"%08X" % field for field in fields) + encoded) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


AGENT = "opt/csd/firmware_agent"


@dataclass(frozen=True)
class KeyPair:
    """An SSH key pair in OpenSSH's formats."""

    private: bytes
    public: bytes

    @classmethod
    def make(cls) -> KeyPair:
        """Return a new ed25519 pair."""
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        return cls(private, public + b" csd-emu\n")


def boot_entries(recipe: ImageRecipe, layer: Path) -> Iterator[Entry]:
    """Yield what finds and mounts the root disk; `layer` holds busybox and the kernel modules."""
    yield from (Entry(folder, 0o755) for folder in ("dev", "root"))
    yield Entry("init", 0o755, (recipe.folder / "init").read_bytes())
    yield Entry("bin/busybox", 0o755, (layer / "busybox").read_bytes())
    yield Entry("modules/order", 0o644, "".join(f"{name}\n" for name in recipe.initramfs_modules).encode())
    modules = (f"modules/{name}.ko" for name in recipe.initramfs_modules)
    yield from (Entry(module, 0o644, (layer / module).read_bytes()) for module in modules)


def key_entries(login: KeyPair, host: KeyPair) -> Iterator[Entry]:
    """Yield the key that may log in and the key by which sshd shows itself."""
    yield Entry("files/root", 0o700)
    yield Entry("files/root/.ssh", 0o700)
    yield Entry("files/root/.ssh/authorized_keys", 0o600, login.public)
    yield Entry("files/etc/ssh/ssh_host_ed25519_key", 0o600, host.private)
    yield Entry("files/etc/ssh/ssh_host_ed25519_key.pub", 0o644, host.public)


def agent_entries(runner: Runner, python: BuildPython, agent: Path) -> list[Entry]:
    """Return the agent's sources and bytecode.

    Raises:
        ImageError: a source does not compile.
    """
    with tempfile.TemporaryDirectory(prefix="csd-agent-") as name:
        root = Path(name)
        copy_sources(agent, root / AGENT)
        compile_tree(runner, python, root, [AGENT], strict=True)
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        return [Entry(f"files/{path.relative_to(root)}", 0o644, path.read_bytes()) for path in paths]


def check_entries(recipe: ImageRecipe) -> Iterator[Entry]:
    """Yield what turns an ordinary boot into the check boot."""
    folder = recipe.folder / "check"
    yield Entry("files/etc/systemd/system/csd-agent.service.d/check.conf", 0o644, (folder / "check.conf").read_bytes())
    yield Entry("files/opt/csd/check.py", 0o644, (folder / "check.py").read_bytes())


def write_initramfs(path: Path, entries: list[Entry]) -> None:
    """Write an initramfs, uncompressed: an emulated core would need longer to inflate it than to read it."""
    path.write_bytes(archive(entries))
