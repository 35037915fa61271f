"""Installations on a drive that is a folder here: what is in use stays in use, whatever happens on the way."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from csd_emu.engines.remote.drive_slot import AgentStatus, Control
from csd_emu.engines.remote.inventory import Inventory
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import DriveUnfit, DriveUnreachable, InstallFailed
from host.deploy.bundle.bundle import Bundle
from host.deploy.drive_lock import held
from host.deploy.run_verb import prepare_verb
from host.deploy.verb_protocol import VERBS, VerbOptions, VerbPlan, VerbResult
from host.deploy.verbs import service
from host.deploy.verbs.upgrade import Upgrade
from tests.support.local_drive import LocalDrive

# Programs through which the drive's commands change anything.
PROGRAMS = ("chmod", "gzip", "ln", "mkdir", "mv", "rm", "sed", "sync", "tar")


@pytest.fixture(params=[pytest.param("dash", marks=pytest.mark.long), "busybox"])
def drive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalDrive]:
    drive = LocalDrive(tmp_path, request.param)
    yield drive
    service.uninstall(drive.site())


def status(drive: LocalDrive) -> AgentStatus:
    site = drive.site()
    return Control(site.shell, site.layout).status(site.deadline)


def plan(*, lines: int | None = None, force: bool | None = None) -> VerbPlan:
    inventory = Inventory.model_validate({"name": "lab", "drives": {"csd-01": {}}})
    return VerbPlan(inventory, VerbOptions(lines, force=force), Paths.default(), False)


def tree(folder: Path) -> dict[str, tuple[int, float, bytes]]:
    """Return everything below a folder, its times too."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_mtime,
            b"" if path.is_symlink() or not path.is_file() else path.read_bytes(),
        )
        for path in folder.rglob("*")
    }


def in_use(drive: LocalDrive) -> str:
    """Return the version in use, having seen that it is whole."""
    found = status(drive).version
    if found:
        assert (drive.root / "current/agent/firmware_agent/__init__.py").is_file()
        assert (drive.root / "current/site/c/three.py").read_text() == "3"
        assert (drive.root / "current/python").exists()
    return found


def test_a_second_installation_changes_nothing(drive: LocalDrive) -> None:
    bundle = drive.bundle("one")
    assert drive.install(bundle).result is VerbResult.DONE
    before = tree(drive.root)
    again = drive.install(bundle)
    assert (again.result, again.facts["copied_bytes"]) == (VerbResult.UNCHANGED, 0)
    assert tree(drive.root) == before


def test_an_upgrade_copies_only_the_layer_that_changed(drive: LocalDrive) -> None:
    first, second = drive.bundle("one"), drive.bundle("two")
    drive.install(first)
    done = drive.install(second)
    assert done.facts["copied_bytes"] == sum(part.packed_bytes for part in second.version.layer.parts)
    found = status(drive)
    assert (found.version, found.previous) == (second.id, first.id)


def test_versions_beyond_the_previous_one_are_removed(drive: LocalDrive) -> None:
    bundles = [drive.bundle(name, packages=name) for name in ("one", "two", "three")]
    for bundle in bundles:
        drive.install(bundle)
    assert {path.name for path in (drive.root / "versions").iterdir()} == {bundle.id for bundle in bundles[1:]}
    assert {path.name for path in (drive.root / "layers").iterdir()} == {bundle.base.layer.id for bundle in bundles[1:]}
    assert not (drive.root / "incoming").exists()


def test_a_dry_run_changes_nothing(drive: LocalDrive) -> None:
    outcome = drive.installer(drive.bundle("one"))(drive.site(dry_run=True))
    assert outcome.result is VerbResult.PLANNED
    assert "would copy" in outcome.what
    assert not drive.root.exists()


class Cut:
    """Cuts the line at the so-manieth command; of a file that is being copied, half has arrived."""

    def __init__(self, bundle: Bundle, commands: int) -> None:
        self._left = commands
        self._files = {
            part.sha256[:16]: packed.folder / part.file
            for packed in (bundle.base, bundle.version)
            for part in packed.layer.parts
        }

    def __call__(self, command: str) -> None:
        self._left -= 1
        if self._left == 0:
            if command.startswith("copy "):
                target = Path(command.removeprefix("copy "))
                content = self._files[target.stem].read_bytes()
                target.write_bytes(content[: len(content) // 2])
            raise DriveUnreachable("cut")


@pytest.mark.parametrize("drive", [pytest.param("dash", marks=pytest.mark.long), "busybox"], indirect=True)
def test_a_line_cut_at_any_command_leaves_the_version_in_use_and_the_next_attempt_ends_it(drive: LocalDrive) -> None:
    old = drive.bundle("old", packages="old")
    drive.install(old)
    for commands in range(1, 100):
        new = drive.bundle(f"new{commands}", packages=f"new{commands}")
        before = in_use(drive)
        try:
            drive.install(new, Cut(new, commands))
        except DriveUnreachable:
            assert in_use(drive) in (before, new.id)
            assert drive.install(new).result in (VerbResult.DONE, VerbResult.UNCHANGED)
            assert in_use(drive) == new.id
            continue
        assert commands > 5, "the line was never cut"
        return
    pytest.fail("an installation takes a hundred commands")


def dying(drive: LocalDrive, folder: Path, programs: int) -> None:
    """Have the drive lose its power after so many programs: neither the next one nor any after it runs."""
    folder.mkdir(exist_ok=True)
    (folder / "run").write_text("")
    for name in PROGRAMS:
        real = next(p for d in os.environ["PATH"].split(":") if os.access(p := f"{d}/{name}", os.X_OK))
        path = folder / name
        path.write_text(
            f'#!/bin/sh\necho >>{folder}/run\nif [ "$(wc -c <{folder}/run)" -gt {programs} ]; then kill -9 0; fi\n'
            f'exec {real} "$@"\n'
        )
        path.chmod(0o755)
    drive.environment["PATH"] = f"{folder}:{os.environ['PATH']}"


@pytest.mark.long
def test_power_lost_at_any_step_leaves_the_version_in_use_and_the_next_attempt_ends_it(tmp_path: Path) -> None:
    drive = LocalDrive(tmp_path, "dash")
    drive.install(drive.bundle("old", packages="old"))
    usual = dict(drive.environment)
    for programs in range(200):
        new = drive.bundle(f"new{programs}", packages=f"new{programs}")
        before = in_use(drive)
        dying(drive, tmp_path / "dying", programs)
        try:
            drive.install(new)
        except (InstallFailed, DriveUnfit):
            drive.environment = dict(usual)
            assert in_use(drive) in (before, new.id)
            drive.install(new)
            assert in_use(drive) == new.id
            continue
        finally:
            drive.environment = dict(usual)
        assert programs > 20, "the power was never lost"
        service.uninstall(drive.site())
        return
    pytest.fail("an installation runs two hundred programs")


def test_a_version_that_fails_its_self_check_is_never_used(drive: LocalDrive) -> None:
    good, bad = drive.bundle("good"), drive.bundle("bad", broken=True)
    drive.install(good)
    with pytest.raises(InstallFailed, match="self-check failed: RuntimeError: broken on purpose; what ran before"):
        drive.install(bad)
    assert in_use(drive) == good.id
    assert not (drive.root / "versions" / bad.id).exists()


def test_a_damaged_copy_is_refused_and_copied_anew(drive: LocalDrive) -> None:
    bundle = drive.bundle("one")
    part = max(bundle.base.layer.parts, key=lambda part: part.packed_bytes)

    def damage(command: str) -> None:
        if command.startswith("copy ") and part.sha256[:16] in command:
            Path(command.removeprefix("copy ")).write_bytes(b"something else")

    with pytest.raises(InstallFailed, match="the copy is damaged; run it again"):
        drive.install(bundle, damage)
    assert drive.install(bundle).result is VerbResult.DONE


def test_space_is_asked_for_before_anything_is_copied(tmp_path: Path) -> None:
    drive = LocalDrive(tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "df").write_text("#!/bin/sh\necho Filesystem\necho '/dev/x 100 90 10 90% /'\n")
    (tools / "df").chmod(0o755)
    drive.environment["PATH"] = f"{tools}:{os.environ['PATH']}"
    with pytest.raises(DriveUnfit, match=r"0 MB are free, the installation needs \d+ MB; free some space"):
        drive.install(drive.bundle("one"))
    assert not drive.root.exists()


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    drive = LocalDrive(tmp_path)
    drive.root.mkdir()
    (drive.root / "precious").write_text("mine")
    with pytest.raises(DriveUnfit, match="is not csd-emu's"):
        drive.install(drive.bundle("one"))
    with pytest.raises(DriveUnfit, match="nothing was removed"):
        service.uninstall(drive.site())
    assert [path.name for path in drive.root.iterdir()] == ["precious"]


def test_uninstall_leaves_nothing_and_does_nothing_twice(drive: LocalDrive) -> None:
    drive.install(drive.bundle("one"))
    assert service.uninstall(drive.site()).result is VerbResult.DONE
    assert not drive.root.exists()
    assert list(drive.system.rglob("*")) == []
    assert service.uninstall(drive.site()).result is VerbResult.UNCHANGED


def test_uninstall_removes_the_folders_that_were_made_and_no_others(drive: LocalDrive) -> None:
    drive.root = drive.use_folder("a/b/c")
    drive.install(drive.bundle("one"))
    service.uninstall(drive.site())
    assert not (drive.folder / "a").exists()
    drive.root.mkdir(parents=True)
    drive.install(drive.bundle("one"))
    service.uninstall(drive.site())
    assert list(drive.root.iterdir()) == []


def test_uninstall_spares_records_that_lie_in_its_folder(drive: LocalDrive) -> None:
    drive.install(drive.bundle("one"))
    (drive.root / "records").mkdir()
    (drive.root / "records/precious").write_text("mine")
    config = drive.root / "config"
    usual = config.read_text()
    (drive.folder / "elsewhere").symlink_to(drive.root / "records")
    for data in (drive.root / "records", drive.root / "records/precious", drive.folder / "elsewhere"):
        config.write_text(f"user=root\ndata={data}\n")
        with pytest.raises(InstallFailed, match=r"these records lie in .* nothing was removed"):
            service.uninstall(drive.site())
        assert (drive.root / "records/precious").read_text() == "mine"
        assert in_use(drive)
    config.write_text(usual)


def test_an_uninstall_goes_on_where_one_was_cut(drive: LocalDrive) -> None:
    drive.install(drive.bundle("one"))
    for path in drive.root.iterdir():
        if path.name != ".csd-emu":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    assert service.uninstall(drive.site()).result is VerbResult.DONE
    assert not drive.root.exists()


def test_a_failed_installation_leaves_the_configuration_of_what_runs(drive: LocalDrive) -> None:
    drive.install(drive.bundle("good"))
    before = (drive.root / "config").read_text()
    drive.entry = drive.entry.model_copy(update={"data": "/elsewhere"})
    with pytest.raises(InstallFailed, match="self-check failed"):
        drive.install(drive.bundle("bad", broken=True))
    assert (drive.root / "config").read_text() == before
    drive.install(drive.bundle("good"))
    assert "data=/elsewhere" in (drive.root / "config").read_text()


def test_a_script_of_another_folder_is_neither_replaced_nor_removed(drive: LocalDrive) -> None:
    drive.have_tool("update-rc.d")
    script = drive.system / "etc/init.d/csd-agent"
    script.parent.mkdir(parents=True)
    other = drive.folder / "other"
    other.mkdir()
    (other / ".csd-emu").touch()
    script.write_text(f"exec {other}/bin/csd-agent -C {other} boot\n")
    before = script.read_text()
    with pytest.raises(InstallFailed, match=f"is that of {other}; uninstall it first"):
        drive.install(drive.bundle("one"))
    assert status(drive).version == ""
    service.uninstall(drive.site())
    assert script.read_text() == before
    (other / ".csd-emu").unlink()
    drive.install(drive.bundle("one"))
    assert f"-C {drive.root} boot" in script.read_text()
    service.uninstall(drive.site())
    assert not script.exists()


def test_a_start_that_no_boot_would_repeat_is_a_failure(drive: LocalDrive) -> None:
    (drive.system / "etc/init.d").mkdir(parents=True)
    drive.have_tool("update-rc.d", "exit 1")
    drive.install(drive.bundle("one"))
    with pytest.raises(DriveUnfit, match="cannot be enabled, so a boot would not start it"):
        service.start(drive.site())
    drive.have_tool("update-rc.d")
    assert service.start(drive.site()).what.endswith("started")
    assert (drive.system / "update-rc.d.calls").read_text().splitlines()[-1] == "csd-agent defaults"


def test_a_unit_is_enabled_and_started_or_the_start_fails(tmp_path: Path) -> None:
    drive = LocalDrive(tmp_path)
    (drive.system / "run/systemd/system").mkdir(parents=True)
    drive.have_tool(
        "systemctl", "case $1 in enable) exit 1 ;; show) echo NRestarts=0 ;; is-active) echo active ;; esac"
    )
    drive.install(drive.bundle("one"))
    unit = drive.system / "etc/systemd/system/csd-agent.service"
    assert f"ReadWritePaths={drive.root}\n" in unit.read_text()
    health_unit = unit.with_name("csd-agent-health.service")
    assert f"ReadWritePaths={drive.root}/health\n" in health_unit.read_text()
    assert f"Wants={health_unit.name}\n" in unit.read_text()
    with pytest.raises(DriveUnfit, match=r"systemctl enable csd-agent\.service failed, so a boot would not start it"):
        service.start(drive.site())
    drive.have_tool("systemctl", "case $1 in show) echo NRestarts=3 ;; is-active) echo active ;; esac")
    with pytest.raises(InstallFailed, match="the agent ended"):
        service.start(drive.site())
    assert service.status(drive.site()).result is VerbResult.FAILED
    calls = (drive.system / "systemctl.calls").read_text()
    assert "start csd-agent.service" in calls
    service.uninstall(drive.site())
    assert not unit.exists()
    assert not health_unit.exists()


def test_what_starts_without_an_init_says_that_no_boot_starts_it(drive: LocalDrive) -> None:
    drive.install(drive.bundle("one"))
    assert "nothing starts it after a boot of this drive" in service.start(drive.site()).what


def test_users_are_written_beside_the_file_and_taken_out_again(tmp_path: Path) -> None:
    """The last line of passwd has no end, and its mode is unusual."""
    drive = LocalDrive(tmp_path, "dash")  # busybox has an id of its own
    etc = drive.system / "etc"
    etc.mkdir()
    before = {"passwd": "root:x:0:0::/:/bin/sh\nlast:x:990:990::/:/bin/sh", "group": "root:x:0:\nother:x:989:\n"}
    for name, text in before.items():
        (etc / name).write_text(text)
        (etc / name).chmod(0o640)
        (tmp_path / name).hardlink_to(etc / name)  # or the file's number would be free for the next one
    inodes = {name: (etc / name).stat().st_ino for name in before}
    drive.have_user_tool("newcomer")
    installer = replace(drive.installer(drive.bundle("one")), user="newcomer")
    installer(drive.site())
    assert (etc / "passwd").read_text().splitlines()[1:] == [
        "last:x:990:990::/:/bin/sh",
        f"newcomer:x:988:988:csd-emu agent:{drive.root}:/bin/false",
    ]
    assert "newcomer:x:988:" in (etc / "group").read_text()
    service.uninstall(drive.site())
    for name, text in before.items():
        assert (etc / name).read_text().rstrip() == text.rstrip()
        assert stat.S_IMODE((etc / name).stat().st_mode) == 0o640
        assert (etc / name).stat().st_ino != inodes[name]
    assert {path.name for path in etc.iterdir()} == {"passwd", "group"}


def test_an_agent_is_started_watched_and_stopped(drive: LocalDrive) -> None:
    drive.install(drive.bundle("one"))
    assert service.status(drive.site()).what == "stopped"
    service.start(drive.site())
    found = wait_for(drive, "waiting")
    assert found.supervisor == "process"
    assert service.start(drive.site()).result is VerbResult.UNCHANGED
    os.kill(found.pid, 9)
    again = wait_for(drive, "waiting", other_than=found.pid)
    assert again.running == again.version
    assert f"serving {again.version}" in service.prepare_logs(plan(lines=5))(drive.site()).facts["text"]
    assert service.stop(drive.site()).result is VerbResult.DONE
    assert status(drive).state == "stopped"
    assert not Path(f"/proc/{again.pid}").exists()
    assert service.stop(drive.site()).result is VerbResult.UNCHANGED


def test_an_upgrade_restarts_and_a_rollback_goes_back(drive: LocalDrive) -> None:
    old, new = drive.bundle("old"), drive.bundle("new")
    drive.install(old)
    service.start(drive.site())
    wait_for(drive, "waiting")
    assert Upgrade(drive.installer(new))(drive.site()).what == f"upgraded from {old.id} to {new.id}"
    assert status(drive).running == new.id
    service.rollback(drive.site())
    assert wait_for(drive, "waiting", version=old.id).previous == new.id


def test_an_upgrade_whose_agent_does_not_run_goes_back(drive: LocalDrive) -> None:
    old, new = drive.bundle("old"), drive.bundle("new")
    drive.install(old)
    service.start(drive.site())
    wait_for(drive, "waiting")

    def break_it(command: str) -> None:
        if command.endswith(" restart") and status(drive).version == new.id:
            (drive.root / "versions" / new.id / "agent/broken").touch()

    with pytest.raises(InstallFailed, match=f"version {new.id} did not run .the agent ended.* went back to {old.id}$"):
        Upgrade(drive.installer(new))(drive.site(break_it))
    assert wait_for(drive, "waiting", version=old.id)


def test_an_upgrade_after_one_that_was_cut_before_its_restart_ends_it(drive: LocalDrive) -> None:
    old, new = drive.bundle("old"), drive.bundle("new")
    drive.install(old)
    service.start(drive.site())
    drive.install(new)
    assert Upgrade(drive.installer(new))(drive.site()).what == f"upgraded from {old.id} to {new.id}"
    assert status(drive).running == new.id


def test_going_back_is_to_what_ran_and_names_it(drive: LocalDrive) -> None:
    bundles = running, _, bad = [drive.bundle(name) for name in ("running", "between", "bad")]
    drive.install(running)
    service.start(drive.site())
    for bundle in bundles[1:]:
        drive.install(bundle)
    (drive.root / "versions" / bad.id / "agent/broken").touch()
    with pytest.raises(InstallFailed, match=f"version {bad.id} did not run .* went back to {running.id}$"):
        Upgrade(drive.installer(bad))(drive.site())
    assert status(drive).running == running.id


def test_an_agent_that_ends_at_once_is_a_failure_of_start_status_and_rollback(drive: LocalDrive) -> None:
    old, new = drive.bundle("old"), drive.bundle("new")
    for bundle in (old, new):
        drive.install(bundle)
        (drive.root / "versions" / bundle.id / "agent/broken").touch()
    with pytest.raises(InstallFailed, match="the agent ended; see csd-emu deploy logs"):
        service.start(drive.site())
    assert service.status(drive.site()).result is VerbResult.FAILED
    with pytest.raises(InstallFailed, match="the agent ended"):
        service.rollback(drive.site())
    (drive.root / "versions" / old.id / "agent/broken").unlink()
    assert service.start(drive.site()).result is VerbResult.DONE
    assert service.status(drive.site()).what == "waiting"


def test_an_upgrade_whose_agent_says_that_it_failed_goes_back_unless_the_one_before_said_so(drive: LocalDrive) -> None:
    old, new, newer = (drive.bundle(name) for name in ("old", "new", "newer"))
    drive.install(old)
    service.start(drive.site())
    (drive.root / "ill").write_text(new.id)
    with pytest.raises(InstallFailed, match=f"did not run .failed: ill on purpose.; went back to {old.id}$"):
        Upgrade(drive.installer(new))(drive.site())
    (drive.root / "ill").write_text(old.id)
    service.stop(drive.site())
    with pytest.raises(InstallFailed, match="failed: ill on purpose"):
        service.start(drive.site())
    (drive.root / "ill").write_text(newer.id)
    assert Upgrade(drive.installer(newer))(drive.site()).result is VerbResult.DONE


def test_a_pipe_or_a_link_in_place_of_what_the_agent_says_stops_nobody(drive: LocalDrive) -> None:
    drive.install(drive.bundle("one"))
    os.mkfifo(drive.root / "state/agent")
    assert service.status(drive.site()).what == "stopped"
    assert service.stop(drive.site()).result is VerbResult.UNCHANGED
    (drive.root / "state/agent").unlink()
    (drive.root / "state/agent").symlink_to("/dev/zero")
    assert service.uninstall(drive.site()).result is VerbResult.DONE


@pytest.mark.parametrize("what", ["version.json", "c/three.py"])
def test_a_removal_that_is_cut_leaves_nothing_that_counts_as_complete(tmp_path: Path, what: str) -> None:
    drive = LocalDrive(tmp_path, "dash")  # busybox has an rm of its own
    bundles = [drive.bundle(name, packages=name) for name in ("one", "two", "three")]
    for bundle in bundles[:2]:
        drive.install(bundle)
    usual = dict(drive.environment)
    half = drive.folder / "half"
    half.mkdir()
    real = next(p for d in usual["PATH"].split(":") if os.access(p := f"{d}/rm", os.X_OK))
    (half / "rm").write_text(
        f'#!/bin/sh\nfor path; do if [ -f "$path/{what}" ]; then {real} "$path/{what}"; kill -9 0; fi; done\n'
        f'exec {real} "$@"\n'
    )
    (half / "rm").chmod(0o755)
    drive.environment["PATH"] = f"{half}:{usual['PATH']}"
    with pytest.raises(InstallFailed, match="switch failed"):
        drive.install(bundles[2])
    drive.environment = usual
    for bundle in (bundles[0], bundles[2]):
        drive.install(bundle)
        assert in_use(drive) == bundle.id
    assert not (drive.root / "incoming").exists()


def test_an_incomplete_version_in_place_is_no_obstacle(drive: LocalDrive) -> None:
    bundle = drive.bundle("one")
    (drive.root / "versions" / bundle.id).mkdir(parents=True)
    (drive.root / ".csd-emu").touch()
    drive.install(bundle)
    assert in_use(drive) == bundle.id


def test_two_do_not_work_on_one_drive_at_a_time(drive: LocalDrive) -> None:
    drive.install(drive.bundle("one"))
    second = drive.bundle("two")
    with held(drive.site()):
        with pytest.raises(DriveUnfit, match=rf"process {os.getpid()} on .* has been working on it for \d+ s; wait"):
            drive.install(second)
        with pytest.raises(DriveUnfit, match="has been working on it"):
            service.uninstall(drive.site())
        assert in_use(drive) != second.id
    assert drive.install(second).result is VerbResult.DONE
    assert not (drive.root / "lock").is_symlink()


@pytest.mark.parametrize("held_by", ["late", "another boot", "dead process", "another machine"])
def test_a_lock_goes_with_its_time_its_boot_and_its_process(drive: LocalDrive, held_by: str) -> None:
    drive.install(drive.bundle("one"))
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    now = int(float(Path("/proc/uptime").read_text().split()[0]))
    with subprocess.Popen(["true"]) as ended:
        pass
    lock = {
        "late": f"far:1:x:{boot}:{now - 100}:{now - 1}",
        "another boot": f"far:1:x:other-boot:{now}:{now + 900}",
        "dead process": f"{socket.gethostname()}:{ended.pid}:x:{boot}:{now}:{now + 900}",
        "another machine": f"far:1:x:{boot}:{now}:{now + 900}",
    }[held_by]
    (drive.root / "lock").symlink_to(lock)
    if held_by == "another machine":
        with pytest.raises(DriveUnfit, match=r"process 1 on far has been .*its lock ends in \d+ s"):
            drive.install(drive.bundle("two"))
        (drive.root / "lock").unlink()
    else:
        assert drive.install(drive.bundle("two")).result is VerbResult.DONE


def test_a_drive_that_is_lent_is_left_to_its_array_unless_forced(drive: LocalDrive) -> None:
    bundle = drive.bundle("one")
    drive.install(bundle)
    service.start(drive.site())
    (drive.root / "slot/lease").write_text('{"array":"alpha","device":"csd-00","run":"r","server":"here-1"}')

    for verb in ("stop", "rollback", "uninstall", "upgrade"):
        with pytest.raises(DriveUnfit, match=r"lent to array 'alpha' of here-1; .* or add --force"):
            prepare_verb(VERBS[verb], plan())(drive.site())
    assert status(drive).state == "waiting"
    assert prepare_verb(VERBS["stop"], plan(force=True))(drive.site()).result is VerbResult.DONE
    control = (drive.root / "bin/csd-agent").resolve()
    control.write_text("#!/bin/sh\nexit 1\n")
    assert prepare_verb(VERBS["uninstall"], plan())(drive.site()).result is VerbResult.DONE


@pytest.fixture
def mounts() -> Iterator[tuple[str, ...]]:
    """A shell in a mount namespace of its own, for as long as the test runs."""
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this process may not make a mount namespace")
    with subprocess.Popen(["unshare", "-m", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE) as keeper:
        assert keeper.stdout is not None
        keeper.stdout.readline()
        yield ("nsenter", "-t", str(keeper.pid), "-m", "dash")
        keeper.kill()


@pytest.mark.parametrize("place", ["versions/feed", "layers/feed", "incoming/feed"])
def test_what_is_mounted_in_what_is_removed_stays(tmp_path: Path, mounts: tuple[str, ...], place: str) -> None:
    """An agent that was killed, or a self-check that was cut, leaves folders of the drive in its root file system."""
    drive = LocalDrive(tmp_path, "dash")
    drive.shell = mounts
    drive.install(drive.bundle("one"))
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    for round_ in ("install", "uninstall"):
        target = drive.root / place / "rootfs/dev"
        site = drive.site()
        site.shell.check(f"mkdir -p {target} && mount -o bind {precious} {target}", site.deadline)
        if round_ == "install":
            drive.install(drive.bundle("two"))
            assert not (drive.root / place).exists()
        else:
            service.uninstall(drive.site())
            assert not drive.root.exists()
        assert (precious / "file").read_text() == "mine"


def test_what_is_put_into_the_slot_is_private_and_complete(drive: LocalDrive) -> None:
    drive.install(drive.bundle("one"))
    slot = drive.root / "slot"
    for name in ("identity.tar", "shard.tar"):
        (slot / f"{name}.new").write_text(name)
    site = drive.site()
    control = Control(site.shell, site.layout)
    control.do("put-slot", site.deadline)
    assert {path.name for path in slot.iterdir()} == {"identity.tar", "shard.tar", "console.log"}
    assert stat.S_IMODE((slot / "identity.tar").stat().st_mode) == 0o600
    control.do("clear-slot", site.deadline)
    assert list(slot.iterdir()) == []


def test_a_wrong_verb_is_one_line(drive: LocalDrive) -> None:
    drive.install(drive.bundle("one"))
    site = drive.site()
    with pytest.raises(DriveUnfit, match=r"^drive csd-01: [^\n]*: csd-agent: frobnicate: give start, stop[^\n]*$"):
        Control(site.shell, site.layout).do("frobnicate", site.deadline)


def wait_for(drive: LocalDrive, state: str, other_than: int = 0, version: str = "") -> AgentStatus:
    for _ in range(200):
        found = status(drive)
        if found.state == state and found.pid not in (0, other_than) and version in ("", found.running):
            return found
    raise AssertionError(f"the agent is {found}")


def health(drive: LocalDrive, answers: str, name: str = "smart.json", seconds: float = 10.0) -> Path:
    """Have an nvme-cli that `answers`, start the agent, and return the log's path once nvme was asked for both logs."""
    drive.have_tool("nvme", answers)
    drive.install(drive.bundle("one"))
    service.start(drive.site())
    calls, end = drive.system / "nvme.calls", time.monotonic() + seconds
    while not calls.exists() or "ocp" not in calls.read_text() or list(drive.root.glob("health/*.new")):
        assert time.monotonic() < end, "nvme was never asked"
        time.sleep(0.05)
    return drive.root / "health" / name


def watchers(drive: LocalDrive) -> list[str]:
    """Return the command lines of the root parts that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode())
    return [line for line in found if "watch-health" in line and str(drive.root) in line]


def test_health_logs_lie_where_the_agent_reads_them_for_as_long_as_it_is_wanted(drive: LocalDrive) -> None:
    (drive.system / "dev").mkdir()
    for name in ("nvme0", "nvme0n1"):
        (drive.system / "dev" / name).touch()
    path = health(drive, 'case "$1" in smart-log) echo "{}" ;; *) echo "no such log"; exit 1 ;; esac')
    assert path.read_text() == "{}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [each.name for each in path.parent.iterdir()] == ["smart.json"]
    asked = (drive.system / "nvme.calls").read_text().splitlines()
    controller = asked[0].split()[1]
    assert re.fullmatch(rf"{drive.system}/dev/nvme\d+", controller)
    assert asked == [f"smart-log {controller} -o json", f"ocp smart-add-log {controller} -o json"]
    assert len(watchers(drive)) == 1
    service.stop(drive.site())
    assert watchers(drive) == []
    service.uninstall(drive.site())
    assert not drive.root.exists()


def test_an_endless_answer_leaves_no_log(drive: LocalDrive) -> None:
    (drive.system / "dev").mkdir()
    (drive.system / "dev/nvme0").touch()
    path = health(drive, 'case "$1" in smart-log) exec cat /dev/zero ;; *) echo "{}" ;; esac', "ocp.json")
    assert [each.name for each in path.parent.iterdir()] == ["ocp.json"]


def test_a_drive_without_nvme_cli_has_no_root_part(drive: LocalDrive) -> None:
    drive.install(drive.bundle("one"))
    service.start(drive.site())
    wait_for(drive, "waiting")
    assert watchers(drive) == []
    assert list((drive.root / "health").iterdir()) == []
