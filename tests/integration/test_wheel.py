"""The wheel alone, in an environment of its own, in an empty folder, with an empty home."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long


def run(*command: str | Path, folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, "-t", "wheel", folder=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(folder: Path) -> Path:
    run(sys.executable, "-m", "venv", folder / "venv", folder=folder)
    return folder / "venv" / "bin"


def test_without_extras_one_line_says_what_is_missing(wheel: Path, tmp_path: Path) -> None:
    programs = make_environment(tmp_path)
    run(programs / "pip", "install", "--quiet", wheel, folder=tmp_path)
    done = subprocess.run([programs / "csd-emu"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "pip install 'csd-emu[host]'" in done.stderr


def test_with_the_host_extra_it_trains_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    programs = make_environment(tmp_path)
    # The build of torch that the tests run on, not whatever is newest: elsewhere that is one for CUDA.
    torch = f"torch=={metadata.version('torch').partition('+')[0]}"
    run(programs / "pip", "install", "--quiet", torch, folder=tmp_path)
    run(programs / "pip", "install", "--quiet", f"{wheel}[host]", folder=tmp_path)
    (tmp_path / "home").mkdir()
    work = tmp_path / "work"
    work.mkdir()
    environment = {"HOME": str(tmp_path / "home"), "CSD_EMU_HOME": str(tmp_path / "csd"), "PATH": os.defpath}

    def csd_emu(*arguments: str) -> str:
        return run(programs / "csd-emu", *arguments, folder=work, environment=environment)

    assert "quickstart" in csd_emu("example")
    csd_emu("example", "quickstart")
    job = ["quickstart/job.yaml", "--array", "quickstart/array.yaml"]
    assert '"reached": true' in csd_emu("run", *job, "--engine", "native", "--json")
    csd_emu("example", "hypertune")
    csd_emu("simulate", "hypertune/job.yaml", "--array", "hypertune/array.yaml")
    csd_emu("example", "monitoring")
    assert csd_emu("schema", "job.yaml").startswith("{")
    assert "newport" in csd_emu("profiles", "newport")
    assert "repeatability" in csd_emu("bench")
    done = subprocess.run(
        [programs / "csd-emu", "image", "prune"], cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "csd-emu[qemu]" in done.stderr) == (2, True)
