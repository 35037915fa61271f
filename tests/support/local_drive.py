"""A drive that is a folder of this machine: its commands run here, its Python is a script that plays the agent."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from csd_emu.engines.remote.drive_layout import DriveLayout
from csd_emu.engines.remote.inventory import Inventory
from csd_emu.util.deadline import Deadline
from host.deploy.bundle.bundle import Bundle, Packed
from host.deploy.bundle.bundle_recipe import Variant, WheelChoice, default_folder
from host.deploy.bundle.layer_archives import pack_layer
from host.deploy.compatibility import Form
from host.deploy.verb_protocol import DriveSite, VerbOutcome
from host.deploy.verbs.upgrade import Installer
from tests.support.local_shell import LocalShell

VARIANT = Variant(Form.WHEELS, "3.11")
# Says what it is asked to, and waits for a signal as the agent does. A version whose agent/broken exists fails; that
# which the file ill in the drive's folder names says so.
_AGENT = """\
#!/bin/sh
agent=${PYTHONPATH%%:*}
if [ -f "$agent/broken" ]; then echo 'RuntimeError: broken on purpose' >&2; exit 3; fi
case "$*" in
    *self-check) echo '{}' ;;
    *deployed*)
        version=$(readlink "$HOME/../current"); version=${version##*/}
        state=waiting what=
        if [ "$(cat "$HOME/../ill" 2>/dev/null)" = "$version" ]; then state=failed what='ill on purpose'; fi
        printf 'pid=%s\\nversion=%s\\nstate=%s\\nwhat=%s\\n' $$ "$version" "$state" "$what" >"$HOME/agent.new"
        mv "$HOME/agent.new" "$HOME/agent"
        echo "serving $version"
        trap 'exit 0' TERM
        while :; do sleep 0.1; done ;;
esac
"""


class LocalDrive:
    """One drive in a temporary folder, and the bundles that can be put onto it."""

    def __init__(self, folder: Path, shell: str = "dash") -> None:
        """Make it; nothing is installed."""
        self.folder = folder
        self.system = folder / "system"
        self.system.mkdir()
        self.python = folder / "python"
        self.python.write_text(_AGENT)
        self.python.chmod(0o755)
        inventory = Inventory.model_validate(
            {"name": "lab", "defaults": {"folder": str(folder / "opt")}, "drives": {"csd-01": {}}}
        )
        self.entry = inventory.list_drives()[0]
        self.layout = DriveLayout(PurePosixPath(self.entry.folder))
        self.root = Path(self.entry.folder)
        self.environment = {"PATH": os.environ["PATH"], "CSD_SYSTEM_ROOT": str(self.system)}
        self.shell: tuple[str, ...] = (shell,)
        self._script = (default_folder() / "csd-agent").read_text()
        if shell == "busybox":
            self._use_busybox()

    def site(self, before: Callable[[str], None] = lambda _: None, dry_run: bool = False) -> DriveSite:
        """Return a connection to it; see `LocalShell` for `before`."""
        shell = LocalShell(self.entry, self.environment, self.shell, before)
        return DriveSite(self.entry, shell, self.layout, Deadline(60.0), dry_run, lambda _, __: None)

    def bundle(self, name: str, packages: str = "packages", broken: bool = False) -> Bundle:
        """Return a bundle whose agent is called `name`, above a base that holds `packages`."""
        place = self.folder / "bundles" / f"{name}-{packages}-{broken}"
        if place.exists():
            shutil.rmtree(place)
        base = self._pack(place / "base", {"a/one.py": packages, "b/two.py": packages * 5000, "c/three.py": "3"})
        files = {"agent/firmware_agent/__init__.py": "", "name": name}
        if broken:
            files["agent/broken"] = ""
        facts = f'{{\n "form": "wheels",\n "python": "3.11",\n "layer": "{base.layer.id}"\n}}\n'
        for script in ("csd-agent.service", "csd-agent-health.service", "csd-agent.init"):
            files[script] = (default_folder() / script).read_text()
        files |= {"version.json": facts, "bin/csd-agent": self._script}
        version = self._pack(place / "version", files, {"site": f"../../layers/{base.layer.id}"}, 1 << 40)
        return Bundle(VARIANT, base, version)

    def use_folder(self, name: str) -> Path:
        """Have the drive's folder be `name` below ours, and return it."""
        self.entry = self.entry.model_copy(update={"folder": str(self.folder / name)})
        self.layout = DriveLayout(PurePosixPath(self.entry.folder))
        return Path(self.entry.folder)

    def have_tool(self, name: str, does: str = "true") -> None:
        """Have a program of the system; it writes its arguments into ``system/NAME.calls``."""
        self._script_at(self.system / "bin" / name, f'echo "$*" >>{self.system}/{name}.calls\n{does}\n')

    def have_user_tool(self, unknown: str) -> None:
        """Have an `id` that finds a user called `unknown` only in the drive's own passwd, and is root itself."""
        passwd = self.system / "etc/passwd"
        look = f'case "$*" in *{unknown}) grep -q "^{unknown}:" {passwd} && echo 0 || exit 1 ;; *) echo 0 ;; esac\n'
        self._script_at(self.folder / "id" / "id", look)
        self.environment["PATH"] = f"{self.folder / 'id'}:{self.environment['PATH']}"

    @staticmethod
    def _script_at(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)

    def installer(self, bundle: Bundle) -> Installer:
        """Return the verb that installs `bundle`, as whoever runs this test."""
        choice = WheelChoice(VARIANT, str(self.python))
        return Installer(lambda _: choice, lambda _: bundle, pwd.getpwuid(os.geteuid()).pw_name)

    def install(self, bundle: Bundle, before: Callable[[str], None] = lambda _: None) -> VerbOutcome:
        """Install `bundle`."""
        return self.installer(bundle)(self.site(before))

    def _use_busybox(self) -> None:
        """Have nothing but busybox: as the shell, and as every program that it calls."""
        busybox = shutil.which("busybox") or "busybox"
        programs = self.folder / "programs"
        programs.mkdir()
        subprocess.run([busybox, "--install", "-s", str(programs)], check=True)
        self.environment["PATH"] = str(programs)
        # The control script adds the usual folders behind.
        self.shell = (busybox, "sh")
        self._script = self._script.replace("#!/bin/sh", f"#!{busybox} sh", 1)

    @staticmethod
    def _pack(
        place: Path, files: dict[str, str], links: dict[str, str] | None = None, part_bytes: int = 8192
    ) -> Packed:
        tree, target = place / "tree", place / "packed"
        target.mkdir(parents=True)
        for name, text in files.items():
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        for name, goal in (links or {}).items():
            (tree / name).symlink_to(goal)
        return Packed(pack_layer(tree, target, part_bytes), target)
