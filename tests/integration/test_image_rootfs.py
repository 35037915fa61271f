import dataclasses
import os
import re
import subprocess
from pathlib import Path

import pytest

from csd_emu.image.image_recipe import ImageRecipe, image_folder, load_recipe
from csd_emu.image.image_rootfs import complete_root, kernel_release, make_disk, make_root, take_kernel, unpack_package
from csd_emu.image.runner import Runner, find_tool
from firmware_agent.common.errors import ImageError

RELEASE = "6.1.0-cloud-arm64"


@pytest.fixture
def recipe(tmp_path: Path) -> ImageRecipe:
    """A recipe with two units and one overlay file of odd mode."""
    overlay = tmp_path / "recipe" / "overlay" / "etc" / "systemd" / "system"
    overlay.mkdir(parents=True)
    (overlay / "own.service").write_text("[Service]\n")
    (overlay / "own.service").chmod(0o600)
    shipped = load_recipe(image_folder())
    return dataclasses.replace(
        shipped,
        folder=tmp_path / "recipe",
        enable=("own.service", "ssh.service"),
        mask=("noise.timer",),
        initramfs_modules=("virtio",),
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    make_root(root)
    for name in (
        "usr/lib/systemd/system/ssh.service",
        "usr/lib/systemd/system-generators/getty-generator",
        f"usr/lib/modules/{RELEASE}/kernel/drivers/virtio/virtio.ko",
        f"boot/vmlinuz-{RELEASE}",
        "usr/bin/busybox",
        "var/run/old",
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


class NoDepmod(Runner):
    def run(self, command: object, purpose: str, **_: object) -> str:
        return ""


def test_what_the_scripts_would_have_made_is_there(recipe: ImageRecipe, root: Path) -> None:
    assert complete_root(NoDepmod(), recipe, root) == RELEASE
    units = root / "etc/systemd/system"
    assert os.readlink(units / "noise.timer") == "/dev/null"
    assert os.readlink(units / "multi-user.target.wants/own.service") == "/etc/systemd/system/own.service"
    assert os.readlink(units / "multi-user.target.wants/ssh.service") == "/usr/lib/systemd/system/ssh.service"
    assert os.readlink(root / "etc/systemd/system-generators/getty-generator") == "/dev/null"
    assert os.readlink(root / "var/run") == "/run"
    assert os.readlink(root / "bin") == "usr/bin"
    assert (units / "own.service").stat().st_mode & 0o777 == 0o644
    assert re.fullmatch(r"[0-9a-f]{32}\n", (root / "etc/machine-id").read_text())


def test_a_unit_that_is_nowhere_is_named(recipe: ImageRecipe, root: Path) -> None:
    with pytest.raises(ImageError, match=r"absent\.service: no such unit"):
        complete_root(NoDepmod(), dataclasses.replace(recipe, enable=("absent.service",)), root)


def test_the_kernel_moves_out_and_its_modules_are_copied(recipe: ImageRecipe, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "layer"
    target.mkdir()
    take_kernel(recipe, root, RELEASE, target)
    assert (target / "vmlinuz").read_text() == f"boot/vmlinuz-{RELEASE}"
    assert not list(root.glob("boot/*"))
    assert (target / "modules/virtio.ko").is_file()
    assert (target / "busybox").is_file()
    wrong = dataclasses.replace(recipe, initramfs_modules=("absent",))
    (root / f"boot/vmlinuz-{RELEASE}").touch()
    (tmp_path / "other").mkdir()
    with pytest.raises(ImageError, match="no module absent"):
        take_kernel(wrong, root, RELEASE, tmp_path / "other")


def test_two_kernels_or_none_are_refused(root: Path) -> None:
    (root / "usr/lib/modules/other").mkdir()
    with pytest.raises(ImageError, match="2 kernels"):
        kernel_release(root)


def test_a_package_is_unpacked_into_a_merged_usr(tmp_path: Path) -> None:
    content = tmp_path / "content"
    for name in ("DEBIAN/control", "bin/tool", "usr/share/doc/tool/copyright"):
        (content / name).parent.mkdir(parents=True, exist_ok=True)
        (content / name).write_text("x")
    control = "Package: tool\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.com>\nDescription: x\n"
    (content / "DEBIAN/control").write_text(control)
    package = tmp_path / "tool_1_all.deb"
    subprocess.run([find_tool("dpkg-deb", "dpkg"), "--build", content, package], check=True, capture_output=True)
    root = tmp_path / "root"
    make_root(root)
    unpack_package(Runner(), package, root, ["--exclude=./usr/share/doc"])
    assert (root / "usr/bin/tool").read_text() == "x"
    assert (root / "bin").is_symlink()
    assert not (root / "usr/share/doc").exists()
    package.write_bytes(package.read_bytes()[:-100])
    with pytest.raises(ImageError, match=r"cannot unpack tool_1_all\.deb.*download cache"):
        unpack_package(Runner(), package, root, [])


def test_a_disk_holds_the_folder_as_roots_property(tmp_path: Path) -> None:
    root, disk = tmp_path / "root", tmp_path / "disk.img"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "file").write_text("content")
    make_disk(Runner(), root, disk, 32 << 20)
    assert disk.stat().st_size == 32 << 20
    assert disk.stat().st_blocks * 512 < 16 << 20

    def ask(command: str) -> str:
        program = find_tool("debugfs", "e2fsprogs")
        return subprocess.run([program, "-R", command, disk], capture_output=True, text=True, check=True).stdout

    assert ask("cat /etc/file") == "content"
    assert re.search(r"User: +0 +Group: +0", ask("stat /etc/file"))
    assert "has_journal" not in ask("show_super_stats -h")


def test_content_that_does_not_fit_is_one_clear_error(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "big").write_bytes(os.urandom(20 << 20))
    with pytest.raises(ImageError, match="cannot fill the root disk"):
        make_disk(Runner(), root, tmp_path / "disk.img", 16 << 20)
