import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from csd_emu.image import packages
from csd_emu.image.packages import Mirrors, Package, PackageCache
from csd_emu.image.runner import Runner
from firmware_agent.common.errors import ImageError

HOOKS = 'Acquire::http::Proxy "http://proxy.example:3128";\nAcquire::IndexTargets::deb::DEP-11::MetaKey "x";\n'


class Archive(Runner):
    """A mirror and the apt that asks it; keeps count of what was asked."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__()
        self.files = files
        self.asked: list[str] = []
        self.served: list[str] = []
        self.reachable = True

    def run(self, command: Sequence[str | Path], purpose: str, **options: Any) -> str:
        words = [str(word) for word in command]
        if words[0].endswith("apt-config"):
            return HOOKS
        verb = "print-uris" if "--print-uris" in words else "download" if "--download-only" in words else words[1]
        self.asked.append(verb)
        if not self.reachable:
            raise ImageError("cannot resolve")
        if verb == "print-uris":
            return "chatter\n" + "".join(
                f"'http://m/{name}' {name} {len(data)} SHA256:{hashlib.sha256(data).hexdigest()}\n"
                for name, data in self.files.items()
            )
        if verb == "download":
            archives = Path(options["environment"]["APT_CONFIG"]).parent / "archives"
            for name, data in self.files.items():
                if not (archives / name).exists():
                    (archives / name).write_bytes(data)
                    self.served.append(name)
            options["on_poll"]()
        return ""


FILES = {"bash_5.2_arm64.deb": b"bash", "dash_1%3a0.5_arm64.deb": b"dash!"}


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> Archive:
    monkeypatch.setattr(packages, "find_mirrors", lambda: Mirrors("http://m/debian", "http://m/security"))
    monkeypatch.setattr(packages, "find_keyring", lambda: Path("/keys.gpg"))
    monkeypatch.setattr(packages, "find_tool", lambda name, _: f"/usr/bin/{name}")
    return Archive(dict(FILES))


def cache(tmp_path: Path, archive: Archive) -> PackageCache:
    return PackageCache(tmp_path, "bookworm", "arm64", archive)


def test_packages_are_downloaded_once_and_then_need_no_network(tmp_path: Path, archive: Archive) -> None:
    shown: list[float] = []
    found = cache(tmp_path, archive).fetch(["bash"], ["perl"], shown.append)
    assert {package.file for package in found} == set(FILES)
    assert archive.asked == ["update", "print-uris", "download"]
    assert shown == [1.0]
    archive.reachable = False
    assert cache(tmp_path, archive).fetch(["bash"], ["perl"]) == found
    with pytest.raises(ImageError):
        cache(tmp_path, archive).fetch(["bash", "sed"], ["perl"])
    with pytest.raises(ImageError):
        cache(tmp_path, archive).fetch(["bash"], ["perl"], refresh=True)


def test_a_damaged_package_is_downloaded_again_and_only_it(tmp_path: Path, archive: Archive) -> None:
    packages_before = cache(tmp_path, archive).fetch(["bash"], [])
    damaged = cache(tmp_path, archive).archives / "bash_5.2_arm64.deb"
    damaged.write_bytes(b"bask")
    archive.served.clear()
    assert cache(tmp_path, archive).fetch(["bash"], []) == packages_before
    assert archive.served == [damaged.name]
    assert damaged.read_bytes() == b"bash"


def test_a_mirror_that_serves_something_else_is_refused(tmp_path: Path, archive: Archive) -> None:
    damaged = cache(tmp_path, archive).archives
    damaged.mkdir(parents=True)

    def served(command: Sequence[str | Path], purpose: str, **options: Any) -> str:
        output = Archive.run(archive, command, purpose, **options)
        if "--print-uris" in command:
            archive.files["bash_5.2_arm64.deb"] = b"evil"
        return output

    archive.run = served  # type: ignore[method-assign]
    with pytest.raises(ImageError, match=r"bash_5\.2_arm64\.deb: damaged after download"):
        cache(tmp_path, archive).fetch(["bash"], [])


def test_apt_lives_in_a_world_of_its_own(tmp_path: Path, archive: Archive) -> None:
    cache(tmp_path, archive).fetch(["bash"], ["perl", "dpkg"])
    folder = tmp_path / "debian-bookworm-arm64"
    settings = (folder / "apt.conf").read_text()
    assert "http://proxy.example:3128" in settings
    assert "DEP-11" not in settings
    for name in ("Dir::State::status", "Dir::State::lists", "Dir::Cache::archives", "Dir::Etc::sourcelist"):
        assert f'{name} "{folder}/' in settings
    assert 'Dir::Etc::parts "/dev/null"' in settings
    assert 'APT::Architecture "arm64"' in settings
    assert "Provides: perl (= 99:1), dpkg (= 99:1)" in (folder / "status").read_text()
    sources = (folder / "debian.sources").read_text()
    assert "Suites: bookworm bookworm-updates" in sources
    assert "Suites: bookworm-security" in sources
    assert sources.count("Signed-By: /keys.gpg") == 2


def test_a_package_is_labelled_with_its_version() -> None:
    assert Package("dash_1%3a0.5_arm64.deb", 1, "").label == "dash 1:0.5"
