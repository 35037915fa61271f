import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.archive import list_archive, read_member, write_archive
from firmware_agent.common.errors import ShardError

names = st.text("abcdefghij._-", min_size=1, max_size=20).filter(lambda name: name.strip("."))


@given(files=st.dictionaries(names, st.binary(max_size=2000), max_size=4), padding=st.integers(0, 5000))
def test_what_is_written_is_read_also_from_a_longer_device(
    files: dict[str, bytes], padding: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("archive") / "a.tar"
    write_archive(path, files)
    with open(path, "ab") as device:  # a block device is longer than what is on it
        device.write(bytes(padding))
    members = list_archive(path)
    assert list(members) == list(files)
    for name, content in files.items():
        assert read_member(path, name) == content
        assert path.read_bytes()[members[name].offset :][: members[name].size] == content


def test_only_the_owner_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_archive(tmp_path / "a.tar", {"key": b"secret"})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.tar").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["a.tar"]


def test_writing_again_replaces(tmp_path: Path) -> None:
    write_archive(tmp_path / "a.tar", {"one": b"1" * 5000})
    write_archive(tmp_path / "a.tar", {"two": b"2"})
    assert list(list_archive(tmp_path / "a.tar")) == ["two"]


def test_it_is_plain_tar(tmp_path: Path) -> None:
    write_archive(tmp_path / "a.tar", {"one": b"1"})
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert tar.getnames() == ["one"]


def test_a_missing_file_a_missing_member_and_no_archive_are_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with pytest.raises(ShardError, match=r"a\.tar: not a readable archive.*csd-emu up"):
        list_archive(path)
    path.write_bytes(b"no tar at all" * 100)
    with pytest.raises(ShardError, match=r"a\.tar"):
        list_archive(path)
    write_archive(path, {"one": b"1"})
    with pytest.raises(ShardError, match=r"a\.tar: has no two"):
        read_member(path, "two")


def test_a_member_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write_archive(path, {"one": bytes(range(256)) * 20})
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ShardError):
        read_member(path, "one")


@given(data=st.data())
def test_any_damage_is_a_shard_error_or_other_content_never_another_exception(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("archive") / "a.tar"
    write_archive(path, {"one": b"1" * 600, "two": b"2"})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, 2600))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        for name in list_archive(path):
            read_member(path, name)
    except ShardError:
        pass
