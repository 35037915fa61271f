import hashlib
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.image.extra_packages import lock_packages
from csd_emu.image.runner import Runner
from csd_emu.image.wheels import LockedWheels, Requirement, WheelCache, read_lock, unpack_wheel
from firmware_agent.common.errors import ConfigurationError, ImageError

DIGEST = "0" * 64


class Index(Runner):
    """A package index: answers pip's command line with the wheel that belongs to the pinned name."""

    def __init__(self, wheels: dict[str, bytes]) -> None:
        super().__init__(threading.Event())
        self.wheels = wheels
        self.asked: list[str] = []

    def run(self, command: Sequence[str | Path], purpose: str, **options: Any) -> str:
        lock = Path(command[list(command).index("--requirement") + 1]).read_text()
        pin = lock.split()[0]
        self.asked.append(pin)
        if pin not in self.wheels:
            raise ImageError(f"cannot {purpose}")
        target = Path(command[list(command).index("--dest") + 1])
        (target / f"{pin.replace('==', '-')}-py3-none-any.whl").write_bytes(self.wheels[pin])
        return ""


def locked(tmp_path: Path, wheels: dict[str, bytes]) -> LockedWheels:
    lines = [f"{pin} --hash=sha256:{hashlib.sha256(data).hexdigest()}\n" for pin, data in wheels.items()]
    lock = tmp_path / "requirements.lock"
    lock.write_text("".join(lines))
    return LockedWheels(lock, "3.11", ("manylinux_2_28_aarch64",))


WHEELS = {"one==1": b"first wheel", "two==2": b"second wheel"}


def test_wheels_are_downloaded_once_and_kept(tmp_path: Path) -> None:
    index = Index(WHEELS)
    cache = WheelCache(tmp_path / "cache", [], locked(tmp_path, WHEELS), index)
    assert [path.read_bytes() for path in cache.fetch()] == list(WHEELS.values())
    assert sorted(index.asked) == sorted(WHEELS)
    assert [path.read_bytes() for path in cache.fetch()] == list(WHEELS.values())
    assert len(index.asked) == 2
    assert all(path.suffix == ".whl" for path in (tmp_path / "cache").iterdir())


def test_a_local_folder_comes_first_and_only_by_hash(tmp_path: Path) -> None:
    local = tmp_path / "wheels"
    local.mkdir()
    (local / "renamed.whl").write_bytes(WHEELS["one==1"])
    (local / "two-2-py3-none-any.whl").write_bytes(b"somebody else's")
    index = Index(WHEELS)
    found = WheelCache(tmp_path / "cache", [local], locked(tmp_path, WHEELS), index).fetch()
    assert index.asked == ["two==2"]
    assert [path.read_bytes() for path in found] == list(WHEELS.values())


def test_what_was_downloaded_before_a_failure_is_kept(tmp_path: Path) -> None:
    recipe = locked(tmp_path, WHEELS)
    with pytest.raises(ImageError, match="two==2"):
        WheelCache(tmp_path / "cache", [], recipe, Index({"one==1": WHEELS["one==1"]})).fetch()
    assert [path.read_bytes() for path in (tmp_path / "cache").iterdir()] == [WHEELS["one==1"]]
    index = Index(WHEELS)
    WheelCache(tmp_path / "cache", [], recipe, index).fetch()
    assert index.asked == ["two==2"]


def test_a_damaged_wheel_in_the_cache_is_downloaded_again(tmp_path: Path) -> None:
    index = Index(WHEELS)
    cache = WheelCache(tmp_path / "cache", [], locked(tmp_path, WHEELS), index)
    first, second = cache.fetch()
    first.write_bytes(b"damaged")
    assert [path.read_bytes() for path in cache.fetch()] == list(WHEELS.values())
    assert index.asked.count("one==1") == 2
    assert index.asked.count("two==2") == 1
    assert second.exists()


@given(
    rows=st.lists(
        st.tuples(st.from_regex(r"[a-z][a-z0-9-]{0,9}==[0-9]\.[0-9]", fullmatch=True), st.binary(max_size=3)),
        max_size=5,
    )
)
def test_a_lock_file_reads_back(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, bytes]]) -> None:
    requirements = [Requirement(pin, (hashlib.sha256(data).hexdigest(),)) for pin, data in rows]
    path = tmp_path_factory.mktemp("lock") / "requirements.lock"
    path.write_text("# comment\n\n" + "".join(item.text.replace(" --hash", " \\\n    --hash") for item in requirements))
    assert read_lock(path) == requirements


@pytest.mark.parametrize("line", ["torch", f"torch --hash=sha256:{DIGEST}", "torch==2.9.1", "torch==2 --hash=md5:1"])
def test_a_package_without_version_or_hash_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "requirements.lock"
    path.write_text(line)
    with pytest.raises(ImageError, match="exact version and a sha256 hash"):
        read_lock(path)


def package(folder: Path, name: str, needs: Sequence[str] = (), tag: str = "py3-none-any") -> bytes:
    """Write a wheel of version 1 that pip can read, and return its bytes."""
    info = f"{name}-1.dist-info"
    members = {
        f"{name}.py": "",
        f"{info}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1", *(f"Requires-Dist: {need}" for need in needs), ""]
        ),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/RECORD": "",
    }
    path = folder / f"{name}-1-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return path.read_bytes()


def test_pip_finds_what_the_drive_needs_and_not_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    index.mkdir()
    for key, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONSTRAINT": ""}.items():
        monkeypatch.setenv(key, value)
    own = locked(tmp_path, {"base==1": package(index, "base")})
    needs = [
        'there; platform_machine == "aarch64" and python_version == "3.11"',
        'here; platform_machine != "aarch64" or python_version != "3.11"',
    ]
    package(index, "wanted", ["base", *needs])
    package(index, "there", tag="py3-none-manylinux_2_28_aarch64")
    package(index, "newer", ["base>=2"])
    package(index, "elsewhere", tag="py3-none-manylinux_2_28_x86_64")
    found = lock_packages(own, ["wanted>=1"], tmp_path / "downloads")
    assert [requirement.pin for requirement in read_lock(found.lock_file)] == ["base==1", "there==1", "wanted==1"]
    cache = WheelCache(tmp_path / "cache", [], found, Runner())
    assert len(cache.fetch()) == 3
    for name, why in [("newer", r"base==1"), ("elsewhere", "a wheel of pure Python"), ("nobody", "correct the name")]:
        with pytest.raises(ConfigurationError, match=f"image.packages: {name}: .*{why}"):
            lock_packages(own, [name], tmp_path / "downloads")


def wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        program = zipfile.ZipInfo("pkg/bin/tool")
        program.external_attr = 0o100755 << 16
        archive.writestr(program, b"#!")
    return path


def test_members_are_left_out_by_pattern(tmp_path: Path) -> None:
    members = {
        "pkg/__init__.py": b"x",
        "pkg/tests/test_a.py": b"t",
        "pkg/include/a.h": b"h",
        "pkg-1.data/scripts/s": b"s",
    }
    unpack_wheel(wheel(tmp_path / "a.whl", members), tmp_path / "site", ["*/tests/*", "*.h", "*.data/*"])
    files = {
        path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*") if path.is_file()
    }
    assert files == {"pkg/__init__.py", "pkg/bin/tool"}
    assert (tmp_path / "site/pkg/bin/tool").stat().st_mode & 0o111
    assert not (tmp_path / "site/pkg/__init__.py").stat().st_mode & 0o111


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "pkg/../../evil.py"])
def test_a_member_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImageError, match="leaves its folder"):
        unpack_wheel(wheel(tmp_path / "a.whl", {name: b"x"}), tmp_path / "deep" / "site", [])
    assert not list(tmp_path.rglob("evil.py"))


def test_a_damaged_wheel_is_named(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", {"pkg/a.py": b"x" * 1000})
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ImageError, match=r"a\.whl: damaged"):
        unpack_wheel(path, tmp_path / "site", [])
