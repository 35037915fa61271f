"""Put a bundle onto a drive beside what is there, and switch to it in one step.

Whatever happens on the way, cut, power failure, full disk, what was in use stays in use: nothing below ``versions`` and
``layers`` is ever incomplete, and the next attempt goes on where this one ended.
"""

from __future__ import annotations

import functools
import shlex
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from csd_emu.progress import Silent
from csd_emu.remote.layout import AGENT_USER
from firmware_agent.errors import DriveUnfit, InstallFailed
from host.deploy.bundle import Bundle, BundleStore, Packed
from host.deploy.fitness import Form, Needs, judge
from host.deploy.packing import ID_CHARACTERS, Part
from host.deploy.probe import read_facts
from host.deploy.recipe import ROOTFS_PYTHON, Choice, Variant
from host.deploy.verbs import Plan
from host.deploy.work import Outcome, Result, Site, Verb

# Beside what is counted: folders, logs, and room for the drive's other work.
_SPARE_BYTES = 64_000_000
_MEGA = 1e6
_MARKER = ".csd-emu"
_SURVEY = """\
if [ -f .csd-emu ]; then echo marker=ours; elif [ -n "$(ls -A 2>/dev/null)" ]; then echo marker=foreign; fi
for link in current previous; do echo "$link=$(readlink $link 2>/dev/null)"; done
for name in versions/*/version.json layers/*; do if [ -e "$name" ]; then echo "has=$name"; fi; done
for name in incoming/*.done; do if [ -f "$name" ]; then sed "s|^|done=|" "$name"; fi; done
if [ -f config ]; then sed "s|^|config=|" config; fi
"""


def prepare(plan: Plan) -> Verb:
    """Return the verb ``install`` with the bundles of this server."""
    store = BundleStore(plan.paths.cache / "bundles", plan.paths.cache / "downloads")
    forced = None if plan.options.form is None else Form(plan.options.form)
    return Installer(functools.partial(choose, forced=forced), lambda variant: store.ensure(variant, Silent()))


def choose(site: Site, forced: Form | None = None) -> Choice:
    """Probe a drive and return the form that fits it; its space is counted later, when it is known what is there.

    Raises:
        DriveUnfit: none fits; says why and what to do.
    """
    needs = Needs(disk_bytes=dict.fromkeys(Form, 0))
    fitness = judge(read_facts(site.shell, site.drive, site.deadline), needs, time.time(), forced)
    if fitness.form is None:
        raise DriveUnfit(f"drive {site.drive.name}: does not fit: {'; '.join(fitness.problems)}")
    if fitness.python is None:
        return Choice(Variant(fitness.form, ROOTFS_PYTHON), "")
    return Choice(Variant(fitness.form, ".".join(map(str, fitness.python.version[:2]))), fitness.python.path)


@dataclass(frozen=True)
class Survey:
    """What lies on a drive.

    Attributes:
        foreign: the folder is there and not empty, but is not ours.
        current, previous: versions in use, "" if none.
        versions, layers: that are complete.
        done: parts that were unpacked for a layer that is not complete.
        config: the lines of the drive's configuration.
        free_bytes: of the file system.
    """

    foreign: bool
    current: str
    previous: str
    versions: frozenset[str]
    layers: frozenset[str]
    done: frozenset[str]
    config: tuple[str, ...]
    free_bytes: int


def survey(site: Site) -> Survey:
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
        previous=last("previous"),
        versions=frozenset(parts[1] for parts in has if parts[0] == "versions"),
        layers=frozenset(parts[1] for parts in has if parts[0] == "layers"),
        done=frozenset(values("done")),
        config=tuple(values("config")),
        free_bytes=int(free) * 1024,
    )


@dataclass(frozen=True)
class Installer:
    """The verb ``install``.

    Attributes:
        choose: probes a drive and chooses the form; raises `DriveUnfit` where none fits.
        bundle: makes the bundle of a form, or returns that which was made; called from several threads.
        user: as whom the agent runs; made if there is none.
        now: monotonic seconds.
    """

    choose: Callable[[Site], Choice]
    bundle: Callable[[Variant], Bundle]
    user: str = AGENT_USER
    now: Callable[[], float] = time.monotonic

    def __call__(self, site: Site) -> Outcome:
        """Install on one drive; where it is installed already, nothing changes.

        Raises:
            DriveUnfit: the drive cannot have it: no form fits, or too little space.
            DriveUnreachable: the connection broke; what ran before still runs.
            InstallFailed: a step failed on the drive; what ran before still runs.
        """
        start = self.now()
        site.show("probe", None)
        choice = self.choose(site)
        bundle = self.bundle(choice.variant)
        work = Installation(site, choice, bundle, survey(site), self.user, self.now)
        if work.unchanged:
            return self._outcome(work, Result.UNCHANGED, f"version {bundle.id} is installed", start)
        work.check_space()
        if site.dry_run:
            return self._outcome(work, Result.PLANNED, work.plan(), start)
        work.run()
        return self._outcome(work, Result.DONE, f"version {bundle.id} installed", start)

    def _outcome(self, work: Installation, result: Result, what: str, start: float) -> Outcome:
        facts = {
            "version": work.bundle.id,
            "form": work.bundle.variant.form.value,
            "python": work.bundle.variant.python,
            "copied_bytes": work.copied_bytes,
            "copy_seconds": round(work.copy_seconds, 3),
            "seconds": round(self.now() - start, 3),
        }
        return Outcome(work.site.drive.name, result, what, facts)


class Installation:
    """One bundle on its way onto one drive."""

    def __init__(
        self, site: Site, choice: Choice, bundle: Bundle, found: Survey, user: str, now: Callable[[], float]
    ) -> None:
        """Plan it; nothing is done yet. See `Installer` for `user` and `now`."""
        self.site, self.bundle = site, bundle
        self.copied_bytes, self.copy_seconds = 0, 0.0
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
        parts = [part for packed in self._missing() for part in self._parts(packed)]
        if not parts:
            return
        needed = sum(part.unpacked_bytes for part in parts) + max(part.packed_bytes for part in parts) + _SPARE_BYTES
        free = self._found.free_bytes
        if needed > free:
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
        # What is reported as installed stays so, should the power fail in the next second.
        self._step("switch", f"{self._script('switch')} {bundle.id} && {self._script('prune')} && sync")

    def _missing(self) -> list[Packed]:
        found, bundle = self._found, self.bundle
        missing = [] if bundle.base.layer.id in found.layers else [bundle.base]
        return missing if bundle.id in found.versions else [*missing, bundle.version]

    def _parts(self, packed: Packed) -> list[Part]:
        """Return the parts still to be copied, the largest first, for the last one's unpacking is waited for."""
        left = [part for part in packed.layer.parts if part.sha256 not in self._found.done]
        return sorted(left, key=lambda part: part.packed_bytes, reverse=True)

    def _begin(self) -> str:
        ids = (self.bundle.base.layer.id, self.bundle.id)
        parts = (part.sha256 for packed in (self.bundle.base, self.bundle.version) for part in packed.layer.parts)
        wanted = [*(f"{name}{end}" for name in ids for end in ("", ".done")), *(_arriving(sha) for sha in parts)]
        config = "".join(f"{line}\n" for line in self._config)
        return f"""\
parent=$(dirname {self._folder}); if [ -d "$parent" ]; then parent=; fi
mkdir -p {self._folder}/incoming {self._folder}/layers {self._folder}/versions && chmod 755 {self._folder}
if [ -n "$parent" ]; then : >{self._folder}/made-parent; fi
cd {self._folder} && echo 'This folder is made and removed by csd-emu.' >{_MARKER} || exit 1
for path in incoming/*; do
    case " {" ".join(wanted)} " in *" ${{path##*/}} "*) ;; *) rm -rf "$path" ;; esac
done
printf %s {shlex.quote(config)} >config.new && mv -f config.new config
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

    def _copy(self, packed: Packed, part: Part, show: Callable[[int, int], None]) -> None:
        start = self._now()
        target = self.site.layout.incoming / _arriving(part.sha256)
        self.site.shell.copy(packed.folder / part.file, target, self.site.deadline, show, root=True)
        self.copy_seconds += self._now() - start
        self.copied_bytes += part.packed_bytes

    def _unpack(self, layer_id: str, part: Part) -> str:
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
        link = f"ln -sf {shlex.quote(interpreter)} incoming/{identity}/python &&" if self._is_wheels else ""
        script = f"sh incoming/{identity}/bin/csd-agent -C {self._folder}"
        return f"""\
cd {self._folder} && {link} {script} setup && {script} check incoming/{identity} >&2 || exit $?
rm -f incoming/{identity}.done && sync && mv -f incoming/{identity} versions/{identity} && sync
"""

    @property
    def _is_wheels(self) -> bool:
        return self.bundle.variant.form is Form.WHEELS

    def _script(self, verb: str) -> str:
        return f"sh {self._folder}/versions/{self.bundle.id}/bin/csd-agent -C {self._folder} {verb}"

    def _step(self, name: str, command: str) -> None:
        if name != "unpack":
            self.site.show(name, None)
        answer = self.site.shell.run(command, self.site.deadline, root=True)
        if answer.code:
            raise InstallFailed(f"drive {self.site.drive.name}: {_explain(name, answer.code, answer.err)}")


def _arriving(sha256: str) -> str:
    return f"{sha256[:ID_CHARACTERS]}.part"


def _raise_first(futures: Iterable[object]) -> None:
    for future in futures:
        future.result()  # type: ignore[attr-defined]


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
