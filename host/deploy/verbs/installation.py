"""One bundle on its way onto one drive: copy, unpack, self-check, switch; each step safe to be cut and done again."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from firmware_agent.common.errors import DriveUnfit, InstallFailed
from host.deploy.bundle.bundle import Bundle, Packed
from host.deploy.bundle.bundle_recipe import WheelChoice
from host.deploy.bundle.layer_archives import ID_CHARACTERS, LayerArchive
from host.deploy.compatibility import Form
from host.deploy.verb_protocol import DriveSite

_SURVEY = """\
if [ -f .csd-emu ]; then echo marker=ours; elif [ -n "$(ls -A 2>/dev/null)" ]; then echo marker=foreign; fi
echo "current=$(readlink current 2>/dev/null)"
for name in versions/*/version.json layers/*; do if [ -e "$name" ]; then echo "has=$name"; fi; done
for name in incoming/*.done; do if [ -f "$name" ]; then sed "s|^|done=|" "$name"; fi; done
if [ -f config ]; then sed "s|^|config=|" config; fi
"""


@dataclass(frozen=True)
class Survey:
    """What lies on a drive.

    Attributes:
        foreign: the folder is there and not empty, but is not ours.
        current: version in use, "" if none.
        versions, layers: that are complete.
        done: parts that were unpacked for a layer that is not complete.
        config: the lines of the drive's configuration.
        free_bytes: of the file system.
    """

    foreign: bool
    current: str
    versions: frozenset[str]
    layers: frozenset[str]
    done: frozenset[str]
    config: tuple[str, ...]
    free_bytes: int


def survey(site: DriveSite) -> Survey:
    """Look at what is installed on a drive; changes nothing.

    Raises:
        DriveUnfit: its folder cannot be read.
        DriveUnreachable: the connection broke.
    """
    folder = shlex.quote(str(site.layout.folder))
    # The file system is that of the nearest folder above that is there.
    command = f"""\
place={folder}; while [ ! -d "$place" ]; do place=$(dirname "$place"); done
df -Pk "$place" | sed -n '2s/^.* \\([0-9][0-9]*\\)  *[0-9]*%.*$/free=\\1/p'
if cd {folder} 2>/dev/null; then {_SURVEY}fi
"""
    lines = [line.partition("=")[::2] for line in site.shell.check(command, site.deadline, root=True).splitlines()]

    def values(key: str) -> list[str]:
        return [value for name, value in lines if name == key]

    def last(key: str) -> str:
        return values(key)[-1].rpartition("/")[2] if values(key) else ""

    has = [Path(name).parts for name in values("has")]
    free = last("free")
    if not free.isdecimal():
        raise DriveUnfit(f"drive {site.drive.name}: its free space cannot be read (df); look at it by hand")
    return Survey(
        foreign=last("marker") == "foreign",
        current=last("current"),
        versions=frozenset(parts[1] for parts in has if parts[0] == "versions"),
        layers=frozenset(parts[1] for parts in has if parts[0] == "layers"),
        done=frozenset(values("done")),
        config=tuple(values("config")),
        free_bytes=int(free) * 1024,
    )


# Beside what is counted: folders, logs, and room for the drive's other work.
_SPARE_BYTES = 64_000_000
_MEGA = 1e6
_MARKER = ".csd-emu"
# A self-check that was cut leaves the drive's own folders mounted in what now is to be removed.
_UNMOUNT = """\
for place in $(sed -n 's/^[^ ]* \\([^ ]*\\) .*/\\1/p' /proc/mounts | sort -r); do
    case $place in "$(pwd -P)"/incoming/*) umount "$place" || umount -l "$place" || exit 1 ;; esac
done"""


class Installation:
    """One bundle on its way onto one drive."""

    def __init__(
        self, site: DriveSite, choice: WheelChoice, bundle: Bundle, found: Survey, user: str, now: Callable[[], float]
    ) -> None:
        """Plan it; nothing is done yet. See `Installer` for `user` and `now`."""
        self.site, self.bundle = site, bundle
        self.copied_bytes, self.copy_wall_seconds = 0, 0.0
        self._choice, self._found, self._now = choice, found, now
        self._folder = shlex.quote(str(site.layout.folder))
        self._config = (f"user={user}", f"data={site.drive.data or ''}")

    @property
    def unchanged(self) -> bool:
        """Whether the version is in use, with the configuration that the inventory wants."""
        found = self._found
        return found.current == self.bundle.id in found.versions and found.config == self._config

    def plan(self) -> str:
        """Return what would be done, in one line."""
        size = sum(part.packed_bytes for packed in self._missing() for part in self._parts(packed))
        before = f" beside {self._found.current}" if self._found.current else ""
        return f"would copy {size / _MEGA:.1f} MB and install version {self.bundle.id}{before}"

    def check_space(self) -> None:
        """Refuse, before anything is copied, what the drive has no room for, or a folder that is not ours.

        Raises:
            DriveUnfit: says what is needed and what is there.
        """
        if self._found.foreign:
            raise DriveUnfit(
                f"drive {self.site.drive.name}: {self.site.layout.folder} is there but is not csd-emu's; "
                "give another folder in the inventory"
            )
        if parts := [part for packed in self._missing() for part in self._parts(packed)]:
            needed = (
                sum(part.unpacked_bytes for part in parts) + max(part.packed_bytes for part in parts) + _SPARE_BYTES
            )
            if needed > (free := self._found.free_bytes):
                raise DriveUnfit(
                    f"drive {self.site.drive.name}: {self.site.layout.folder}: {free / _MEGA:.0f} MB are free, the "
                    f"installation needs {needed / _MEGA:.0f} MB; free some space, or give another folder"
                )

    def run(self) -> None:
        """Do it all; safe to be cut anywhere, and to be called again."""
        bundle = self.bundle
        self._step("begin", self._begin())
        for packed in self._missing():
            self._bring(packed)
        if bundle.id not in self._found.versions:
            self._step("self-check", self._accept())
        config = f"mv -f {self._folder}/config.new {self._folder}/config"
        # What is reported as installed stays so, should the power fail in the next second.
        script = f"{self._script('switch')} {bundle.id} && {self._script('prune')} && sync"
        self._step("switch", f"{config} && {script}")

    def make_folder(self) -> str:
        """Return a command that makes the drive's folder, if it is not there, and marks it as ours."""
        return f"""\
place={self._folder} made=0
while [ ! -d "$place" ]; do made=$((made + 1)); place=$(dirname "$place"); done
mkdir -p {self._folder} && cd {self._folder} || exit 1
if [ ! -f {_MARKER} ]; then
    printf 'This folder is filled and emptied by csd-emu.\\nmade=%s\\n' "$made" >{_MARKER} || exit 1
fi
"""

    def _missing(self) -> list[Packed]:
        found, bundle = self._found, self.bundle
        missing = [] if bundle.base.layer.id in found.layers else [bundle.base]
        return missing if bundle.id in found.versions else [*missing, bundle.version]

    def _parts(self, packed: Packed) -> list[LayerArchive]:
        """Return the parts still to be copied, the largest first, for the last one's unpacking is waited for."""
        left = [part for part in packed.layer.parts if part.sha256 not in self._found.done]
        return sorted(left, key=lambda part: part.packed_bytes, reverse=True)

    def _begin(self) -> str:
        ids = (self.bundle.base.layer.id, self.bundle.id)
        parts = (part.sha256 for packed in (self.bundle.base, self.bundle.version) for part in packed.layer.parts)
        wanted = [*(f"{name}{end}" for name in ids for end in ("", ".done")), *(_arriving(sha) for sha in parts)]
        config = "".join(f"{line}\n" for line in self._config)
        return f"""\
cd {self._folder} && mkdir -p incoming layers versions && chmod 755 . || exit 1
{_UNMOUNT}
for path in incoming/*; do
    case " {" ".join(wanted)} " in *" ${{path##*/}} "*) ;; *) rm -rf "$path" ;; esac
done
printf %s {shlex.quote(config)} >config.new
"""

    def _bring(self, packed: Packed) -> None:
        """Copy what is missing of a layer; each part is unpacked while the next one travels."""
        layer, parts = packed.layer, self._parts(packed)
        whole, before = max(1, sum(part.packed_bytes for part in parts)), 0
        with ThreadPoolExecutor(1) as unpacker:
            unpacked = []
            for part in parts:
                self._copy(packed, part, functools.partial(self._show_copy, before, whole))
                before += part.packed_bytes
                unpacked.append(unpacker.submit(self._step, "unpack", self._unpack(layer.id, part)))
                _raise_first(future for future in unpacked if future.done())
            _raise_first(unpacked)
        if packed is self.bundle.base:
            done = f"cd {self._folder} && mv -f incoming/{layer.id} layers/{layer.id} && rm -f incoming/{layer.id}.done"
            self._step("unpack", done)

    def _show_copy(self, before: int, whole: int, there: int, _: int) -> None:
        self.site.show("copy", (before + there) / whole)

    def _copy(self, packed: Packed, part: LayerArchive, show: Callable[[int, int], None]) -> None:
        start = self._now()
        target = self.site.layout.incoming / _arriving(part.sha256)
        self.site.shell.copy(packed.folder / part.file, target, self.site.deadline, show, root=True)
        self.copy_wall_seconds += self._now() - start
        self.copied_bytes += part.packed_bytes

    def _unpack(self, layer_id: str, part: LayerArchive) -> str:
        """Return a command that checks and unpacks a part; only what is on the disk for good counts as done."""
        file = _arriving(part.sha256)
        return f"""\
cd {self._folder}/incoming && mkdir -p {layer_id} || exit 1
if ! sha256sum {file} | grep -q {part.sha256}; then
    rm -f {file}; echo 'the copy is damaged; run it again' >&2; exit 1
fi
gzip -dc {file} | tar -xf - -C {layer_id} && sync && echo {part.sha256} >>{layer_id}.done && rm -f {file}
"""

    def _accept(self) -> str:
        """Return a command that lets the new version prove itself where nothing starts it, then puts it in place."""
        identity, interpreter = self.bundle.id, self._choice.interpreter
        wheels = self.bundle.variant.form is Form.WHEELS
        link = f"ln -sf {shlex.quote(interpreter)} incoming/{identity}/python &&" if wheels else ""
        script = f"sh incoming/{identity}/bin/csd-agent -C {self._folder}"
        return f"""\
cd {self._folder} && {link} {script} setup && {script} check incoming/{identity} >&2 || exit $?
rm -rf incoming/gone-{identity} && if [ -e versions/{identity} ]; then
    mv versions/{identity} incoming/gone-{identity}
fi && rm -f incoming/{identity}.done && sync && mv -f incoming/{identity} versions/{identity} && sync
"""

    def _script(self, verb: str) -> str:
        return f"sh {self._folder}/versions/{self.bundle.id}/bin/csd-agent -C {self._folder} {verb}"

    def _step(self, name: str, command: str) -> None:
        if name != "unpack":
            self.site.show(name, None)
        if (answer := self.site.shell.run(command, self.site.deadline, root=True)).code:
            raise InstallFailed(f"drive {self.site.drive.name}: {_explain(name, answer.code, answer.err)}")


def _arriving(sha256: str) -> str:
    return f"{sha256[:ID_CHARACTERS]}.part"


def _raise_first(futures: Iterable[Future[None]]) -> None:
    for future in futures:
        future.result()


def _explain(step: str, code: int, err: str) -> str:
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    said = lines[-1] if lines else f"exit code {code}"
    if "No space left" in err:
        said, remedy = "its disk is full", "free some space there and run it again"
    elif step == "self-check" and code in (132, 128 + 4):
        said, remedy = "its processor lacks an instruction that torch needs (SIGILL)", "this drive cannot run the agent"
    else:
        remedy = "what ran before still runs; correct the cause and run it again"
    return f"{step} failed: {said}; {remedy}"
