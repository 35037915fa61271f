from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.image import packages as mirrors
from csd_emu.image.packages import AptSource, Mirrors, own_mirrors, parse_deb822, parse_one_line, read_sources
from firmware_agent.common.errors import EnvironmentUnfit

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


def test_deb822_gives_enabled_binary_sources() -> None:
    sources = list(parse_deb822(DEB822))
    both = frozenset({"main", "contrib"})
    assert sources == [
        AptSource("http://near.example/debian", "trixie", both),
        AptSource("http://near.example/debian", "trixie-updates", both),
        AptSource("https://near.example/security", "trixie-security", frozenset({"main"})),
    ]


def test_one_line_style_with_options_and_comments() -> None:
    text = (
        "# deb http://no.example/debian bookworm main\n"
        "deb-src http://no.example/debian bookworm main\n"
        "deb [ arch=amd64 signed-by=/x.gpg ] http://near.example/debian/ bookworm main contrib # comment\n"
        "deb [arch=arm64] http://near.example/security bookworm-security main\n"
        "deb\n"
        "deb [broken\n"
    )
    assert [(source.address, source.suite) for source in parse_one_line(text)] == [
        ("http://near.example/debian", "bookworm"),
        ("http://near.example/security", "bookworm-security"),
    ]


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    for source in [*parse_one_line(text), *parse_deb822(text)]:
        assert source.address
        assert source.suite


def test_own_mirrors_skip_what_is_not_debian() -> None:
    sources = [
        AptSource("http://vendor.example/apt", "nodistro", frozenset({"main"})),
        AptSource("http://vendor.example/cloud", "cloud-bookworm", frozenset({"main"})),
        AptSource("http://other.example/debian", "bookworm", frozenset({"contrib"})),
        AptSource("http://near.example/debian", "bookworm", frozenset({"main"})),
    ]
    beside = Mirrors("http://near.example/debian", "http://near.example/debian-security")
    assert own_mirrors(sources, "bookworm") == beside
    with pytest.raises(EnvironmentUnfit, match=mirrors.MIRROR_VARIABLE):
        own_mirrors([], "bookworm")


def test_variable_overrides_the_machines_own_mirror(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://near.example/debian trixie main\n")
    release = {"ID": "debian", "VERSION_CODENAME": "trixie"}
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: release)
    monkeypatch.delenv(mirrors.MIRROR_VARIABLE, raising=False)
    assert mirrors.find_mirrors(tmp_path).main == "http://near.example/debian"
    monkeypatch.setenv(mirrors.MIRROR_VARIABLE, "http://chosen.example/")
    assert mirrors.find_mirrors(tmp_path) == Mirrors(
        "http://chosen.example/debian", "http://chosen.example/debian-security"
    )


def test_a_machine_that_is_no_debian_must_name_a_mirror(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://ubuntu.example/ubuntu noble main\n")
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "ubuntu", "VERSION_CODENAME": "noble"})
    monkeypatch.delenv(mirrors.MIRROR_VARIABLE, raising=False)
    with pytest.raises(EnvironmentUnfit, match=mirrors.MIRROR_VARIABLE):
        mirrors.find_mirrors(tmp_path)


def test_both_kinds_of_files_are_read_and_missing_ones_are_not_missed(tmp_path: Path) -> None:
    assert read_sources(tmp_path) == []
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "a.sources").write_text(DEB822)
    (tmp_path / "sources.list.d" / "b.list").write_text("deb http://b.example/debian sid main\n")
    assert {source.suite for source in read_sources(tmp_path)} == {
        "trixie",
        "trixie-updates",
        "trixie-security",
        "sid",
    }


def test_missing_keyring_names_its_package(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfit, match="debian-archive-keyring"):
        mirrors.find_keyring(tmp_path)
    (tmp_path / "debian-archive-keyring.pgp").touch()
    assert mirrors.find_keyring(tmp_path).suffix == ".pgp"
