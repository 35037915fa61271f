"""A folder's short name: the folder itself where it is short, else one link, which nobody else can have put there."""

from __future__ import annotations

from pathlib import Path

import pytest

from csd_emu.engines.qemu import libvirt_daemon
from csd_emu.engines.qemu.libvirt_daemon import forget, shorten
from firmware_agent.common.errors import EnvironmentUnfit


@pytest.fixture(autouse=True)
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setattr(libvirt_daemon, "_FOLDER", folder)
    return folder


def test_a_short_path_stays(tmp_path: Path, links: Path) -> None:
    assert shorten(tmp_path, len(str(tmp_path))) == tmp_path
    assert not list(links.iterdir())


def test_a_long_one_has_one_link_that_leads_there_and_can_be_forgotten(tmp_path: Path, links: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    link = shorten(folder, 10)
    assert link.parent == links
    assert link.resolve() == folder.resolve()
    assert shorten(folder, 10) == link
    assert shorten(tmp_path, 10) != link
    forget(folder)
    assert link not in list(links.iterdir())
    forget(folder)


@pytest.mark.parametrize("what", ["file", "other link"])
def test_what_is_not_that_link_is_refused_and_left(tmp_path: Path, what: str) -> None:
    link = shorten(tmp_path, 10)
    link.unlink()
    link.touch() if what == "file" else link.symlink_to("/elsewhere")
    with pytest.raises(EnvironmentUnfit, match="CSD_EMU_HOME"):
        shorten(tmp_path, 10)
    forget(tmp_path)
    assert link.is_symlink() or link.exists()
