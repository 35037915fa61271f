from pathlib import Path

import pytest

from csd_emu.image import packages as mirrors
from csd_emu.image.packages import AptSource, Mirrors, own_mirrors
from firmware_agent.common.errors import EnvironmentUnfit


def test_own_mirrors_skip_what_is_not_debian() -> None:
    sources = [
        AptSource("http://vendor.example/apt", "nodistro", "main"),
        AptSource("http://vendor.example/cloud", "cloud-bookworm", "main"),
        AptSource("http://other.example/debian", "bookworm", "contrib"),
        AptSource("http://near.example/debian", "bookworm", "main"),
    ]
    beside = Mirrors("http://near.example/debian", "http://near.example/debian-security")
    assert own_mirrors(sources, "bookworm") == beside
    with pytest.raises(EnvironmentUnfit, match=mirrors.MIRROR_VARIABLE):
        own_mirrors([], "bookworm")


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """What apt says of the machine."""
    found = [AptSource("http://near.example/debian", "trixie", "main")]
    monkeypatch.setattr(mirrors, "read_sources", lambda: found)


def test_variable_overrides_the_machines_own_mirror(monkeypatch: pytest.MonkeyPatch, sources: None) -> None:
    release = {"ID": "debian", "VERSION_CODENAME": "trixie"}
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: release)
    monkeypatch.delenv(mirrors.MIRROR_VARIABLE, raising=False)
    assert mirrors.find_mirrors().main == "http://near.example/debian"
    monkeypatch.setenv(mirrors.MIRROR_VARIABLE, "http://chosen.example/")
    assert mirrors.find_mirrors() == Mirrors("http://chosen.example/debian", "http://chosen.example/debian-security")


def test_a_machine_that_is_no_debian_must_name_a_mirror(monkeypatch: pytest.MonkeyPatch, sources: None) -> None:
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "ubuntu", "VERSION_CODENAME": "noble"})
    monkeypatch.delenv(mirrors.MIRROR_VARIABLE, raising=False)
    with pytest.raises(EnvironmentUnfit, match=mirrors.MIRROR_VARIABLE):
        mirrors.find_mirrors()


def test_missing_keyring_names_its_package(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfit, match="debian-archive-keyring"):
        mirrors.find_keyring(tmp_path)
    (tmp_path / "debian-archive-keyring.pgp").touch()
    assert mirrors.find_keyring(tmp_path).suffix == ".pgp"
