"""csd-emu beside other packages: it resolves on each Python, and runs with the lowest versions that it names."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests import ROOT

EXTRAS = ("host", "notebook", "sweep", "slurm", "tensorboard", "mlflow", "parquet")
WHOLE = f"csd-emu[{','.join(EXTRAS)}] @ {ROOT.as_uri()}"
# Of the torch that is here: another build would be gigabytes of its dependencies.
TORCH, OF_TORCH = ("torch", "torchgen", "functorch"), ("torch", "triton", "nvidia-", "cuda-")
TRAINED = """
import csd_emu as ce

with ce.Array(drives=2, engine="native") as array:
    run = array.train(model="digits_cnn", data="digits", rounds=1)
    assert run.rounds.shape[0] == 1 and run.report().stat().st_size > 100_000
"""

pytestmark = pytest.mark.long


def uv(*arguments: str | Path, stdin: str = "") -> str:
    environment = os.environ | {"UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    command = [sys.executable, "-m", "uv", *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def resolve(requirements: str, *options: str, python: str = "3.11") -> list[str]:
    printed = uv("pip", "compile", "-", "--python-version", python, "--no-annotate", *options, stdin=requirements)
    return [line for line in printed.splitlines() if line and line[0] not in "#-"]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("beside", ["", "flwr\n"], ids=["alone", "beside flwr"])
def test_it_resolves(python: str, beside: str) -> None:
    assert len(resolve(beside + WHOLE, python=python)) > len(EXTRAS)


def environment_of(folder: Path, requirements: list[str]) -> Path:
    """Install these beside csd-emu, with the torch that is here, and return the folder of commands."""
    here = Path(sysconfig.get_path("purelib"))
    uv("venv", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python3.*/site-packages")
    others = [line for line in requirements if not line.startswith((*OF_TORCH, "csd-emu"))]
    uv("pip", "install", "--python", python, "-r", "-", stdin="\n".join(others))
    uv("pip", "install", "--python", python, "--no-deps", ROOT)
    for path in (*(here / name for name in TORCH), *here.glob("torch-*.dist-info")):
        (packages / path.name).symlink_to(path)
    return folder / "bin"


def test_the_lowest_versions_train_and_report(tmp_path: Path) -> None:
    lowest = resolve(WHOLE, "--resolution", "lowest-direct")
    assert "typer==0.19.0" in lowest
    commands = environment_of(tmp_path / "lowest", lowest)
    (tmp_path / "script.py").write_text(TRAINED, encoding="utf-8")
    subprocess.run([commands / "python", "script.py"], cwd=tmp_path, check=True, timeout=200)
    help_text = subprocess.run([commands / "csd-emu", "run", "--help"], capture_output=True, check=True)
    assert b"csd-emu docs training" in help_text.stdout
