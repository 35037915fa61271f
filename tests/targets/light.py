"""Small bundles: the way onto a drive, without the half gigabyte that torch is.

The stand-in for the agent says and does what the control script looks at: it checks itself, writes its state, and ends
when it is told to. `tests/vm/test_deploy_real.py` has the real agent on the same machines.
"""

import functools
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from csd_emu.util.paths import Paths
from host.deploy.bundle.bundle import BundleStore
from host.deploy.bundle.bundle_recipe import default_folder, load_recipe
from host.deploy.verbs import upgrade
from host.deploy.verbs.upgrade import Patience
from tests.targets.deployer import Deployer

# Real wheels: one of compiled code, large enough that a copy can be cut in the middle.
_PACKAGES = ("msgspec", "numpy")
_PART_BYTES = 16_000_000
_SETTLE_SECONDS = 90.0
GOOD, BROKEN, DUMB = "good", "broken", "dumb"
_AGENT = '''\
"""{name}: {manner}"""
import os
import signal
import sys

import msgspec
import numpy

if sys.argv[1] == "self-check":
    sys.exit("planted: the self-check fails" if "{manner}" == "broken" else 0)
if "{manner}" == "dumb":
    sys.exit("planted: it ends at once")
folder = sys.argv[2]
version = os.path.basename(os.path.realpath(os.path.join(folder, "current")))
print("this is {name}", flush=True)
path = os.path.join(folder, "state", "agent")
with open(path + ".partial", "w") as file:
    file.write("pid=%d\\nversion=%s\\nstate=waiting\\n" % (os.getpid(), version))
os.replace(path + ".partial", path)
while True:
    signal.pause()
'''


class Light(Deployer):
    """`csd-emu deploy` with small bundles."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(Paths(folder / "cache", folder / "state", folder / "run"))
        self._folder, self._monkeypatch = folder, monkeypatch
        recipe = folder / "drive"
        shutil.copytree(default_folder(), recipe)
        for lock in recipe.glob("*.lock"):
            lock.write_text("".join(_locked(lock.read_text())))
        self._recipe = replace(load_recipe(recipe), part_bytes=_PART_BYTES)
        # The stand-in says at once what it does; one that never does need not be waited for as torch must be.
        patience = Patience(_SETTLE_SECONDS)
        monkeypatch.setattr(upgrade, "Upgrade", functools.partial(upgrade.Upgrade, patience=patience))
        self.use("one")

    def use(self, name: str, manner: str = GOOD) -> None:
        """Have installations bring another agent: one that is good, broken (its self-check fails) or dumb."""
        package = self._folder / name / "firmware_agent"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(f'"""{name}"""\n')
        (package / "__main__.py").write_text(_AGENT.format(name=name, manner=manner))
        wheels = (Paths.default().cache / "downloads" / "wheels",)
        store = functools.partial(BundleStore, wheels=wheels, recipe=self._recipe, agent=package)
        self._monkeypatch.setattr(upgrade, "BundleStore", store)

    def packed_bytes(self) -> int:
        """What the bundles made so far take, as they travel."""
        folder = self.paths.cache / "bundles"
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _locked(text: str) -> Iterator[str]:
    """Yield the lines of a lock file that are about the few packages."""
    for name in _PACKAGES:
        found = re.search(rf"^{name}==.*\\\n(?: .*\\\n)* .*\n", text, re.MULTILINE)
        assert found is not None, f"{name} is not locked"
        yield found[0]
