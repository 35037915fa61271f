"""Files replaced and folders made where somebody else may have put a link."""

import os
import pwd
import stat
import tempfile
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.engines.qemu.libvirt_daemon import SessionDaemon, may_enter
from csd_emu.engines.remote.server_id import server_id
from firmware_agent.common.archive import list_archive, write_archive
from firmware_agent.common.atomic_files import (
    append_file,
    enter_folder,
    give_away,
    make_folder,
    read_file,
    read_lines,
    remove_partial,
    replace_file,
    replacing,
)
from firmware_agent.common.errors import EnvironmentUnfit
from host.fleet.array_state import STATE_FILE, ArrayState, array_folder, is_present, present
from host.fleet.enrolment_authority import authority_held

STATE = ArrayState({"host": {}}, {}, 0, "run", True, 1, ())


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("kept")
    return path


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("name", ["report.html", "report.html.partial", ".report.html.partial"])
def test_a_link_of_a_files_name_is_not_followed(name: str, tmp_path: Path, victim: Path) -> None:
    (tmp_path / name).symlink_to(victim)
    replace_file(tmp_path / "report.html", b"new")
    write_archive(tmp_path / "shard.tar", {"a": b""})
    assert (tmp_path / "report.html").read_bytes() == b"new"
    assert victim.read_text() == "kept"
    assert not (tmp_path / "report.html").is_symlink()


def test_neither_are_those_of_an_archive_or_an_arrays_state(tmp_path: Path, victim: Path) -> None:
    for name in ("shard.tar", STATE_FILE):
        for suffix in ("", ".partial"):
            (tmp_path / f"{name}{suffix}").symlink_to(victim)
    write_archive(tmp_path / "shard.tar", {"a": b"x"})
    STATE.save(tmp_path)
    assert victim.read_text() == "kept"
    assert list(list_archive(tmp_path / "shard.tar")) == ["a"]
    assert ArrayState.load(tmp_path) == STATE


def test_what_fails_leaves_all_as_it_was(tmp_path: Path) -> None:
    replace_file(tmp_path / "a", b"old")
    stream: IO[bytes]
    with pytest.raises(ValueError, match="closed"), replacing(tmp_path / "a") as stream:
        stream.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "missing/a", b"")


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    with replacing(tmp_path / "a"):
        (left,) = tmp_path.iterdir()
        content = left.name
    (tmp_path / content).touch()
    (tmp_path / "a.partial").touch()
    (tmp_path / "ab").touch()
    remove_partial(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "ab"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_are_explicit_under_any_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        with array_folder(tmp_path / "state/arrays", "lab") as folder:
            STATE.save(folder)
            usual = 0o711 if os.geteuid() == 0 else 0o700
            assert mode_of(folder / STATE_FILE) == 0o600
            for each in (folder, folder.parent, folder.parent.parent):
                assert mode_of(each) == usual
            make_folder(folder / "devices/csd-00", 0o700)
            assert [mode_of(path) for path in (folder / "devices", folder / "devices/csd-00")] == [0o700, 0o700]
        server_id(tmp_path / "other")
        with authority_held(tmp_path / "other/deployments/lab"):
            pass
        assert [mode_of(tmp_path / "other" / name) for name in ("", "deployments")] == [usual, usual]
        assert mode_of(tmp_path / "other/deployments/lab") == 0o700
        assert mode_of(tmp_path / "other/server-id") & ~0o644 == 0
    finally:
        os.umask(before)


def test_a_folder_that_is_there_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o777)
    make_folder(tmp_path / "a", 0o711)
    assert mode_of(tmp_path / "a") == 0o777
    (tmp_path / "b").touch()
    with pytest.raises(OSError, match=r"\[Errno|regular|name"):
        make_folder(tmp_path / "b/c", 0o700)


def test_appending_follows_no_link_and_takes_no_pipe(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=r"\[Errno|regular|name"):
            append_file(tmp_path / name)
    assert victim.read_text() == "kept"


@given(content=st.binary(max_size=50), most=st.integers(0, 60))
def test_reading_is_bounded(content: bytes, most: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("x") / "a"
    path.write_bytes(content)
    if len(content) <= most:
        assert read_file(path, most) == content
    else:
        with pytest.raises(OSError, match="more than"):
            read_file(path, most)
    if all(len(line) <= most for line in content.splitlines(keepends=True)) and b"\r" not in content:
        assert b"".join(read_lines(path, max(most, 50))) == content


def test_a_pipe_or_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match=r"\[Errno|regular|name"):
            read_file(path, 10)
    with pytest.raises(OSError, match="most that is read"):
        list(read_lines(Path(__file__), 10))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
class TestRootGivesNothingAway:
    def test_behind_a_link_or_by_another_name(self, tmp_path: Path, victim: Path) -> None:
        (tmp_path / "link").symlink_to(victim)
        os.link(victim, tmp_path / "hard")
        (tmp_path / "folder").symlink_to(tmp_path / "real")
        (tmp_path / "real").mkdir()
        (tmp_path / "real/file").touch()
        for path in ("link", "hard", "folder/file", "folder"):
            with pytest.raises(OSError, match=r"\[Errno|regular|name"):
                give_away(tmp_path / path, 65534, 65534)
        assert victim.stat().st_uid == os.geteuid()
        assert (tmp_path / "real/file").stat().st_uid == os.geteuid()
        give_away(tmp_path / "real/file", 65534, 65534)
        assert (tmp_path / "real/file").stat().st_uid == 65534

    @pytest.mark.parametrize("planted", ["config", "config/libvirt"])
    def test_where_the_service_user_planted_a_folder(
        self, planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The daemon's home is the service user's; a file of root's called qemu.conf lies elsewhere."""
        elsewhere, home = tmp_path / "elsewhere", tmp_path / "home"
        (elsewhere / "libvirt").mkdir(parents=True)
        for folder in (elsewhere, elsewhere / "libvirt"):
            (folder / "qemu.conf").touch()
        (home / planted).parent.mkdir(parents=True)
        (home / planted).symlink_to(elsewhere)
        daemon = SessionDaemon.__new__(SessionDaemon)
        daemon._home, daemon.owner = home, None
        monkeypatch.setattr(SessionDaemon, "_give_open", lambda _, descriptor: os.fchown(descriptor, 65534, 65534))
        with pytest.raises(OSError, match=r"\[Errno|regular|name"):
            daemon._configure()
        assert {path.stat().st_uid for path in elsewhere.rglob("*")} == {os.geteuid()}


def test_a_daemons_configuration_is_made_once(tmp_path: Path) -> None:
    daemon = SessionDaemon.__new__(SessionDaemon)
    daemon._home, daemon.owner = tmp_path, None
    for _ in range(2):
        daemon._configure()
    assert (tmp_path / "config/libvirt/qemu.conf").read_text() == 'stdio_handler = "file"\n'
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        os.close(enter_folder(folder, "config", 0o700))
        with pytest.raises(OSError, match=r"\[Errno|regular|name"):
            enter_folder(folder, "missing/deep", 0o700)
    finally:
        os.close(folder)


def test_a_folder_that_the_service_user_cannot_enter_is_named() -> None:
    """As when CSD_EMU_HOME lies in a folder that mkdtemp made."""
    daemon = SessionDaemon.__new__(SessionDaemon)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        closed = Path(name)
        (closed / "home").mkdir()
        daemon._runtime, daemon._home = closed / "home/run", closed / "home/state"
        daemon.owner = pwd.struct_passwd(("csd-emu", "x", os.geteuid() + 1, os.getegid() + 1, "", "/", ""))
        with pytest.raises(EnvironmentUnfit, match=rf"{name} cannot be entered by the user csd-emu.*chmod o\+x {name}"):
            daemon._check_reach()
        closed.chmod(0o711)
        daemon._check_reach()
        closed.chmod(0o700)
        daemon.owner = None
        daemon._check_reach()


@pytest.mark.parametrize(("uid", "gid", "bit"), [(7, 7, 0o100), (7, 8, 0o100), (8, 7, 0o010), (8, 8, 0o001)])
def test_the_first_class_of_modes_that_fits_decides(uid: int, gid: int, bit: int) -> None:
    user = pwd.struct_passwd(("csd-emu", "x", 7, 7, "", "/", "/bin/false"))
    for mode in (bit, 0o777 & ~bit):
        folder = os.stat_result((stat.S_IFDIR | mode, 0, 0, 2, uid, gid, 0, 0, 0, 0))
        assert may_enter(user, folder) is (mode == bit)


def test_a_lock_follows_no_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "lab.present").symlink_to(victim)
    with pytest.raises(EnvironmentUnfit), present(tmp_path / "lab.present"):
        pass
    assert not is_present(tmp_path / "lab.present")
    assert victim.read_text() == "kept"
