"""`csd-emu deploy` on stub drives, as a user runs it: the broken ones fail alone, and say what to do."""

import os
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from csd_emu.engines.remote.inventory import load_inventory
from csd_emu.engines.remote.shell import BLOCK_BYTES, CommandResult, open_shell
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.bench import deployments as deploy_wide
from csd_lab.bench.harness import Bench
from csd_lab.testkit.ssh_stub import StubDrive, StubDrives, StubFault
from firmware_agent.common.errors import DriveUnreachable
from tests.support.commands import Done

SECONDS = 120.0
FACTS = (
    "machine=aarch64\nkernel=6.1.0\ncores=4\ncpu_flags=fp asimd\nmemory_kib=6000000\nfolder_free_kib=9000000\n"
    "folder_mount=/\nfolder_options=rw\npython=/usr/bin/python3 3.11.2 64\nlibc=glibc {libc}\ninit=systemd 252\n"
    "root=sudo\ntool=tar\ntool=gzip\ntool=sha256sum\ntool=dd\ntool=awk\ntool=chroot\nend=yes\n"
)


def fitting(libc: str) -> Callable[[str, bytes], CommandResult | None]:
    """Answer the probe's script as a Newport would; all else goes to the shell."""
    return lambda command, stdin: CommandResult(0, FACTS.format(libc=libc), "") if "sh -s" in command else None


def test_probe_tells_the_form_of_each_drive_and_what_does_not_fit(tmp_path: Path, csd_emu: Callable[..., Done]) -> None:
    drives = [
        StubDrive("new", answer=fitting("2.36")),
        StubDrive("old", answer=fitting("2.27")),
        StubDrive("gone", StubFault.REFUSE),
        StubDrive("this"),
    ]
    with StubDrives(tmp_path, drives) as stubs:
        inventory = str(stubs.write_inventory())
        done = csd_emu("deploy", "probe", inventory, "--json", "--jobs", "3")
        assert done.code == 1
        found = {drive["drive"]: drive for drive in done.json("deploy")["drives"]}
        assert list(found) == ["new", "old", "gone", "this"]
        assert [found[name]["facts"].get("form") for name in found] == ["wheels", "rootfs", None, None]
        assert [found[name]["result"] for name in found] == ["done", "done", "failed", "failed"]
        assert "refuses connections" in found["gone"]["what"]
        assert found["new"]["facts"]["upload_bytes_per_second"] > 0
        assert found["new"]["facts"]["clock"] == "wall"
        assert stubs.peak_connections <= 3

        done = csd_emu("deploy", "probe", inventory, "--drives", "new,old")
        assert done.code == 0
        assert "2 drives: 2 done" in done.out
        done = csd_emu("deploy", "probe", inventory, "--drives", "new,gone")
        assert done.code == 1
        line = next(line for line in done.out.splitlines() if line.startswith("✗"))
        assert line.startswith("✗ gone: stub@127.0.0.1:")
        assert "check the port" in line
        done = csd_emu("deploy", "probe", inventory, "--drives", "neww")
        assert (done.code, done.out) == (2, "")
        assert "did you mean 'new'?" in done.err


def test_logs_are_printed_under_the_names_of_the_drives(tmp_path: Path, csd_emu: Callable[..., Done]) -> None:
    said = {"left": "one [bold]line[/]\nand \x1b[2Janother", "right": "its own"}

    def speaks(name: str) -> Callable[[str, bytes], CommandResult | None]:
        def answer(command: str, stdin: bytes) -> CommandResult | None:
            if "csd-agent logs 7" in command:
                return CommandResult(0, said[name] + "\n", "")
            return (
                CommandResult(0, '{"state":"running","version":"abc"}', "") if "csd-agent status" in command else None
            )

        return answer

    with StubDrives(tmp_path, [StubDrive(name, answer=speaks(name)) for name in said]) as stubs:
        done = csd_emu("deploy", "logs", str(stubs.write_inventory()), "--lines", "7")
    assert done.code == 0
    lines = done.out.splitlines()
    left, right = lines.index("left:"), lines.index("right:")
    assert lines[left + 1 : right] == ["one [bold]line[/]", "and \N{REPLACEMENT CHARACTER}[2Janother"]
    assert lines[right + 1] == "its own"


@pytest.mark.parametrize("option", ["--drives", "--groups"])
def test_an_option_that_names_nothing_is_not_all_drives(
    tmp_path: Path, csd_emu: Callable[..., Done], option: str
) -> None:
    (tmp_path / "lab.yaml").write_text("name: lab\ndrives: {csd-00: }\n")
    for nothing in ("", " , "):
        done = csd_emu("deploy", "stop", str(tmp_path / "lab.yaml"), option, nothing)
        assert (done.code, done.out) == (2, "")
        assert f"{option}: names nothing" in done.err


def test_the_verb_behind_the_inventory_is_understood_with_a_hint(tmp_path: Path, csd_emu: Callable[..., Done]) -> None:
    lab = tmp_path / "lab.yaml"
    lab.write_text("name: lab\ndrives: {csd-00: }\n")
    done = csd_emu("deploy", str(lab), "revoke", "csd-00", "--json")
    assert done.code == 0
    assert f"is now csd-emu deploy revoke {lab}" in done.err
    for arguments in ((str(lab), "prob"), ("prob", str(lab))):
        done = csd_emu("deploy", *arguments)
        assert (done.code, "there is no verb 'prob'; did you mean 'probe'?" in done.err) == (2, True)


def test_a_copy_that_was_cut_goes_on_and_sends_only_the_rest(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(2_000_000))
    with StubDrives(tmp_path, [StubDrive("csd-00", StubFault.CUT, cut_after_bytes=1_000_000)]) as stubs:
        drive = load_inventory(stubs.write_inventory()).list_drives()[0]
        target = stubs.home("csd-00") / "target"
        seen: list[int] = []

        def copy() -> None:
            with open_shell(drive, Deadline(SECONDS)) as shell:
                shell.copy(source, PurePosixPath(target), Deadline(SECONDS), lambda there, whole: seen.append(there))

        with pytest.raises(DriveUnreachable, match=r"broke( \(.+\))?; try again"):
            copy()
        there = target.stat().st_size
        assert 0 < there < 2_000_000
        seen.clear()
        copy()
        assert there <= seen[0] < 2_000_000  # the drive may have written on after the cut
        assert seen[1] > there - BLOCK_BYTES
        assert target.read_bytes() == source.read_bytes()


def test_many_at_a_time_and_each_way_to_be_broken_fails_alone(paths: Paths) -> None:
    report = deploy_wide.bench_deploy_wide(
        Bench("deploy_wide", paths, Silent(), 3), drives=14, jobs=4, connect_seconds=5
    )
    assert report.figures["peak_within_jobs"] == 1.0, report
    assert report.figures["failed_isolated"] == 1.0, report
    assert len(report.samples["failed"]) == 10


def test_the_bench_sees_a_broken_drive_that_is_taken_for_whole(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot fail would be none."""
    monkeypatch.setattr(deploy_wide, "BROKEN", deploy_wide.BROKEN | {StubFault.REFUSE: "words that nobody says"})
    report = deploy_wide.bench_deploy_wide(
        Bench("deploy_wide", paths, Silent(), 3), drives=10, jobs=10, connect_seconds=2
    )
    assert report.figures["failed_isolated"] == 0.0


def test_stub_drives_leave_no_thread_and_count_what_is_open_at_one_time(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with StubDrives(tmp_path, [StubDrive(f"csd-0{number}") for number in range(3)]) as stubs:
        drives = load_inventory(stubs.write_inventory()).list_drives()
        for drive in drives:
            with open_shell(drive, Deadline(SECONDS)) as shell:
                assert shell.check("pwd", Deadline(SECONDS)) == str(stubs.home(drive.name))
        assert stubs.peak_connections == 1
        with open_shell(drives[0], Deadline(SECONDS)), open_shell(drives[1], Deadline(SECONDS)):
            assert stubs.peak_connections == 2
    assert set(threading.enumerate()) <= before
