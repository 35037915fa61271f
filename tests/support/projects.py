"""Other people's projects: their tests, run with pytest as they would run them."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests import ROOT
from tests.support.commands import Done, Workshop

EXAMPLE = ROOT / "examples" / "ci"


class Project:
    """A project in a workshop's folder, in an environment in which csd-emu is installed, and its plugin announced."""

    def __init__(self, workshop: Workshop, *, home: bool = True) -> None:
        """Make the folder; without a `home` the project uses this user's normal cache, as for virtual machines."""
        self.workshop, self._home = workshop, home
        self.folder = workshop.folder / "project"
        self.folder.mkdir()
        site = workshop.folder / "site"
        facts = site / "csd_emu-0.dist-info"
        facts.mkdir(parents=True)
        entries = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
        lines = [f"{name} = {target}" for name, target in entries["pytest11"].items()]
        (facts / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: csd-emu\nVersion: 0.1.0\n")
        self._path = [site, ROOT]

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    @property
    def environment(self) -> dict[str, str]:
        own = os.environ if not self._home else self.workshop.environment
        # This project's own tests need none of the settings of the tests that it is run by.
        outer = ("PYTEST_", "CSD_REQUIRE")
        kept = {name: value for name, value in own.items() if not name.startswith(outer)}
        programs = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
        return kept | {"PYTHONPATH": os.pathsep.join(map(str, self._path)), "PATH": programs}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            # asyncio's plugin, if it is there, warns in projects that do not set it up.
            [sys.executable, "-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
            cwd=self.folder,
            start_new_session=True,
        )

    def test(self, *arguments: str, seconds: float = 300.0) -> Done:
        process = self.start(*arguments)
        out, _ = process.communicate(timeout=seconds)
        return Done(process.returncode, out, "")
