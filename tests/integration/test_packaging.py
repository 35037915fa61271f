"""What is handed out: the content of wheel and sdist, and what a plain install says."""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

from csd_emu.util.paths import packaged_folder
from host.cli import shipped_examples as example_files
from tests.support.commands import Done, Workshop

ROOT = Path(__file__).parents[2]
Command = Callable[..., Done]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def tracked(*folders: str) -> set[str]:
    """Return the files of folders as they are in the tree, without what Python makes."""
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True)
    return folder


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_the_packages_and_all_that_they_read(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(content(wheel))
    expected = tracked("csd_emu", "csd_lab", "firmware_agent", "host")
    expected |= {f"host/{name}" for name in tracked("examples", "docs")}
    for place, installed in (
        ("images/arm", "csd_emu/image/recipe_files"),
        ("images/drive", "host/deploy/drive_files"),
        ("images/targets", "csd_lab/testkit/plain/recipe_files"),
        ("images/grafana/dashboards", "host/monitoring/dashboards"),
        ("images/prometheus/rules", "host/monitoring/rules"),
    ):
        expected |= {name.replace(place, installed, 1) for name in tracked(place)}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert {f"{package}/py.typed" for package in ("csd_emu", "csd_lab", "firmware_agent", "host")} <= names


def test_the_same_sources_make_the_same_wheel(built: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    (one,), (other,) = built.glob("*.whl"), tmp_path.glob("*.whl")
    assert one.read_bytes() == other.read_bytes()


def test_the_metadata_is_complete(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    files = content(wheel)
    info = f"csd_emu-{PROJECT['version']}.dist-info"
    assert files[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    metadata = message_from_bytes(files[f"{info}/METADATA"])
    assert metadata["License-Expression"] == "Apache-2.0 AND GPL-2.0-or-later"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).startswith("# csd-emu")
    assert metadata["Keywords"]
    assert "Typing :: Typed" in (metadata.get_all("Classifier") or [])
    assert {"agent", "host", "qemu", "docs", "dev"} <= set(metadata.get_all("Provides-Extra") or [])
    assert "csd-emu = host.cli.entry:main" in files[f"{info}/entry_points.txt"].decode()


def test_the_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    for name in ("CHANGELOG.md", "LICENSE", "README.md", "tests/integration/test_packaging.py", "docs/install.md"):
        assert (source / name).is_file()
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path / "again"), "-t", "wheel"]
    subprocess.run(command, cwd=source, check=True)
    (wheel,), (again,) = built.glob("*.whl"), (tmp_path / "again").glob("*.whl")
    assert content(wheel) == content(again)


def test_the_changelog_has_a_section_for_the_version_or_what_is_unreleased() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    headings = [line for line in lines if line.startswith("## ")]
    assert headings[0] == "## [Unreleased]" or headings[0].startswith(f"## [{PROJECT['version']}] - ")


@pytest.mark.parametrize(("package", "words"), [("typer", "csd-emu[host]"), ("libvirt", "csd-emu[qemu]")])
def test_a_missing_package_is_one_line(tmp_path: Path, package: str, words: str) -> None:
    """A module of this name that cannot be found any more, as in an environment without the extra."""
    program = (
        f"import sys; sys.modules['{package}'] = None; sys.argv = ['csd-emu', 'image', 'prune']\n"
        "from host.cli.entry import main; main()"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "CSD_EMU_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_what_an_installed_package_reads_goes_before_the_clones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert packaged_folder("host", "examples", "examples") == ROOT / "examples"
    package = tmp_path / "some_package"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert packaged_folder("some_package", "data", "examples") == package / "data"


def test_every_example_has_a_title_and_its_files(workshop: Workshop, csd_emu: Command) -> None:
    listed = csd_emu("example", "--json").json("example")["examples"]
    assert {each["name"] for each in listed} >= {
        *("quickstart", "hypertune", "strategy", "tuner", "placement", "monitoring"),
    }
    for each in listed:
        assert each["text"], each
        folder = workshop.folder / each["name"]
        written = csd_emu("example", each["name"], folder, "--json").json("example")["written"]
        assert written
        assert sorted(written) == sorted(str(path) for path in folder.rglob("*") if path.is_file())
    assert (folder / "rules" / "alerts.yml").read_bytes() == (ROOT / "images/prometheus/rules/alerts.yml").read_bytes()


def test_an_example_overwrites_nothing(workshop: Workshop, csd_emu: Command) -> None:
    folder = workshop.folder / "mine"
    folder.mkdir()
    (folder / "job.yaml").write_text("mine")
    done = csd_emu("example", "quickstart", folder)
    assert done.code == 2
    assert "is there already, nothing was written" in done.err
    assert [path.name for path in folder.iterdir()] == ["job.yaml"]
    assert "choose one of: " in csd_emu("example", "quikstart", workshop.folder / "x").err
    (workshop.folder / "file").touch()
    assert "cannot be written" in csd_emu("example", "quickstart", workshop.folder / "file" / "x").err


@pytest.mark.parametrize("name", ["job.yaml", "array.yaml", "run"])
def test_schemas_are_printed(csd_emu: Command, name: str) -> None:
    assert name in csd_emu("schema").out.split()
    assert csd_emu("schema", name).out == (ROOT / "docs" / "schemas" / f"{name}.json").read_text(encoding="utf-8")


def test_a_schema_that_is_not_known(csd_emu: Command) -> None:
    assert "did you mean 'job.yaml'?" in csd_emu("schema", "job.yml").err


def test_the_benches_are_listed_with_their_questions(csd_emu: Command) -> None:
    listed: list[dict[str, Any]] = csd_emu("bench", "--json").json("benches")["benches"]
    assert {"repeatability", "simulate"} <= {each["name"] for each in listed}
    assert all(each["text"] for each in listed)
    assert example_files.MONITORING not in {each["name"] for each in listed}
