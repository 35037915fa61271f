"""The initramfs: finds the root disk, and carries what differs between images of one layer - the agent and the keys.

So a changed agent needs no new disk, and images of one layer share theirs.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from csd_emu.image.cpio import Entry, archive
from csd_emu.image.guest_bytecode import BuildPython, compile_tree
from csd_emu.image.image_recipe import ImageRecipe, source_files
from csd_emu.image.runner import Runner

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
    for folder in ("dev", "root"):
        yield Entry(folder, 0o755)
    yield Entry("init", 0o755, (recipe.folder / "init").read_bytes())
    yield Entry("bin/busybox", 0o755, (layer / "busybox").read_bytes())
    yield Entry("modules/order", 0o644, "".join(f"{name}\n" for name in recipe.initramfs_modules).encode())
    for name in recipe.initramfs_modules:
        yield Entry(f"modules/{name}.ko", 0o644, (layer / "modules" / f"{name}.ko").read_bytes())


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
        for source in source_files(agent):
            target = root / AGENT / source.relative_to(agent)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        compile_tree(runner, python, root, [AGENT], strict=True)
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        return [Entry(f"files/{path.relative_to(root)}", 0o644, path.read_bytes()) for path in paths]


def check_entries(recipe: ImageRecipe) -> Iterator[Entry]:
    """Yield what turns an ordinary boot into the check boot."""
    folder = recipe.folder / "check"
    drop_in = "files/etc/systemd/system/csd-agent.service.d/check.conf"
    yield Entry(drop_in, 0o644, (folder / "check.conf").read_bytes())
    yield Entry("files/opt/csd/check.py", 0o644, (folder / "check.py").read_bytes())


def write_initramfs(path: Path, entries: list[Entry]) -> None:
    """Write an initramfs, uncompressed: an emulated core would need longer to inflate it than to read it."""
    path.write_bytes(archive(entries))
