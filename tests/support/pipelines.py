"""Pipeline files of GitHub Actions and GitLab, their steps run in a shell as a runner would.

What a runner brings itself is replaced by what it does locally: the checkout is a copy, a cache is a folder, artifacts
are copied. Packages are not installed: `apt-get`, `pip`, `sudo` and `useradd` only write down what they were asked for.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests import ROOT
from tests.support.commands import Workshop
from tests.support.projects import EXAMPLE, Project

GITHUB, GITLAB = EXAMPLE / "github-actions.yml", EXAMPLE / ".gitlab-ci.yml"
# Variables that a repository must have; what pip is asked for is only written down.
VARIABLES = {"CSD_EMU_WHEEL": "csd_emu.whl", "CSD_TORCH_INDEX": "index"}
_RECORDED = ("apt-get", "pip", "useradd")
# In place of building, packing and unpacking an image, which drives of the native engine do not have.
_NO_IMAGES = """
case "$1 $2" in
"image build") echo "csd-emu image build" >> "$CALLS"; exit 0 ;;
"image export") echo "csd-emu image export" >> "$CALLS"; echo image > "$3"; exit 0 ;;
"image import") echo "csd-emu image import" >> "$CALLS"; test "$(cat "$3")" = image; exit 0 ;;
esac
"""


class Runner:
    """A machine that runs pipelines of the example project."""

    def __init__(self, workshop: Workshop, *, native: bool) -> None:
        """Make a project folder; with `native` its drives are processes, and no image is built."""
        self.project = Project(workshop, home=native)
        shutil.copytree(EXAMPLE, self.project.folder, dirs_exist_ok=True)
        self.calls = workshop.folder / "calls.txt"
        self.calls.touch()
        self.cache, self.artifacts = workshop.folder / "cache", workshop.folder / "uploaded"
        self._programs = workshop.folder / "bin"
        self._programs.mkdir()
        for name in _RECORDED:
            self._program(name, f'echo "{name} $*" >> "$CALLS"')
        self._program("sudo", 'exec "$@"')
        self._program("csd-emu", (_NO_IMAGES if native else "") + f'exec {sys.executable} -P -m host "$@"')
        self._program("pytest", f'exec {sys.executable} -m pytest -p no:asyncio -p no:cacheprovider "$@"')
        self.environment = self.project.environment | {"CALLS": str(self.calls), "CI": "true"} | VARIABLES
        self.environment["PATH"] = os.pathsep.join([str(self._programs), self.environment["PATH"]])
        if native:
            self.environment["PYTEST_ADDOPTS"] = "--csd-engine native"

    def github(self) -> None:
        """Run the steps of the workflow; a step that fails raises."""
        workflow: dict[str, Any] = yaml.safe_load(GITHUB.read_text(encoding="utf-8"))
        (job,) = workflow["jobs"].values()
        for name, value in workflow["env"].items():
            assert value == f"${{{{ vars.{name} }}}}"
            self.environment.setdefault(name, "")  # as of a variable that is not set
        outputs, hit = self.calls.with_name("outputs.txt"), False
        outputs.touch()
        self.environment["GITHUB_OUTPUT"] = str(outputs)
        for step in job["steps"]:
            if "run" in step:
                self.shell(step["run"])
                continue
            action, values = step["uses"].partition("@")[0], step.get("with", {})
            if action.startswith("actions/cache/"):
                said = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
                key = values["key"].replace("${{ steps.image.outputs.key }}", said["key"])
                assert "${{" not in key
                if action == "actions/cache/restore":
                    hit = (self.cache / key).exists()
                    self._restore(key, [values["path"]])
                else:
                    assert (action, step["if"]) == ("actions/cache/save", "steps.cache.outputs.cache-hit != 'true'")
                    if not hit:
                        self._save(key, [values["path"]])
            elif action == "actions/upload-artifact":
                self._upload(values["path"].split())
            else:
                assert action in ("actions/checkout", "actions/setup-python"), action

    def gitlab(self) -> None:
        """Run the scripts of the job; a line that fails raises."""
        pipeline: dict[str, Any] = yaml.safe_load(GITLAB.read_text(encoding="utf-8"))
        job = pipeline["drives"]
        self.environment["CI_PROJECT_DIR"] = str(self.project.folder)
        for name, value in pipeline["variables"].items():
            expanded = value.replace("$CI_PROJECT_DIR", str(self.project.folder))
            self.environment.setdefault(name, expanded)
        self._restore(job["cache"]["key"], job["cache"]["paths"])
        assert job["cache"]["when"] == "always"
        try:
            self.shell("\n".join([*job["before_script"], *job["script"]]))
        finally:
            self._save(job["cache"]["key"], job["cache"]["paths"])
        self._upload(job["artifacts"]["paths"])
        assert list(self.project.folder.glob(job["artifacts"]["reports"]["junit"]))

    def shell(self, script: str) -> None:
        """Run a script as both do: in bash, ended by the first command that fails."""
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.project.folder,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"

    def installed(self) -> set[str]:
        """The system packages that were asked for."""
        lines = [line.split() for line in self.calls.read_text().splitlines()]
        return {word for line in lines if line[:2] == ["apt-get", "install"] for word in line[2:] if word[0] != "-"}

    def called(self, program: str) -> list[str]:
        """What a program was asked for."""
        return [line for line in self.calls.read_text().splitlines() if line.startswith(program)]

    def _program(self, name: str, script: str) -> None:
        path = self._programs / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def _restore(self, key: str, paths: list[str]) -> None:
        for path in paths:
            _copy(self.cache / key / path, self.project.folder / path)

    def _save(self, key: str, paths: list[str]) -> None:
        for path in paths:
            _copy(self.project.folder / path, self.cache / key / path)

    def _upload(self, paths: list[str]) -> None:
        for path in paths:
            assert (self.project.folder / path).is_dir(), path
            _copy(self.project.folder / path, self.artifacts / path)


def known_packages() -> set[str]:
    """The packages that scripts/install-system-packages would install."""
    text = (ROOT / "scripts" / "install-system-packages").read_text(encoding="utf-8")
    groups = text.partition("groups=(")[2].partition("\n)")[0]
    return {word for line in groups.splitlines() if "|" in line for word in line.partition("|")[2].strip('" ').split()}


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
