"""A template that is done: its files are copies that nobody but their owner can have touched."""

import contextlib
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from csd_emu.engines.qemu.template import (
    FACTS,
    SEALED_FILE_MODE,
    SEALED_FOLDER_MODE,
    Template,
    TemplateStore,
    _copy_sealed,
    _is_sealed,
    prune_templates,
    remove_sealed,
)
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import DeviceError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@pytest.fixture
def template(tmp_path: Path) -> Template:
    booted, sealed = Template(tmp_path / ".t.boot"), Template(tmp_path / "t")
    booted.folder.mkdir()
    sealed.folder.mkdir(mode=0o700)
    generator = random.Random(0)
    with booted.ram.open("wb") as ram:  # mostly holes, as memory is
        for megabyte in (3, 17, 40):
            ram.seek(megabyte << 20)
            ram.write(generator.randbytes(100_000))
        ram.truncate(64 << 20)
    booted.state.write_bytes(generator.randbytes(5000))
    booted.disk.write_bytes(b"")
    for source, target in zip(booted.files, sealed.files, strict=True):
        _copy_sealed(source, target)
    (sealed.folder / FACTS).write_bytes(b"{}")
    (sealed.folder / FACTS).chmod(SEALED_FILE_MODE)
    sealed.folder.chmod(SEALED_FOLDER_MODE)
    return sealed


@pytest.mark.slow
def test_a_copy_has_the_same_bytes_and_the_same_holes(template: Template, tmp_path: Path) -> None:
    booted = Template(tmp_path / ".t.boot")
    for source, target in zip(booted.files, template.files, strict=True):
        assert source.read_bytes() == target.read_bytes()
        assert target.stat().st_mode & 0o777 == 0o444
    assert template.ram.stat().st_blocks * 512 < 2 << 20
    assert _is_sealed(template)


@pytest.mark.slow
def test_whoever_still_has_a_file_of_the_boot_open_writes_into_no_template(template: Template, tmp_path: Path) -> None:
    before = template.ram.read_bytes()
    with Template(tmp_path / ".t.boot").ram.open("r+b") as open_still:
        open_still.write(b"EVIL")
    assert template.ram.read_bytes() == before


@pytest.mark.parametrize("planted", ["link", "fifo", "folder"])
def test_what_is_no_file_is_no_template(tmp_path: Path, planted: str) -> None:
    source, victim = tmp_path / "ram", tmp_path / "victim"
    victim.write_bytes(b"precious")
    if planted == "link":
        source.symlink_to(victim)
    elif planted == "fifo":
        os.mkfifo(source)
    else:
        source.mkdir()
    with pytest.raises((OSError, DeviceError)):
        _copy_sealed(source, tmp_path / "copy")
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["ram", "state", "disk.qcow2", FACTS, ""])
def test_a_template_that_others_may_write_to_is_none(template: Template, name: str) -> None:
    path = template.folder / name
    path.chmod(0o666 if name else 0o777)
    assert not _is_sealed(template)


@as_root
@pytest.mark.parametrize("name", ["ram", FACTS, ""])
def test_a_template_of_another_user_is_none(template: Template, name: str) -> None:
    os.chown(template.folder / name, 65534, 65534)
    assert not _is_sealed(template)


def test_a_second_name_of_a_file_is_a_way_to_change_it(template: Template, tmp_path: Path) -> None:
    os.link(template.ram, tmp_path / "other")
    assert not _is_sealed(template)


def test_a_missing_file_is_told(template: Template) -> None:
    template.folder.chmod(0o700)
    template.state.unlink()
    with pytest.raises(OSError, match="state"):
        _is_sealed(template)


def test_what_is_closed_can_be_removed_by_its_owner(template: Template, tmp_path: Path) -> None:
    remove_sealed(template.folder)
    assert not template.folder.exists()
    remove_sealed(template.folder)
    assert prune_templates(tmp_path, "another image") == [".t.boot"]


class PlantingDaemon:
    """Whose user puts a link wherever it can, as soon as a folder is its own."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def give(self, path: Path) -> None:
        if path.is_dir():
            for own in Template(path).files:
                with contextlib.suppress(FileExistsError):
                    own.symlink_to(self.victim)


def test_a_boot_writes_through_no_link_of_the_user_who_gets_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, image = tmp_path / "victim", SimpleNamespace(hash="h", directory=tmp_path / "no", disk=tmp_path / "disk")
    victim.write_bytes(b"precious")
    monkeypatch.setattr("csd_emu.engines.qemu.template.make_overlay", lambda _, path, *__: path.write_bytes(b"overlay"))
    monkeypatch.setattr("csd_emu.engines.qemu.template.template_spec", lambda *_: None)
    monkeypatch.setattr("csd_emu.engines.qemu.template.boot_template", lambda *_: {})
    tools = SimpleNamespace(machine="virt-10.0", version="10.0")
    store = TemplateStore(tmp_path / "templates", cast(Any, tools), cast(Any, PlantingDaemon(victim)))
    with pytest.raises((OSError, DeviceError)):  # the links in place of memory and state are taken for no template
        store.ensure(cast(Any, None), cast(Any, image), 1 << 20, Silent())
    assert victim.read_bytes() == b"precious"
    assert [path.name for path in (tmp_path / "templates").iterdir() if not path.name.endswith(".lock")] == []
