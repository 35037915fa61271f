"""The way out of an emulated drive, with a socket in place of its virtio port: both hang up and read alike."""

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from firmware_agent import uplink
from firmware_agent.uplink import Cable, Carrier, open_port

SECONDS = 30.0
TLS_RECORD_BYTES = 5 + (16 << 10) + 256


@dataclass
class Way:
    """One connection that is carried: the agent's end, the host's, and the cable."""

    agent: socket.socket
    host: socket.socket
    carrier_file: Path
    link_messages: socket.socket
    served: threading.Thread

    def plug(self, plugged: bool) -> None:
        """Pull the cable, or put it in."""
        self.carrier_file.write_text(f"{int(plugged)}\n")
        self.link_messages.send(b"link changed")

    def ended(self) -> bool:
        """Whether the process waits for the next connection."""
        self.served.join(SECONDS)
        return not self.served.is_alive()


@contextlib.contextmanager
def way(folder: Path, connected: bool = True) -> Iterator[Way]:
    agent, accepted = socket.socketpair()
    port, host = socket.socketpair()
    messages, link_messages = socket.socketpair()
    for end in (port, messages):
        end.setblocking(False)
    for end in (agent, host):
        end.settimeout(SECONDS)
    if not connected:
        host.close()
    (folder / "carrier").write_text("1\n")
    carrier = Carrier(port.fileno(), Cable(messages, folder / "carrier"))

    def serve() -> None:
        with contextlib.suppress(ConnectionError):  # a socket that is closed with bytes unread, unlike a port, resets
            carrier.serve(accepted)

    served = threading.Thread(target=serve, daemon=True)
    served.start()
    with contextlib.ExitStack() as stack:
        for end in (agent, accepted, port, host, messages, link_messages):
            stack.callback(end.close)
        yield Way(agent, host, folder / "carrier", link_messages, served)
        agent.close()
        host.close()
        link_messages.send(b"end")
        served.join(SECONDS)
        assert not served.is_alive()


def take(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (block := end.recv(1 << 16)):
        data += block
    return data


@pytest.mark.parametrize("seed", range(3))
def test_both_directions_arrive_whole_at_once(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    up, down = (generator.randbytes(generator.randrange(1, 4 << 20)) for _ in range(2))
    with way(tmp_path) as line:
        senders = [
            threading.Thread(target=end.sendall, args=(data,)) for end, data in ((line.agent, up), (line.host, down))
        ]
        got: dict[str, bytes] = {}
        takers = [
            threading.Thread(target=lambda: got.__setitem__("up", take(line.host, len(up)))),
            threading.Thread(target=lambda: got.__setitem__("down", take(line.agent, len(down)))),
        ]
        for thread in (*senders, *takers):
            thread.start()
        for thread in (*senders, *takers):
            thread.join(SECONDS)
        assert got == {"up": up, "down": down}


def test_what_the_host_said_before_it_hung_up_still_arrives(tmp_path: Path) -> None:
    with way(tmp_path) as line:
        line.host.sendall(b"first")
        assert take(line.agent, 5) == b"first"  # it is carried: a host that had gone before would be none
        line.host.sendall(b"last words")
        line.host.close()
        assert take(line.agent, 1 << 20) == b"last words"
        assert line.ended()


def test_without_a_host_the_agent_is_turned_away(tmp_path: Path) -> None:
    with way(tmp_path, connected=False) as line:
        assert line.agent.recv(1) == b""
        assert line.ended()


def test_an_agent_that_hangs_up_is_made_known_by_what_no_tls_record_can_swallow(tmp_path: Path) -> None:
    with way(tmp_path) as line:
        line.agent.sendall(b"\x17\x03\x03")
        assert take(line.host, 3) == b"\x17\x03\x03"
        line.agent.close()
        noise = take(line.host, TLS_RECORD_BYTES)
        assert noise == b"\xff" * len(noise)
        line.host.close()
        assert line.ended()


def test_a_host_that_hangs_up_by_itself_hears_no_noise(tmp_path: Path) -> None:
    with way(tmp_path) as line:
        line.agent.sendall(b"bye")
        assert take(line.host, 3) == b"bye"
        line.agent.close()
        line.host.shutdown(socket.SHUT_WR)
        assert line.ended()
        line.host.setblocking(False)
        with pytest.raises(BlockingIOError):
            line.host.recv(1)


def test_an_agent_that_said_nothing_leaves_the_connection_as_it_is(tmp_path: Path) -> None:
    with way(tmp_path) as line:
        line.agent.close()
        assert line.ended()
        line.host.setblocking(False)
        with pytest.raises(BlockingIOError):
            line.host.recv(1)


def test_a_host_that_never_hangs_up_holds_up_the_next_connection_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(uplink, "_BREAK_SECONDS", 0.05)
    with way(tmp_path) as line:
        line.agent.sendall(b"x")
        assert take(line.host, 1) == b"x"
        line.agent.close()
        assert line.ended()


def test_while_the_cable_is_out_nothing_passes_and_nothing_is_lost(tmp_path: Path) -> None:
    with way(tmp_path) as line:
        line.agent.sendall(b"before")
        assert take(line.host, 6) == b"before"
        line.plug(False)
        line.host.settimeout(0.2)
        line.agent.sendall(b"a")  # it may pass before the message is read
        with contextlib.suppress(TimeoutError):
            line.host.recv(1)
        line.agent.sendall(b"while it was out")
        with pytest.raises(TimeoutError):
            line.host.recv(1)
        assert line.served.is_alive()
        line.plug(True)
        line.host.settimeout(SECONDS)
        assert take(line.host, 16).endswith(b"hile it was out")


def test_a_connection_that_was_given_up_before_it_was_taken_costs_the_host_nothing(tmp_path: Path) -> None:
    with way(tmp_path) as line:
        pass  # both ends go at once
    assert line.ended()


def test_the_port_is_found_by_its_name(tmp_path: Path) -> None:
    for number, name in enumerate(("org.example.other", "csd.host")):
        (tmp_path / "ports" / f"vport1p{number}").mkdir(parents=True)
        (tmp_path / "ports" / f"vport1p{number}" / "name").write_text(f"{name}\n")
        (tmp_path / f"vport1p{number}").write_text(name)
    with open(open_port("csd.host", tmp_path / "ports", tmp_path), "rb") as found:
        assert found.read() == b"csd.host"
