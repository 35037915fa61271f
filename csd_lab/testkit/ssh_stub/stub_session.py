"""One SSH connection to a stub drive: a login by key, and commands that run in a real `sh`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import paramiko

from csd_lab.testkit.ssh_stub.stub_drive import USER, StubDrive, StubFault

_CHUNK_BYTES = 2**15


class StubServer(Protocol):
    """What a connection asks of its server.

    Attributes:
        drive: that it stands for.
        client_key: that may log in.
        home: the folder of its commands.
        cuts_left: how many connections are still to be cut.
    """

    drive: StubDrive
    client_key: Any
    home: Path
    cuts_left: int


class StubSession(paramiko.ServerInterface):  # type: ignore[misc]  # paramiko has no types
    """What one connection may do: log in with the client's key, and run commands."""

    def __init__(self, server: StubServer, transport: Any) -> None:
        self._server, self._transport = server, transport
        self._received = 0
        self._threads: list[threading.Thread] = []

    def get_allowed_auths(self, username: str) -> str:
        """Offer keys only."""
        return "publickey"

    def check_auth_publickey(self, username: str, key: Any) -> int:
        """Let in who has the client's key."""
        right = (
            key.asbytes() == self._server.client_key.asbytes() and self._server.drive.fault is not StubFault.NO_LOGIN
        )
        return paramiko.AUTH_SUCCESSFUL if right else paramiko.AUTH_FAILED  # type: ignore[no-any-return]

    def check_channel_request(self, kind: str, chanid: int) -> int:
        """Allow sessions, and no forwarding."""
        known = kind == "session"
        return paramiko.OPEN_SUCCEEDED if known else paramiko.OPEN_FAILED_UNKNOWN_CHANNEL_TYPE  # type: ignore[no-any-return]

    def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
        """Begin a command, in a thread of its own."""
        thread = threading.Thread(target=self._run, args=(channel, command.decode()), daemon=True)
        self._threads.append(thread)
        thread.start()
        return True

    def join(self) -> None:
        """Wait for the end of all commands."""
        for thread in self._threads:
            thread.join()

    def _run(self, channel: Any, command: str) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            code = self._answer(channel, command)
            channel.send_exit_status(code)
        channel.close()

    def _answer(self, channel: Any, command: str) -> int:
        drive = self._server.drive
        if drive.fault is StubFault.NO_SHELL:
            list(self._input(channel))  # the client sends its end once it knows that the command has begun
            channel.sendall_stderr(b"exec: /bin/sh: not found\n")
            return 127
        if drive.answer is None:
            return self._run_shell(channel, command, self._input(channel))
        stdin = b"".join(self._input(channel))
        answer = drive.answer(command, stdin)
        if answer is None:
            return self._run_shell(channel, command, iter([stdin]))
        channel.sendall(answer.out.encode())
        channel.sendall_stderr(answer.err.encode())
        return answer.code

    def _input(self, channel: Any) -> Iterator[bytes]:
        """Yield what the client sends; the connection may be cut meanwhile."""
        while chunk := channel.recv(_CHUNK_BYTES):
            self._received += len(chunk)
            if self._server.cuts_left and self._received >= self._server.drive.cut_after_bytes:
                self._server.cuts_left -= 1
                self._transport.close()
                return
            yield chunk

    def _run_shell(self, channel: Any, command: str, source: Iterator[bytes]) -> int:
        home = self._server.home
        environment = {"PATH": f"{home}/bin:{os.environ.get('PATH', '/usr/bin:/bin')}", "HOME": str(home), "USER": USER}
        pipe = subprocess.PIPE
        with subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=home,
            env=environment,
            start_new_session=True,
        ) as process:
            pumps = [
                threading.Thread(target=_pump, args=(process.stdout, channel.sendall), daemon=True),
                threading.Thread(target=_pump, args=(process.stderr, channel.sendall_stderr), daemon=True),
            ]
            for pump in pumps:
                pump.start()
            self._feed(process, source)
            for pump in pumps:
                pump.join()
            return process.wait()

    def _feed(self, process: subprocess.Popen[bytes], source: Iterator[bytes]) -> None:
        """Give the command its input; one that ends without reading it is no error."""
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            for chunk in source:
                process.stdin.write(chunk)
                process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _pump(source: Any, send: Callable[[bytes], None]) -> None:
    """Pass on what a command writes, and throw it away once nobody listens any more."""
    listening = True
    while chunk := source.read1(_CHUNK_BYTES):
        if listening:
            try:
                send(chunk)
            except (OSError, EOFError, paramiko.SSHException):
                listening = False
