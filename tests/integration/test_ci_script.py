"""`.ci/run`: every step runs, the first failure counts, and pytest's closing lines come last."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests import ROOT

STEPS = ("setup-dev", "lint", "types", "test", "test-compose", "test-third")
# Stands for make: says what pytest would, and fails in the steps of $FAILING (name=code ...).
MAKE = """#!/usr/bin/env bash
printf '%s %s\\n' "$*" "${CSD_ALLOW_NO_DOCKER-unset} ${CSD_REQUIRE_VM-unset}" >>steps.txt
code=0
for each in $FAILING; do [[ $each != "$1="* ]] || code=${each#*=}; done
case $1 in test*)
    if ((code)); then
        echo '=========================== short test summary info ==========================='
        echo "FAILED tests/x.py::test_of_$1 - AssertionError"
        echo "============ 1 failed, 9 passed in 12.34s ============"
    else
        echo "============ 10 passed in 12.34s ============"
    fi ;;
esac
exit "$code"
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for folder in (".ci", "scripts", "bin"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    for name, text in {"scripts/install-system-packages": "#!/bin/sh\n", "bin/make": MAKE}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run(clone: Path, failing: str = "", **environment: str) -> tuple[int, list[str], list[str]]:
    """Return the exit code, the lines, and the steps that ran."""
    path = f"{clone / 'bin'}:{os.environ['PATH']}"
    settings = {"PATH": path, "FAILING": failing, "CSD_ALLOW_NO_DOCKER": "1", **environment}
    done = subprocess.run([clone / ".ci" / "run"], capture_output=True, text=True, env=settings, check=False)
    return done.returncode, done.stdout.splitlines(), (clone / "steps.txt").read_text(encoding="utf-8").splitlines()


def test_all_steps_run_and_neither_machines_nor_containers_may_be_missing(clone: Path) -> None:
    code, lines, steps = run(clone)
    assert code == 0
    assert [line.split()[0] for line in steps] == list(STEPS)
    assert {tuple(line.split()[-2:]) for line in steps} == {("unset", "1")}
    assert lines[-1] == "============ 10 passed in 12.34s ============"
    assert sum("passed after" in line for line in lines) == len(STEPS) - 1


@pytest.mark.parametrize(
    ("failing", "expected"), [("lint=1 test=2", 1), ("test=2 test-compose=5", 2), ("test-third=7", 7)]
)
def test_the_first_failure_counts_and_hides_no_other(clone: Path, failing: str, expected: int) -> None:
    code, lines, steps = run(clone, failing)
    assert code == expected
    assert len(steps) == len(STEPS)
    end = lines[lines.index(next(line for line in lines if line.startswith("== the end"))) :]
    for each in failing.split():
        name = each.partition("=")[0]
        assert any(line.startswith(f"make {name}") and "failed with exit code" in line for line in end)
        if name.startswith("test"):
            assert f"FAILED tests/x.py::test_of_{name} - AssertionError" in end
    assert lines[-1].endswith("in 12.34s ============")


def test_without_what_all_need_nothing_else_is_tried(clone: Path) -> None:
    code, _, steps = run(clone, "setup-dev=2")
    assert code == 2
    assert len(steps) == 1


def test_what_changed_and_how_long_can_be_said(clone: Path) -> None:
    _, _, steps = run(clone, CSD_CI_SINCE="abc", CSD_CI_LONG_MINUTES="5")
    assert steps[-1].startswith("test-third ARGS=--long-minutes=5 --changed-since=abc")


def test_the_steps_of_the_github_action_are_shell_scripts() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    scripts = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    assert scripts
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
