import shutil
from pathlib import Path

import pytest

from csd_emu.image.packages import AptSource, read_sources

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://near.example/debian/
Suites: trixie trixie-updates
Components: main
 contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://near.example/security
Suites: trixie-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: trixie
Components: main

Types: deb
URIs: cdrom:[disk]/
Suites: trixie
Components: main
"""


@pytest.fixture
def apt_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that apt takes for its own: ``sources.list`` and ``sources.list.d``."""
    if shutil.which("apt-get") is None:
        pytest.skip("apt is not installed")
    (tmp_path / "sources.list.d").mkdir()
    names = {"sourcelist": "sources.list", "sourceparts": "sources.list.d"}
    settings = [f'Dir::Etc::{key} "{tmp_path / name}";' for key, name in names.items()]
    (tmp_path / "apt.conf").write_text("\n".join(settings))
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    return tmp_path


def test_deb822_gives_enabled_binary_sources(apt_folder: Path) -> None:
    (apt_folder / "sources.list.d" / "a.sources").write_text(DEB822)
    assert set(read_sources()) == {
        AptSource("http://near.example/debian", "trixie", "main"),
        AptSource("http://near.example/debian", "trixie", "contrib"),
        AptSource("http://near.example/debian", "trixie-updates", "main"),
        AptSource("http://near.example/debian", "trixie-updates", "contrib"),
        AptSource("https://near.example/security", "trixie-security", "main"),
    }


def test_one_line_style_with_options_and_comments(apt_folder: Path) -> None:
    (apt_folder / "sources.list").write_text(
        "# deb http://no.example/debian bookworm main\n"
        "deb-src http://no.example/debian bookworm main\n"
        "deb [ arch=amd64 signed-by=/x.gpg ] http://near.example/debian/ bookworm main contrib # comment\n"
        "deb [arch=arm64] http://near.example/security bookworm-security main\n"
    )
    assert {(source.address, source.suite) for source in read_sources()} == {
        ("http://near.example/debian", "bookworm"),
        ("http://near.example/security", "bookworm-security"),
    }


def test_what_apt_cannot_read_names_no_source(apt_folder: Path) -> None:
    (apt_folder / "sources.list").write_text("deb\ndeb [broken\n")
    assert read_sources() == []


def test_both_kinds_of_files_are_read_and_missing_ones_are_not_missed(apt_folder: Path) -> None:
    assert read_sources() == []
    (apt_folder / "sources.list.d" / "a.sources").write_text(DEB822)
    (apt_folder / "sources.list.d" / "b.list").write_text("deb http://b.example/debian sid main\n")
    assert {source.suite for source in read_sources()} == {
        "trixie",
        "trixie-updates",
        "trixie-security",
        "sid",
    }
