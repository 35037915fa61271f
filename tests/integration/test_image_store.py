import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from csd_emu.image import Image, ImageStore
from csd_emu.image.boot_check import Bootable
from csd_emu.image.image_recipe import image_folder, load_recipe
from csd_emu.image.image_rootfs import BuildPython
from csd_emu.image.layer import Inputs, Stages
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import EnvironmentUnfit, ImageError

REPORT = {"system": "running"}


class Factory:
    """Makes layers out of nothing and counts them; `fail` is raised half-way through the next one."""

    def __init__(self) -> None:
        self.layers = 0
        self.fail: BaseException | None = None
        self.build_takes = threading.Event()
        self.build_takes.set()

    def fetch(self, stages: Stages, *, refresh: bool = False) -> Inputs:
        return Inputs(Path(), [], [])

    def python(self, stages: Stages) -> BuildPython:
        return BuildPython((sys.executable, "-I"))

    def build(self, target: Path, inputs: Inputs, stages: Stages) -> dict[str, Any]:
        (target / "disk.img").write_bytes(b"disk" * 1000)
        if self.fail is not None:
            raise self.fail
        self.build_takes.wait(10)
        self.layers += 1
        (target / "vmlinuz").write_bytes(b"kernel")
        (target / "busybox").write_bytes(b"busybox")
        (target / "modules").mkdir()
        for name in load_recipe(image_folder()).initramfs_modules:
            (target / "modules" / f"{name}.ko").write_bytes(name.encode())
        return {"kernel_release": "6.1"}


class Machine:
    """Boots anything, remembers what; refuses while `works` is false."""

    def __init__(self) -> None:
        self.booted: list[Bootable] = []
        self.works = True

    def __call__(self, bootable: Bootable, cancelled: threading.Event) -> dict[str, Any]:
        assert b"check.py" in bootable.initrd.read_bytes()
        self.booted.append(bootable)
        if not self.works:
            raise ImageError("the ARM image fails its check boot")
        return dict(REPORT)


class World:
    """A store with its fakes and an agent to change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "images"
        self.factory, self.machine, self.cancelled = Factory(), Machine(), threading.Event()
        self.agent = folder / "firmware_agent"
        self.agent.mkdir()
        self.edit("print(1)\n")

    def edit(self, source: str) -> None:
        (self.agent / "__main__.py").write_text(source)

    def store(self) -> ImageStore:
        return ImageStore(
            self.folder, agent=self.agent, cancelled=self.cancelled, builder=self.factory, boot=self.machine
        )

    def ensure(self, **options: bool) -> Image:
        return self.store().ensure(Silent(), **options)

    def leftovers(self) -> list[str]:
        return [path.name for path in self.folder.glob(".build-*")]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_image_is_made_checked_and_found_again(world: World) -> None:
    image = world.ensure()
    assert image.directory == world.folder / image.hash
    for path in (image.disk, image.kernel, image.initrd, image.ssh_key):
        assert path.is_file()
    assert image.ssh_key.stat().st_mode & 0o777 == 0o600
    assert image.directory.stat().st_mode & 0o777 == 0o755
    assert "root=/dev/vda" in image.cmdline
    assert image.metadata["checked"] == REPORT
    assert b"check.py" not in image.initrd.read_bytes()
    assert image.ssh_key.with_suffix(".pub").read_bytes() in image.initrd.read_bytes()
    assert world.ensure() == image
    assert (world.factory.layers, len(world.machine.booted)) == (1, 1)
    assert world.leftovers() == []
    world.store().verify(image, contents=True)


def test_a_changed_agent_shares_the_checked_disk(world: World) -> None:
    first = world.ensure()
    world.edit("print(2)\n")
    second = world.ensure()
    assert second.hash != first.hash
    assert second.disk.samefile(first.disk)
    assert b"print(2)" in second.initrd.read_bytes()
    assert b"__main__.cpython" in second.initrd.read_bytes()
    assert (world.factory.layers, len(world.machine.booted)) == (1, 1)
    assert second.ssh_key.read_bytes() != first.ssh_key.read_bytes()
    assert not second.metadata["from_nothing"]
    assert {info.hash for info in world.store().images()} == {first.hash, second.hash}


def test_an_agent_that_does_not_compile_is_named(world: World) -> None:
    world.edit("def broken(:\n")
    with pytest.raises(ImageError, match=r"__main__\.py"):
        world.ensure()
    assert world.store().images() == []
    assert world.leftovers() == []


@pytest.mark.parametrize(
    "fail", [KeyboardInterrupt(), ImageError("tar failed"), OSError(28, "No space left", "disk.img")]
)
def test_a_failed_layer_leaves_nothing(world: World, fail: BaseException) -> None:
    world.factory.fail = fail
    with pytest.raises((KeyboardInterrupt, EnvironmentUnfit)):
        world.ensure()
    assert world.leftovers() == []
    assert not list(world.folder.glob(".layers/*"))
    world.factory.fail = None
    world.ensure()


def test_a_failed_check_leaves_no_image_and_is_repeated(world: World) -> None:
    world.machine.works = False
    with pytest.raises(ImageError, match="check boot"):
        world.ensure()
    assert world.store().images() == []
    assert world.leftovers() == []
    world.machine.works = True
    assert world.ensure().metadata["checked"] == REPORT
    assert (world.factory.layers, len(world.machine.booted)) == (1, 2)


def test_racing_builds_make_one_image(world: World) -> None:
    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(lambda _: world.ensure(), range(4)))
    assert len(set(images)) == 1
    assert (world.factory.layers, len(world.machine.booted)) == (1, 1)


def test_waiting_for_another_build_can_be_cancelled(world: World) -> None:
    world.factory.build_takes.clear()
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(world.ensure)
        while not list(world.folder.glob(".build-*")):
            assert not building.done()
        waiting = World.__new__(World)
        waiting.__dict__ = world.__dict__ | {"cancelled": threading.Event()}
        waiting.cancelled.set()
        with pytest.raises(ImageError, match="cancelled"):
            waiting.ensure()
        world.factory.build_takes.set()
        assert building.result().disk.is_file()


def test_leftovers_of_a_killed_build_are_swept(world: World) -> None:
    (world.folder / ".build-dead" / "root").mkdir(parents=True)
    world.ensure()
    assert world.leftovers() == []


@pytest.mark.parametrize("name", ["disk.img", "vmlinuz", "initrd.img", "ssh_key"])
def test_damage_is_found_and_named(world: World, name: str) -> None:
    image = world.ensure()
    path = image.directory / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    world.store().verify(image)
    with pytest.raises(ImageError, match=f"{name}.*sha256.*--rebuild"):
        world.store().verify(image, contents=True)
    path.write_bytes(content[:-1])
    with pytest.raises(ImageError, match=rf"{name}: {len(content) - 1} bytes instead of {len(content)}"):
        world.ensure()
    path.unlink()
    with pytest.raises(ImageError, match=f"{name}: missing"):
        world.ensure()
    assert world.ensure(rebuild=True) == image
    world.store().verify(image, contents=True)


def test_damaged_metadata_is_an_error_and_not_listed(world: World) -> None:
    image = world.ensure()
    (image.directory / "metadata.json").write_text("{half")
    with pytest.raises(ImageError, match=r"metadata\.json"):
        world.ensure()
    assert world.store().images() == []


def test_prune_keeps_what_it_is_told_to(world: World) -> None:
    images = []
    for source in ("1", "2", "3"):
        world.edit(source)
        images.append(world.ensure())
    kept = images[1]
    assert set(world.store().prune({kept.hash})) == {images[0].hash, images[2].hash}
    assert [info.hash for info in world.store().images()] == [kept.hash]
    assert len(list(world.folder.glob(".layers/*"))) == 1
    world.store().verify(kept, contents=True)
    world.store().prune(set())
    assert not list(world.folder.glob(".layers/*"))
    assert world.leftovers() == []


def test_an_empty_store_lists_and_prunes_nothing(world: World) -> None:
    assert world.store().images() == []
    assert world.store().prune(set()) == []
    assert not world.folder.exists()


def test_too_little_space_stops_before_anything_starts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1_000_000

    monkeypatch.setattr("csd_emu.image.layer.shutil.disk_usage", lambda _: Usage)
    with pytest.raises(EnvironmentUnfit, match=r"0\.0 GB free, building an image needs 3\.0 GB"):
        world.ensure()
    assert world.factory.layers == 0


def test_a_folder_that_cannot_be_written_is_named(world: World) -> None:
    world.folder.parent.joinpath("images").write_text("in the way")
    with pytest.raises(ImageError, match=r"images: .*check the permissions"):
        world.ensure()


def test_metadata_is_plain_json_with_its_seconds(world: World) -> None:
    metadata = json.loads((world.ensure().directory / "metadata.json").read_text())
    assert metadata["from_nothing"]
    assert metadata["build_seconds"] == pytest.approx(sum(metadata["stage_seconds"].values()))
    assert {"agent", "check"} <= metadata["stage_seconds"].keys()
