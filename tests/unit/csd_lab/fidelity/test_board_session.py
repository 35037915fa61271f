import contextlib
import logging
import re
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest

from csd_emu.engines.remote.inventory import DriveEntry
from csd_emu.engines.remote.shell import CommandResult, OpenShell
from csd_emu.util.deadline import Deadline
from csd_lab.fidelity.board_session import BoardSession, find_board
from firmware_agent.common.errors import ConfigurationError, DriveUnfit, DriveUnreachable

FOLDER = "/tmp/csd-fidelity.Ab12Cd34"
TOOLS = "".join(f"tool={name}\n" for name in ("taskset", "tar", "head", "tail", "tr", "sed", "mktemp"))
FACTS = f"system=Linux\nmachine=aarch64\n{TOOLS}processor=2\nimplementer=0x41\npart=0xd03\nend=yes\n"
Answer = Callable[[str], str]


class FakeBoard:
    """A board that answers commands with what `answer` says of them; an empty answer is no output.

    Attributes:
        lines: all commands.
        sent: standard input of the last that had some.
    """

    def __init__(self, answer: Answer = lambda line: "") -> None:
        self._answer = answer
        self.lines: list[str] = []
        self.sent = b""
        self.opened = self.closed = 0

    def run(self, line: str, deadline: Deadline, stdin: bytes = b"", root: bool = False) -> CommandResult:
        self.lines.append(line)
        self.sent = stdin or self.sent
        assert 0 < deadline.seconds <= 3600
        if said := self._answer(line):
            return CommandResult(0, said, "")
        return CommandResult(0, FACTS if line == "/bin/sh -s" else FOLDER if "mktemp" in line else "", "")

    def check(self, line: str, deadline: Deadline, stdin: bytes = b"", root: bool = False) -> str:
        return self.run(line, deadline, stdin).out.rstrip()

    @contextlib.contextmanager
    def connect(self, drive: DriveEntry, deadline: Deadline) -> Iterator["FakeBoard"]:
        self.opened += 1
        yield self
        self.closed += 1

    @property
    def open_shell(self) -> OpenShell:
        return self.connect  # type: ignore[return-value]

    @property
    def removed(self) -> int:
        return sum(f"rm -rf {FOLDER}" in line for line in self.lines)


def session(board: FakeBoard) -> BoardSession:
    return BoardSession(find_board("pi@lab"), board.open_shell)


@pytest.mark.parametrize(
    ("target", "host", "user", "port"),
    [
        ("pi@lab", "lab", "pi", None),
        ("pi@10.0.0.2:2222", "10.0.0.2", "pi", 2222),
        ("lab", "lab", None, None),
        ("root@[fe80::1]:22", "fe80::1", "root", 22),
    ],
)
def test_a_board_is_named_as_openssh_names_it(target: str, host: str, user: str | None, port: int | None) -> None:
    board = find_board(target)
    assert (board.host, board.user, board.port, board.known_hosts, board.key) == (host, user, port, None, None)


@pytest.mark.parametrize(
    "target", ["", "@lab", "-oProxyCommand=x", "a b", "pi@lab:0", "pi@lab:99999", "pi@lab:x", "a;b"]
)
def test_what_is_no_board_is_bad_input(target: str) -> None:
    with pytest.raises(ConfigurationError, match="--on"):
        find_board(target)


def test_a_configuration_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--ssh-config"):
        find_board("pi@lab", tmp_path / "none")


def test_programs_run_in_a_folder_that_is_removed_in_the_end() -> None:
    ran = "sample before - - -\nout hello\nsample after - - -\nended 0\n"
    board = FakeBoard(lambda line: ran if "exec /bin/sh" in line else "")
    with session(board) as opened:
        opened.upload({"a/b": b"content"})
        with tarfile.open(fileobj=BytesIO(board.sent)) as archive:
            assert [(each.name, each.mode) for each in archive.getmembers()] == [("a/b", 0o700)]
        (run,) = opened.run("loops", "./x", 1, 60)
        assert run.output == "hello"
        assert f"cd {FOLDER} && exec /bin/sh board_run.sh 2 1 60 ./x" in board.lines
        assert board.removed == 0
    assert (board.removed, board.closed) == (1, 1)


@pytest.mark.parametrize("error", [DriveUnfit("x"), KeyboardInterrupt(), RuntimeError()])
def test_the_folder_is_removed_whatever_happens(error: BaseException) -> None:
    def fails(line: str) -> str:
        if "exec /bin/sh" in line:
            raise error
        return ""

    board = FakeBoard(fails)
    with pytest.raises(type(error)), session(board) as opened:
        opened.run("loops", "./x", 1, 60)
    assert board.removed == 1
    assert "kill" in board.lines[-1]


def test_it_is_removed_too_if_the_upload_of_the_first_file_fails() -> None:
    def fails(line: str) -> str:
        if "tar -x" in line:
            raise DriveUnfit("no space")
        return ""

    board = FakeBoard(fails)
    with pytest.raises(DriveUnfit, match="no space"), session(board):
        pass
    assert (board.removed, board.closed) == (1, 0)


def test_over_another_connection_if_the_first_broke() -> None:
    broken = [DriveUnreachable("broke"), DriveUnreachable("broke")]

    def breaks(line: str) -> str:
        if broken and ("rm -rf" in line or "exec /bin/sh" in line):
            raise broken.pop()
        return ""

    board = FakeBoard(breaks)
    with pytest.raises(DriveUnreachable), session(board) as opened:
        opened.run("loops", "./x", 1, 60)
    assert (board.opened, board.removed) == (2, 2)


def test_what_cannot_be_removed_is_said_and_hides_no_error(caplog: pytest.LogCaptureFixture) -> None:
    def breaks(line: str) -> str:
        if "rm -rf" in line:
            raise DriveUnreachable("broke")
        return ""

    with caplog.at_level(logging.WARNING), session(FakeBoard(breaks)):
        pass
    assert re.search(rf"{re.escape(FOLDER)} is left there \(broke\)", caplog.text)


@pytest.mark.parametrize(
    "folder", ["/", "/tmp", "/home/pi", "", "/tmp/../csd-fidelity.Ab12Cd34", f"{FOLDER}; rm -rf /", f"{FOLDER}\n/", "x"]
)
def test_a_folder_that_is_none_of_ours_is_neither_used_nor_removed(folder: str) -> None:
    board = FakeBoard(lambda line: (folder or "\n") if "mktemp" in line else "")
    with pytest.raises(DriveUnfit, match="no folder of csd-emu's"), session(board):
        pass
    assert not any("rm -rf" in line or "tar" in line for line in board.lines[2:])


def test_a_board_of_another_kind_is_asked_for_nothing_more() -> None:
    board = FakeBoard(lambda line: "system=Linux\nmachine=x86_64\nend=yes\n" if "sh -s" in line else "")
    with pytest.raises(DriveUnfit, match="x86_64"), session(board):
        pass
    assert board.lines == ["/bin/sh -s"]
