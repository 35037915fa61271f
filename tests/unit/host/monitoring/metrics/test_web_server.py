"""The web server against clients that mean it ill: slow, many, boundless, or under another's name."""

import contextlib
import http.client
import os
import resource
import select
import socket
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.monitoring.exporter import Exporter
from host.monitoring.metrics import web_server
from host.monitoring.metrics.web_server import MOST_CONNECTIONS, MOST_OF_ONE, Connections
from tests.support.metrics import begun


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    with Exporter(begun(), None, names=["host:8080"]) as exporter:
        yield exporter


def port_of(exporter: Exporter) -> int:
    return int(exporter.address.rpartition(":")[2].partition("/")[0])


def ask(exporter: Exporter, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(exporter), timeout=20)
    try:
        connection.putrequest("GET", "/metrics", skip_host=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        assert b"csd_" not in answer.read() or answer.status == 200
        return answer.status
    finally:
        connection.close()


def test_under_a_strangers_name_nothing_is_told(exporter: Exporter) -> None:
    """A site that a user visits can have its own name lead to 127.0.0.1; it was told everything."""
    assert ask(exporter, Host="evil.example") == 421
    assert ask(exporter) == 421
    assert ask(exporter, Host=f"127.0.0.1:{port_of(exporter)}") == 200
    assert ask(exporter, Host="host:8080") == 200
    assert ask(exporter, Host="127.0.0.1", Origin="https://evil.example") == 403
    assert ask(exporter, Host="127.0.0.1", Origin="null") == 403
    assert ask(exporter, Host="127.0.0.1", Origin="http://127.0.0.1:3000") == 403
    assert ask(exporter, Host="127.0.0.1", Origin="http://127.0.0.1") == 200
    assert ask(exporter, Host="127.0.0.1", Origin="http://host:8080") == 200


def test_no_verb_changes_anything(exporter: Exporter, subtests: pytest.Subtests) -> None:
    for path in ["/", "/metrics", "/api/state", "/healthz"]:
        for verb in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"]:
            with subtests.test(verb=verb, path=path):
                connection = http.client.HTTPConnection("127.0.0.1", port_of(exporter), timeout=20)
                connection.request(verb, path)
                assert connection.getresponse().status == 405
                connection.close()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50_000 + b"\r\n",
    ],
)
def test_a_request_without_bound_is_refused_before_all_of_it_is_read(exporter: Exporter, request_bytes: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port_of(exporter)), 20) as client:
        answer = b""
        try:
            client.sendall(request_bytes)
            while block := client.recv(1 << 16):
                answer += block
        except OSError:
            pass  # it is closed while we send
    assert b"200 OK" not in answer
    assert ask(exporter, Host="127.0.0.1") == 200


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(peers=st.lists(st.integers(0, 5), max_size=400))
def test_newcomers_have_a_place_and_nobody_has_all(peers: list[int]) -> None:
    """Ended connections are forgotten at once, as their threads do."""
    held: dict[object, str] = {}

    def end(connection: object) -> None:
        ended.append(connection)

    ended: list[object] = []
    connections = Connections(end, Clock())
    for peer in map(str, peers):
        new = object()
        assert connections.admit(new, peer)
        held[new] = peer
        while ended:
            gone = ended.pop()
            del held[gone]
            connections.forget(gone)
        assert new in held
        assert len(held) <= MOST_CONNECTIONS
        assert list(held.values()).count(peer) <= MOST_OF_ONE


def test_threads_that_do_not_return_are_bounded_too() -> None:
    connections = Connections(lambda _: None, Clock())
    assert sum(connections.admit(object(), "127.0.0.1") for _ in range(1000)) == 2 * MOST_CONNECTIONS


def test_a_connection_has_so_long_for_its_head_and_its_answer() -> None:
    ended: list[Any] = []
    clock = Clock()
    connections = Connections(ended.append, clock)
    for name in ("slow", "asks", "gone"):
        connections.admit(name, "127.0.0.1")
    connections.note_request("asks")
    connections.forget("gone")
    clock.now = web_server.HEAD_SECONDS + 0.1
    connections.end_slow()
    connections.end_slow()
    assert ended == ["slow"]
    clock.now = web_server.ANSWER_SECONDS + 0.1
    connections.end_slow()
    assert ended == ["slow", "asks"]


@pytest.mark.slow
def test_idle_connections_keep_neither_threads_nor_the_next_client(exporter: Exporter) -> None:
    """1,100 of them took as many threads and files as there are."""
    threads = threading.active_count()
    idle = [socket.create_connection(("127.0.0.1", port_of(exporter)), 20) for _ in range(500)]
    try:
        assert ask(exporter, Host="127.0.0.1") == 200
        assert threading.active_count() - threads <= 2 * MOST_CONNECTIONS + 1
    finally:
        for each in idle:
            each.close()


def test_a_client_that_sends_a_byte_now_and_then_is_let_go(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "HEAD_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", port_of(exporter)), 20) as client:
        client.settimeout(0.05)
        gone = False
        for _ in range(400):
            try:
                client.send(b"G")
                gone = client.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                gone = True
            if gone:
                break
        assert gone


def test_without_a_free_file_it_turns_clients_away_and_lives(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "HEAD_SECONDS", 60.0)  # the first client asks at last
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    with socket.create_connection(("127.0.0.1", port_of(exporter)), 20) as client, contextlib.ExitStack() as stack:
        assert ask(exporter, Host="127.0.0.1") == 200  # so the one before is accepted
        # One would not do: whatever is closed elsewhere meanwhile, the answered one say, leaves a file for the next.
        more = [stack.enter_context(socket.socket()) for _ in range(20)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, before[1]))
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            for each in more:
                each.connect(("127.0.0.1", port_of(exporter)))
            turned_away, _, _ = select.select(more, [], [], 20)
            assert turned_away[0].recv(1) == b""
        finally:
            for file in held:
                os.close(file)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        client.sendall(b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        assert client.makefile("rb").readline() == b"HTTP/1.0 200 OK\r\n"
    with urllib.request.urlopen(exporter.address, timeout=20) as answer:
        assert answer.status == 200


def test_what_breaks_a_request_is_not_printed(exporter: Exporter, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(20):
        client = socket.create_connection(("127.0.0.1", port_of(exporter)), 20)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        client.close()  # with a reset
    assert ask(exporter, Host="127.0.0.1") == 200
    assert capfd.readouterr() == ("", "")
