"""Image archives made to harm: nothing outside of their folder, nothing beyond the manifest, no more memory or disk."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.image.image_archive import MANIFEST, TarStream, read_manifest, take_manifest, unpack_archive, unpack_files
from csd_emu.image.runner import Runner
from firmware_agent.common.errors import ImageError


def manifest_of(files: dict[str, bytes], **changes: object) -> bytes:
    facts = {
        name: {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }
    return json.dumps({"format": 1, "layer": "l", "files": facts} | changes).encode()


def tar_of(members: dict[str, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def packed(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "archive"
    subprocess.run(["zstd", "-q", "-o", path], input=content, check=True)
    return path


def refuse(tmp_path: Path, content: bytes, message: str) -> None:
    """Import it, and see that it is refused, that nothing is written outside, and hardly any memory is taken."""
    archive, folder = packed(tmp_path, content), tmp_path / "folder"
    folder.mkdir()
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match=message):
            unpack_archive(Runner(), archive, read_manifest(Runner(), archive), folder)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "folder"}
    used = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    assert used <= 70 << 20


def test_a_bomb_of_disk_space_is_stopped(tmp_path: Path) -> None:
    bomb = b"a" * (150 << 20)
    refuse(tmp_path, tar_of({MANIFEST: manifest_of({"disk.img": bomb}), "disk.img": bomb}), "would become more than")


def test_zeros_take_no_disk_space(tmp_path: Path) -> None:
    zeros = bytes(100 << 20)
    archive = packed(tmp_path, tar_of({MANIFEST: manifest_of({"disk.img": zeros}), "disk.img": zeros}))
    (tmp_path / "folder").mkdir()
    unpack_archive(Runner(), archive, read_manifest(Runner(), archive), tmp_path / "folder")
    facts = (tmp_path / "folder/disk.img").stat()
    assert (facts.st_size, facts.st_blocks) == (len(zeros), 0)


def test_a_bomb_of_memory_is_stopped(tmp_path: Path) -> None:
    """A header of an extended kind, which a reader would take whole."""
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 300 << 20
    refuse(tmp_path, info.tobuf(tarfile.USTAR_FORMAT) + bytes(info.size), "is no regular file")


def test_a_manifest_is_small_and_first(tmp_path: Path) -> None:
    refuse(tmp_path, tar_of({MANIFEST: b" " * (2 << 20) + manifest_of({})}), "does not begin with")


def test_the_manifest_comes_first(tmp_path: Path) -> None:
    refuse(tmp_path, tar_of({"a": b"", MANIFEST: manifest_of({"a": b""})}), "does not begin with")


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil-of-an-archive", "a/../../evil", "", ".", "a//b"])
def test_a_name_outside_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    refuse(tmp_path, tar_of({MANIFEST: manifest_of({name: b"x"}), name or "x": b"x"}), "outside of its folder")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a": b"longer than said"}, "bytes instead of"),
        ({"a": b"y"}, "differs from its sha256"),
        ({"a": b"x", "b": b""}, "which it does not name"),
        ({}, "a is missing"),
    ],
)
def test_what_is_not_named_is_not_taken(members: dict[str, bytes], message: str, tmp_path: Path) -> None:
    refuse(tmp_path, tar_of({MANIFEST: manifest_of({"a": b"x"})} | members), message)


def test_a_file_that_claims_more_than_any_image_has(tmp_path: Path) -> None:
    claims = {"a": {"size_bytes": 1 << 50, "sha256": ""}}
    refuse(tmp_path, tar_of({MANIFEST: json.dumps({"format": 1, "layer": "l", "files": claims}).encode()}), "it names")


def test_holes_of_many_files_are_bounded_together(tmp_path: Path) -> None:
    claims = {f"f{n}": {"size_bytes": 16 << 30, "sha256": ""} for n in range(3)}
    refuse(tmp_path, tar_of({MANIFEST: json.dumps({"format": 1, "layer": "l", "files": claims}).encode()}), "in all")


def test_a_hole_can_be_interrupted(tmp_path: Path) -> None:
    """A file without content: all of its 16 GiB are hashed, but not after the command was told to end."""
    info = tarfile.TarInfo("disk.img")
    info.type, calls = b"S", iter(range(3))
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = (1 << 95 | 16 << 30).to_bytes(12, "big")
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    facts = {"disk.img": {"size_bytes": 16 << 30, "sha256": ""}}
    begin = tar_of({MANIFEST: json.dumps({"format": 1, "layer": "l", "files": facts}).encode()})[:1024]
    archive = TarStream(io.BytesIO(begin + bytes(header) + bytes(1024)))
    manifest = take_manifest(archive)
    with pytest.raises(StopIteration):
        unpack_files(archive, manifest, tmp_path, 1 << 20, lambda: next(calls) and None)


@settings(max_examples=25, deadline=None)
@given(
    runs=st.lists(st.tuples(st.booleans(), st.integers(1, 200_000)), max_size=40),
    extra=st.dictionaries(st.text("abc/", min_size=1, max_size=5).filter(str.isalpha), st.binary(max_size=2000)),
)
def test_what_tar_writes_is_read(
    runs: list[tuple[bool, int]], extra: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """GNU tar's sparse files too: as many segments as there are runs."""
    layer = tmp_path_factory.mktemp("layer")
    files = extra | {"disk.img": b"".join((b"x" if data else b"\0") * size for data, size in runs)}
    for name, content in files.items():
        with open(layer / name, "wb") as file:
            for begin in range(0, len(content), 4096):
                if any(content[begin : begin + 4096]):
                    file.seek(begin)
                    file.write(content[begin : begin + 4096])
            file.truncate(len(content))
    (layer / MANIFEST).write_bytes(manifest_of(files))
    made = subprocess.run(
        ["tar", "--create", "--format=gnu", "--sparse", "-C", layer, MANIFEST, *files], capture_output=True, check=True
    ).stdout
    folder = tmp_path_factory.mktemp("folder")
    archive = TarStream(io.BytesIO(made))
    unpack_files(archive, take_manifest(archive), folder, 1 << 30)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 4000), value=st.integers(0, 255), cut=st.integers(0, 8000))
def test_damage_anywhere_is_a_value_error(place: int, value: int, cut: int) -> None:
    content = bytearray(tar_of({MANIFEST: manifest_of({"a": b"x" * 700}), "a": b"x" * 700}))
    content[place % len(content)] = value
    archive = TarStream(io.BytesIO(bytes(content[: max(cut, place + 1)])))
    try:
        archive.next()
        while (member := archive.next()) is not None:
            b"".join(block for _, block in archive.content(member))
    except ValueError:
        pass


def test_an_export_is_on_disk_and_replaces_in_one_step(tmp_path: Path) -> None:
    from csd_emu.image.image_archive import write_archive

    (tmp_path / "layer").mkdir()
    (tmp_path / "layer/a").write_bytes(b"x")
    write_archive(Runner(), tmp_path / "layer", tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["layer", "out"]
    assert read_manifest(Runner(), tmp_path / "out").layer == "layer"
