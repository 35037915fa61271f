"""Shells through real OpenSSH servers on loopback: host keys, keys and agents, jumps, copies."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from csd_emu.engines.remote.inventory import DriveEntry, Inventory
from csd_emu.engines.remote.openssh import find_route
from csd_emu.engines.remote.shell import BLOCK_BYTES, Shell, open_shell
from csd_emu.engines.remote.ssh_connect import Connected
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import ConfigurationError, DriveUnfit, DriveUnreachable, HostKeyRefused
from host.deploy.compatibility import SCRIPT, Facts, parse_facts
from host.deploy.verbs.probe import read_facts
from tests.support.drives import LOOPBACK, SSHD, Sshd, make_key

pytestmark = pytest.mark.skipif(not SSHD.exists(), reason="no sshd: scripts/install-system-packages --dev")
SECONDS = 60.0


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("keys") / "id")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd") / "drive").running() as server:
        server.let_in(key)
        yield server


@pytest.fixture
def known(tmp_path: Path, sshd: Sshd) -> Path:
    path = tmp_path / "known_hosts"
    path.write_text(sshd.known_line())
    return path


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def entry(sshd: Sshd, key: Path | None, known: Path, **more: Any) -> DriveEntry:
    section = {"host": LOOPBACK, "port": sshd.port, "known_hosts": str(known), "ssh_config": "none"}
    section |= {"key": None if key is None else str(key)} | more
    return Inventory.model_validate({"name": "lab", "drives": {"csd-00": section}}).list_drives()[0]


@contextlib.contextmanager
def opened(drive: DriveEntry) -> Iterator[Shell]:
    with open_shell(drive, Deadline(SECONDS)) as shell:
        yield shell


def hello(drive: DriveEntry) -> str:
    with opened(drive) as shell:
        return shell.check("echo hello", Deadline(SECONDS))


def fingerprint(sshd: Sshd) -> str:
    done = subprocess.run(
        ["ssh-keygen", "-l", "-f", sshd.folder / "host.pub"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()[1]


class TestHostKeys:
    def test_a_known_one_is_right_hashed_too(self, sshd: Sshd, key: Path, known: Path) -> None:
        assert hello(entry(sshd, key, known)) == "hello"
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
        assert LOOPBACK not in known.read_text()
        assert hello(entry(sshd, key, known)) == "hello"

    def test_an_unknown_one_is_refused_with_its_fingerprint_and_how_to_add_it(
        self, sshd: Sshd, key: Path, tmp_path: Path
    ) -> None:
        known = tmp_path / "none"
        with pytest.raises(HostKeyRefused, match="is not known") as error:
            hello(entry(sshd, key, known))
        assert fingerprint(sshd) in str(error.value)
        assert "\n" not in str(error.value)
        assert not known.exists()
        remedy = str(error.value).partition("if it is the same: ")[2]
        subprocess.run(remedy, shell=True, check=True, capture_output=True)
        assert hello(entry(sshd, key, known)) == "hello"

    def test_another_than_the_known_one_is_refused_even_if_new_ones_are_welcome(
        self, sshd: Sshd, key: Path, tmp_path: Path
    ) -> None:
        make_key(tmp_path / "other")
        known = tmp_path / "known"
        known.write_text(sshd.known_line().rsplit(" ", 1)[0] + " " + (tmp_path / "other.pub").read_text().split()[1])
        (tmp_path / "config").write_text("StrictHostKeyChecking no\n")
        for config in ("none", str(tmp_path / "config")):
            with pytest.raises(HostKeyRefused, match="is not the known one") as error:
                hello(entry(sshd, key, known, ssh_config=config))
            assert fingerprint(sshd) in str(error.value)
            assert "ssh-keygen -R" in str(error.value)

    def test_a_revoked_one_is_refused_though_it_is_known(self, sshd: Sshd, key: Path, known: Path) -> None:
        known.write_text(known.read_text() + "@revoked " + sshd.known_line(name="*"))
        with pytest.raises(HostKeyRefused, match="is revoked"):
            hello(entry(sshd, key, known))

    def test_a_damaged_line_is_named(self, sshd: Sshd, key: Path, known: Path) -> None:
        kind = sshd.known_line().split()
        known.write_text(f"# mine\n{kind[0]} {kind[1]} {kind[2][:-3]}\n")
        with pytest.raises(ConfigurationError, match=rf"^{known}: line 2 is damaged .*; correct or remove it"):
            hello(entry(sshd, key, known))

    @pytest.mark.parametrize("binary", [False, True])
    def test_revoked_host_keys_are_refused_though_known(
        self, sshd: Sshd, key: Path, known: Path, tmp_path: Path, binary: bool
    ) -> None:
        config, revoked, other = tmp_path / "config", tmp_path / "revoked keys", make_key(tmp_path / "other")
        config.write_text(f'RevokedHostKeys "{revoked}"\n')
        drive = entry(sshd, key, known, ssh_config=str(config))
        with pytest.raises(ConfigurationError, match="RevokedHostKeys cannot be read"):
            hello(drive)
        for listed, refused in ((Path(f"{other}.pub"), False), (sshd.folder / "host.pub", True)):
            revoked.write_text("# lost\n" + listed.read_text())
            if binary:
                subprocess.run(["ssh-keygen", "-q", "-k", "-f", revoked, listed], check=True)
            if not refused:
                assert hello(drive) == "hello"
                continue
            with pytest.raises(HostKeyRefused, match="is revoked in"):
                hello(drive)

    def test_a_dry_run_accepts_a_new_one_and_writes_nothing(self, sshd: Sshd, key: Path, tmp_path: Path) -> None:
        known, config = tmp_path / "new" / "known", tmp_path / "config"
        config.write_text("StrictHostKeyChecking accept-new\n")
        drive = entry(sshd, key, known, ssh_config=str(config))
        with open_shell(drive, Deadline(SECONDS), write_keys=False) as shell:
            assert shell.check("echo hello", Deadline(SECONDS)) == "hello"
        assert not known.parent.exists()

    def test_a_new_one_is_written_down_where_openssh_is_told_so(self, sshd: Sshd, key: Path, tmp_path: Path) -> None:
        known, config = tmp_path / "new" / "known", tmp_path / "config"
        config.write_text("StrictHostKeyChecking accept-new\n")
        assert hello(entry(sshd, key, known, ssh_config=str(config))) == "hello"
        assert known.read_text() == sshd.known_line()
        assert hello(entry(sshd, key, known)) == "hello"

    def test_the_kind_of_key_that_is_known_is_asked_for(self, tmp_path: Path, key: Path) -> None:
        """A server has several; paramiko alone would take the one that it likes best."""
        make_key(tmp_path / "rsa", kind="rsa")
        server = Sshd(tmp_path / "drive", f"HostKey {tmp_path}/rsa")
        shutil.copy(tmp_path / "rsa.pub", server.folder / "rsa.pub")
        server.let_in(key)
        known = tmp_path / "known"
        with server.running():
            for name in ("rsa", "host"):
                known.write_text(server.known_line(name))
                assert hello(entry(server, key, known)) == "hello"

    def test_an_alias_names_a_drive_at_the_end_of_a_tunnel(self, sshd: Sshd, key: Path, tmp_path: Path) -> None:
        known, config = tmp_path / "known", tmp_path / "config"
        known.write_text(sshd.known_line(name="drive-7"))
        config.write_text("HostKeyAlias drive-7\n")
        assert hello(entry(sshd, key, known, ssh_config=str(config))) == "hello"
        with pytest.raises(HostKeyRefused):
            hello(entry(sshd, key, known))


class TestLogin:
    def test_a_wrong_key_is_named_with_the_remedy(self, sshd: Sshd, known: Path, tmp_path: Path) -> None:
        with pytest.raises(DriveUnreachable, match=r"refused 1 key; add its public half"):
            hello(entry(sshd, make_key(tmp_path / "wrong"), known))

    def test_no_key_at_all(self, sshd: Sshd, known: Path, tmp_path: Path) -> None:
        with pytest.raises(DriveUnreachable, match=r"none was found; name a key"):
            hello(entry(sshd, tmp_path / "missing", known))

    def test_a_key_with_a_passphrase_comes_from_the_agent_only(
        self, sshd: Sshd, known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = make_key(tmp_path / "locked", passphrase="sesame")
        sshd.let_in(key)
        with pytest.raises(DriveUnreachable, match=f"ssh-add {key}"):
            hello(entry(sshd, key, known))
        with agent(tmp_path) as address:
            unlock(address, key, tmp_path)
            monkeypatch.setenv("SSH_AUTH_SOCK", address)
            assert hello(entry(sshd, key, known)) == "hello"
            # Without a key in the inventory the agent's are tried; IdentityAgent goes before the environment.
            assert hello(entry(sshd, None, known)) == "hello"
            monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "nobody"))
            (tmp_path / "config").write_text(f"IdentityAgent {address}\n")
            assert hello(entry(sshd, None, known, ssh_config=str(tmp_path / "config"))) == "hello"

    def test_openssh_s_own_configuration_says_how(self, sshd: Sshd, key: Path, known: Path, tmp_path: Path) -> None:
        (tmp_path / "more").write_text(
            f"Host drive-*\n  Port {sshd.port}\n  IdentityFile {key}\n  HostName {LOOPBACK}\n"
        )
        config = tmp_path / "config"
        config.write_text(f'Include {tmp_path}/more\nMatch exec "true"\n  UserKnownHostsFile {known}\n')
        content = {"name": "lab", "drives": {"csd-00": {"host": "drive-0", "ssh_config": str(config)}}}
        assert hello(Inventory.model_validate(content).list_drives()[0]) == "hello"

    def test_a_broken_configuration_is_named(self, sshd: Sshd, key: Path, known: Path, tmp_path: Path) -> None:
        (tmp_path / "config").write_text("Prot 22\n")
        with pytest.raises(ConfigurationError, match=r"csd-00: OpenSSH refuses .*Bad configuration option: prot"):
            hello(entry(sshd, key, known, ssh_config=str(tmp_path / "config")))


class TestJumps:
    def test_through_a_jump_host_whose_key_is_checked_too(
        self, sshd: Sshd, key: Path, known: Path, tmp_path: Path
    ) -> None:
        bastion = Sshd(tmp_path / "bastion")
        bastion.let_in(key)
        drive = entry(sshd, key, known, jump=f"{LOOPBACK}:{bastion.port}")
        with bastion.running():
            with pytest.raises(HostKeyRefused, match=f"{bastion.port} is not known"):
                hello(drive)
            known.write_text(known.read_text() + bastion.known_line())
            assert hello(drive) == "hello"
            known.write_text(bastion.known_line())
            with pytest.raises(HostKeyRefused, match=f"{sshd.port} is not known; .*log in once with ssh"):
                hello(drive)
        with pytest.raises(DriveUnreachable, match=f"{bastion.port} refuses connections"):
            hello(drive)

    def test_what_the_jump_host_cannot_reach_is_said_so(self, sshd: Sshd, key: Path, known: Path) -> None:
        drive = entry(sshd, key, known, jump=f"{LOOPBACK}:{sshd.port}").model_copy(update={"port": 1})
        with pytest.raises(DriveUnreachable, match="cannot be reached from the jump host"):
            hello(drive)

    def test_a_jump_hosts_own_jump_host_comes_first_and_a_circle_is_refused(self, tmp_path: Path) -> None:
        config = tmp_path / "config"
        jumps = {"inner": "outer", "a": "b", "b": "a"}
        config.write_text("".join(f"Host {host}\n  ProxyJump {jump}\n" for host, jump in jumps.items()))
        content = {"name": "lab", "drives": {"csd-00": {"jump": "inner,last", "ssh_config": str(config)}}}
        drive = Inventory.model_validate(content).list_drives()[0]
        assert [hop.host for hop in find_route(drive).hops] == ["outer", "inner", "last"]
        with pytest.raises(ConfigurationError, match="circle"):
            find_route(drive.model_copy(update={"jump": "a"}))

    def test_a_proxy_command_is_the_connection(self, sshd: Sshd, key: Path, known: Path, tmp_path: Path) -> None:
        helper = tmp_path / "connect.py"
        helper.write_text(
            "import os, socket, sys, threading\n"
            "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
            "def up():\n    while b := os.read(0, 65536): s.sendall(b)\n"
            "threading.Thread(target=up, daemon=True).start()\n"
            "while b := s.recv(65536): os.write(1, b)\n"
        )
        config = tmp_path / "config"
        config.write_text(f"ProxyCommand python3 {helper} %h %p\n")
        assert hello(entry(sshd, key, known, ssh_config=str(config))) == "hello"
        config.write_text("ProxyCommand echo nonsense\n")
        with pytest.raises(DriveUnreachable, match="did not answer as an SSH server"):
            hello(entry(sshd, key, known, ssh_config=str(config)))


@pytest.fixture
def drive(sshd: Sshd, key: Path, known: Path) -> DriveEntry:
    return entry(sshd, key, known)


@pytest.fixture
def shell(drive: DriveEntry) -> Iterator[Shell]:
    with opened(drive) as shell:
        yield shell


class TestCommands:
    def test_input_output_and_exit_code(self, shell: Shell) -> None:
        answer = shell.run("cat; echo oops >&2; exit 7", Deadline(SECONDS), "häß\n".encode())
        assert answer == (7, "häß\n", "oops\n")
        with pytest.raises(DriveUnfit, match=r"csd-00: `cat; echo oops >&2; exit 7` failed \(exit code 7\): oops;"):
            shell.check("cat; echo oops >&2; exit 7", Deadline(SECONDS))

    def test_much_input_and_much_output_do_not_wait_for_each_other(self, shell: Shell) -> None:
        answer = shell.run("tee /dev/stderr", Deadline(SECONDS), b"0123456789abcdef" * 400_000)
        assert (len(answer.out), len(answer.err)) == (6_400_000, 6_400_000)

    def test_a_command_that_reads_nothing_ends_at_once(self, shell: Shell) -> None:
        assert shell.run("exit 3", Deadline(SECONDS), bytes(8_000_000)).code == 3

    def test_too_much_output_is_refused(self, shell: Shell) -> None:
        with pytest.raises(DriveUnfit, match="wrote more than"):
            shell.run("cat /dev/zero", Deadline(SECONDS))

    def test_a_deadline_ends_the_wait_and_the_connection_goes_on(self, shell: Shell) -> None:
        with pytest.raises(DriveUnreachable, match="`exec sleep 60` did not end within 0"):
            shell.run("exec sleep 60", Deadline(0.3))
        assert shell.check("echo on", Deadline(SECONDS)) == "on"

    def test_a_signal_is_no_lost_connection_and_a_killed_server_is_one(self, drive: DriveEntry, shell: Shell) -> None:
        assert shell.run("kill -9 $$", Deadline(SECONDS)).code == -1
        with opened(drive) as doomed, pytest.raises(DriveUnreachable, match="broke"):
            doomed.run("kill -9 $PPID; sleep 60", Deadline(SECONDS))

    def test_a_link_that_falls_silent_is_given_up_before_tcp_would(self, drive: DriveEntry) -> None:
        with contextlib.closing(Connected("csd-00", find_route(drive), Deadline(SECONDS))) as connected:
            sock = connected.transport.sock
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000

    def test_several_threads_share_one_shell(self, shell: Shell) -> None:
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda n=n: found.append(shell.check(f"echo {n}", Deadline(SECONDS))))
            for n in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == ["0", "1", "2", "3", "4"]

    @pytest.mark.parametrize("there", [0, 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 17, 1_000_000])
    def test_a_copy_goes_on_where_a_cut_one_ended(self, shell: Shell, tmp_path: Path, there: int) -> None:
        source, target = tmp_path / "source", tmp_path / "a target's"
        source.write_bytes(os.urandom(1_000_000))
        target.write_bytes(source.read_bytes()[:there])
        seen: list[tuple[int, int]] = []
        shell.copy(source, PurePosixPath(target), Deadline(SECONDS), lambda *shown: seen.append(shown))
        assert target.read_bytes() == source.read_bytes()
        assert seen[0] == (there, 1_000_000)
        assert seen[-1] == (1_000_000, 1_000_000)
        sent = [done for done, _ in seen[1:]]
        assert sent == sorted(sent)
        assert not sent or sent[0] > there - BLOCK_BYTES

    def test_what_is_copied_is_for_its_owner_alone(self, shell: Shell, tmp_path: Path) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(b"records")
        shell.copy(source, PurePosixPath(target), Deadline(SECONDS), lambda there, whole: None)
        assert target.stat().st_mode & 0o777 == 0o600

    def test_what_is_longer_than_the_file_is_written_anew(self, shell: Shell, tmp_path: Path) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(b"new")
        target.write_bytes(b"an older and longer one")
        shell.copy(source, PurePosixPath(target), Deadline(SECONDS), lambda done, whole: None)
        assert target.read_bytes() == b"new"

    def test_a_full_disk_and_a_missing_folder_are_told_apart(self, shell: Shell, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(bytes(100_000))
        for target, words in (
            ("/dev/full", "no space left"),
            (f"{tmp_path}/no/x", "cannot be written: .*No such file"),
        ):
            with pytest.raises(DriveUnfit, match=words):
                shell.copy(source, PurePosixPath(target), Deadline(SECONDS), lambda done, whole: None)

    def test_a_file_that_does_not_fit_is_not_even_begun(self, shell: Shell, tmp_path: Path) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        with source.open("wb") as file:
            file.truncate(2**43)
        with pytest.raises(DriveUnfit, match=r"no space left for .*target: .* are needed and .* free"):
            shell.copy(source, PurePosixPath(target), Deadline(SECONDS), lambda done, whole: None)
        assert not target.exists()

    def test_the_probe_reads_this_machine_as_python_does(self, shell: Shell, drive: DriveEntry) -> None:
        facts = read_facts(shell, drive, Deadline(SECONDS))
        assert facts.machine == os.uname().machine
        assert facts.kernel_text == os.uname().release
        assert facts.cores == os.sysconf("SC_NPROCESSORS_ONLN")
        assert facts.memory_bytes == pytest.approx(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), rel=0.01)
        assert facts.uid == os.getuid()


class TestScript:
    """The probe's script in the shells that drives have."""

    @pytest.mark.parametrize("program", [["dash"], ["busybox", "sh"]], ids=["dash", "busybox"])
    def test_all_shells_find_the_same(self, program: list[str]) -> None:
        assert steady(probe_with(program)) == steady(probe_with(["sh"]))

    def test_without_most_tools_less_is_known_and_nothing_is_wrong(self, tmp_path: Path) -> None:
        tools = ("sh", "sed", "grep", "head", "uname", "id", "dirname", "df", "tr", "ls", "awk")
        for tool in tools:
            (tmp_path / tool).symlink_to(str(shutil.which(tool)))
        script = SCRIPT.read_text().replace("PATH=$PATH:/usr/local/bin:/usr/sbin:/sbin:/usr/bin:/bin", "PATH=$PATH")
        done = subprocess.run(
            ["sh", "-s", "--", "/opt/x", ""], input=script, env={"PATH": str(tmp_path)}, capture_output=True, text=True
        )
        few, all_of_them = parse_facts("csd-00", done.stdout), probe_with(["sh"])
        assert few.libc == all_of_them.libc, "the C library is found without getconf"
        assert few.libc_version == all_of_them.libc_version
        assert few.unix_seconds is None
        assert set(few.tools) == {"awk"}


def probe_with(shell: list[str]) -> Facts:
    done = subprocess.run(
        [*shell, "-s", "--", "/opt/x", ""], input=SCRIPT.read_text(), capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return parse_facts("csd-00", done.stdout)


def steady(facts: Facts) -> dict[str, Any]:
    moving = {"memory_free_bytes", "folder_free_bytes", "unix_seconds"}
    return {key: value for key, value in vars(facts).items() if key not in moving}


@contextlib.contextmanager
def agent(folder: Path) -> Iterator[str]:
    address = str(folder / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", address], stdout=subprocess.DEVNULL)
    deadline = Deadline(SECONDS)
    while not Path(address).exists():
        assert not deadline.expired
        assert process.poll() is None
    try:
        yield address
    finally:
        process.terminate()
        process.wait()


def unlock(address: str, key: Path, folder: Path) -> None:
    asked = folder / "askpass"
    asked.write_text("#!/bin/sh\necho sesame\n")
    asked.chmod(0o755)
    environment = os.environ | {"SSH_AUTH_SOCK": address, "SSH_ASKPASS": str(asked), "SSH_ASKPASS_REQUIRE": "force"}
    subprocess.run(["ssh-add", key], env=environment, check=True, capture_output=True, stdin=subprocess.DEVNULL)
