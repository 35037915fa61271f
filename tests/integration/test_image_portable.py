import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from csd_emu.image.image_archive import MANIFEST, read_manifest, unpack_archive, write_archive
from csd_emu.image.runner import Runner
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import ImageError
from tests.integration.test_image_store import World

HOLE_BYTES = 64 << 20


@pytest.fixture
def source(tmp_path: Path) -> World:
    (tmp_path / "source").mkdir()
    return World(tmp_path / "source")


@pytest.fixture
def target(tmp_path: Path) -> World:
    (tmp_path / "target").mkdir()
    return World(tmp_path / "target")


@pytest.fixture
def exported(source: World, tmp_path: Path) -> Path:
    source.ensure()
    source.store().write(tmp_path / "arm.tar.zst")
    return tmp_path / "arm.tar.zst"


def images_in(world: World) -> set[str]:
    return {path.name for path in world.folder.rglob("*")} if world.folder.exists() else set()


def repack(archive: Path, folder: Path, names: list[str], manifest: bytes | None = None) -> None:
    """Write the files of `folder` as an archive, as someone else might."""
    folder.mkdir(exist_ok=True)
    if manifest is not None:
        (folder / MANIFEST).write_bytes(manifest)
    subprocess.run(["tar", "-c", "-f", archive, "--zstd", "-C", folder, MANIFEST, *names], check=True)


def unpacked(archive: Path, folder: Path) -> dict[str, object]:
    folder.mkdir()
    subprocess.run(["tar", "-x", "-f", archive, "--zstd", "-C", folder], check=True)
    found: dict[str, object] = json.loads((folder / MANIFEST).read_text())
    return found


def test_an_imported_image_has_the_same_disk_its_own_keys_and_needs_no_build(
    source: World, target: World, exported: Path
) -> None:
    image = target.store().read(exported, Silent())
    original = source.ensure()
    assert image.hash == original.hash
    assert image.disk.read_bytes() == original.disk.read_bytes()
    assert image.ssh_key.read_bytes() != original.ssh_key.read_bytes()
    assert image.metadata["checked"] == original.metadata["checked"]
    assert (target.factory.layers, target.machine.booted) == (0, [])
    target.store().verify(image, contents=True)
    assert target.leftovers() == []
    assert source.ensure().ssh_key.read_bytes() not in exported.read_bytes()


def test_images_that_follow_an_import_share_its_disk(target: World, exported: Path) -> None:
    first = target.store().read(exported, Silent())
    target.edit("print(2)\n")
    assert target.ensure().disk.samefile(first.disk)
    assert target.factory.layers == 0


def test_importing_what_is_there_changes_nothing(target: World, exported: Path) -> None:
    image = target.store().read(exported, Silent())
    before = {path: path.stat().st_mtime_ns for path in image.directory.iterdir()}
    assert target.store().read(exported, Silent()) == image
    assert {path: path.stat().st_mtime_ns for path in image.directory.iterdir()} == before


def test_an_export_needs_an_image(source: World, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="csd-emu image build"):
        source.store().write(tmp_path / "arm.tar.zst")
    assert not (tmp_path / "arm.tar.zst").exists()


def test_a_damaged_disk_is_not_exported(source: World, tmp_path: Path) -> None:
    image = source.ensure()
    with image.disk.open("r+b") as disk:
        disk.write(b"other")
    with pytest.raises(ImageError, match="damaged"):
        source.store().write(tmp_path / "arm.tar.zst")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_an_export_into_no_folder_is_refused(source: World, tmp_path: Path) -> None:
    source.ensure()
    with pytest.raises(ImageError, match="cannot be written"):
        source.store().write(tmp_path / "missing" / "arm.tar.zst")


def test_holes_stay_holes(tmp_path: Path) -> None:
    layer, folder = tmp_path / "layer", tmp_path / "folder"
    layer.mkdir()
    folder.mkdir()
    with (layer / "disk.img").open("wb") as disk:
        os.truncate(disk.fileno(), HOLE_BYTES)
    archive = tmp_path / "archive"
    write_archive(Runner(), layer, archive)
    assert archive.stat().st_size < 10_000
    unpack_archive(Runner(), archive, read_manifest(Runner(), archive), folder)
    facts = (folder / "disk.img").stat()
    assert facts.st_size == HOLE_BYTES
    assert facts.st_blocks * 512 < HOLE_BYTES // 100


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_file_cut_short_is_refused_and_changes_nothing(target: World, exported: Path, share: float) -> None:
    content = exported.read_bytes()
    exported.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ImageError, match="copy it again"):
        target.store().read(exported, Silent())
    assert images_in(target) <= {".lock"}


def test_a_file_with_a_changed_byte_is_refused(target: World, exported: Path) -> None:
    content = bytearray(exported.read_bytes())
    content[len(content) * 2 // 3] ^= 0x55
    exported.write_bytes(content)
    with pytest.raises(ImageError, match="copy it again"):
        target.store().read(exported, Silent())
    assert images_in(target) <= {".lock"}


def test_any_other_file_is_refused(target: World, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="no such file"):
        target.store().read(tmp_path / "missing", Silent())
    (tmp_path / "notes").write_text("anything")
    with pytest.raises(ImageError, match="is no archive"):
        target.store().read(tmp_path / "notes", Silent())
    repack(tmp_path / "other", tmp_path / "folder", [], b'{"format": 1}')
    with pytest.raises(ImageError, match="is no archive"):
        target.store().read(tmp_path / "other", Silent())
    assert images_in(target) == set()


def test_an_archive_of_another_recipe_or_format_is_refused(target: World, exported: Path, tmp_path: Path) -> None:
    manifest = unpacked(exported, tmp_path / "folder")
    for change, message in (({"layer": "0" * 16}, "another version"), ({"format": 2}, "format 2")):
        repack(tmp_path / "other", tmp_path / "folder", ["disk.img"], json.dumps(manifest | change).encode())
        with pytest.raises(ImageError, match=message):
            target.store().read(tmp_path / "other", Silent())
    assert images_in(target) == set()


@pytest.mark.parametrize("harm", ["other content", "missing", "more", "link"])
def test_files_that_are_not_the_named_ones_are_refused(
    target: World, exported: Path, tmp_path: Path, harm: str
) -> None:
    folder = tmp_path / "folder"
    unpacked(exported, folder)
    if harm == "other content":
        (folder / "vmlinuz").write_bytes(b"KERNEL")
    elif harm == "missing":
        (folder / "vmlinuz").unlink()
    elif harm == "more":
        (folder / "more").write_bytes(b"")
    else:
        shutil.move(folder / "vmlinuz", tmp_path / "vmlinuz")
        (folder / "vmlinuz").symlink_to(tmp_path / "vmlinuz")
    repack(tmp_path / "other", folder, [path.name for path in folder.iterdir() if path.name != MANIFEST])
    with pytest.raises(ImageError, match="copy it again"):
        target.store().read(tmp_path / "other", Silent())
    assert images_in(target) <= {".lock"}
    assert target.leftovers() == []
