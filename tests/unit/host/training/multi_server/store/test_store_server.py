"""The servers' store: whoever has no key gets no byte into it, and what is in it is bounded and never code."""

from __future__ import annotations

import base64
import contextlib
import os
import pickle  # noqa: TID251 - what is sent is an attack
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from csd_emu.config.servers_file import StoreSection
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit, ProtocolError
from host.training.multi_server.store import store_server as store_module
from host.training.multi_server.store.store_client import (
    MAX_MESSAGE_BYTES,
    Add,
    Forget,
    Read,
    StoreClient,
    StoreLost,
    StoreReply,
    Write,
    connect,
    frame,
    key_context,
    make_key,
    message_bytes,
    read_answer,
    read_request,
)
from host.training.multi_server.store.store_server import Contents, Greetings, kept_store
from tests.support.examples import examples
from tests.support.server_processes import free_port


@pytest.fixture
def section(tmp_path: Path) -> StoreSection:
    return StoreSection(address=IPv4Address("127.0.0.1"), port=free_port(), key=str(tmp_path / "store.pem"))


@pytest.fixture
def kept(section: StoreSection) -> Iterator[StoreClient]:
    with kept_store(section) as client:
        yield client


def place(section: StoreSection) -> tuple[str, int]:
    return str(section.address), section.port


def stranger(section: StoreSection) -> socket.socket:
    return socket.create_connection(place(section), 10)


def test_servers_with_the_key_share_counters_and_texts(kept: StoreClient, section: StoreSection) -> None:
    other = connect(section)
    assert (kept.add("n", 2), other.add("n", 3), kept.add("n", -1)) == (2, 5, 4)
    assert kept.compare_set("t", "", "one") == b"one"
    assert other.compare_set("t", "", "two") == b"one"
    assert other.compare_set("t", "one", "two") == b"two"
    kept.set("u", b"\xff")
    assert other.read(["t", "none", "u"]) == [b"two", None, b"\xff"]
    kept.forget("t")
    assert other.read(["t", "u"]) == [None, b"\xff"]
    other.close()
    with pytest.raises(StoreLost, match="start csd-emu store there"):
        other.add("n", 1)
    assert kept.add("n", 0) == 4


class Planted:
    """What runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_planted_by_a_stranger_reaches_nobody(
    kept: StoreClient, section: StoreSection, tmp_path: Path
) -> None:
    """As the review did it: the text that torchrun's agents unpickled, written by anybody who reached the port."""
    planted = base64.b64encode(pickle.dumps(Planted(tmp_path / "ran"))).decode()
    with contextlib.suppress(DistError, RuntimeError):
        TCPStore(*place(section), timeout=timedelta(seconds=3)).set("torch.rendezvous.run", planted)
    with pytest.raises((DistError, RuntimeError)):
        TCPStore(*place(section), timeout=timedelta(seconds=1)).get("torch.rendezvous.run")
    assert kept.read(["torch.rendezvous.run", "/torch.rendezvous.run"]) == [None, None]
    assert not (tmp_path / "ran").exists()


def test_a_stranger_without_the_key_is_not_heard(kept: StoreClient, section: StoreSection, tmp_path: Path) -> None:
    make_key(tmp_path / "other.pem")
    foreign = section.model_copy(update={"key": str(tmp_path / "other.pem")})
    with pytest.raises(StoreLost, match="no csd-emu store with the key"):
        connect(foreign)
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.check_hostname, anonymous.verify_mode = False, ssl.CERT_NONE
    with stranger(section) as plain, contextlib.suppress(OSError), anonymous.wrap_socket(plain) as secured:
        secured.sendall(frame(Write("a", b"b")))
        assert not secured.recv(1)
    with stranger(section) as plain:
        plain.sendall(frame(Write("a", b"b")))
        with contextlib.suppress(ConnectionError):
            while plain.recv(4096):
                pass
    assert kept.read(["a"]) == [None]


def test_strangers_that_say_nothing_do_not_keep_servers_out(section: StoreSection) -> None:
    with kept_store(section) as kept, contextlib.ExitStack() as many:
        for _ in range(3 * store_module.MAX_GREETINGS_OF_ONE):
            many.enter_context(stranger(section))
        assert kept.add("n", 1) == 1  # who is in goes on
        connect(section).close()  # and whoever comes is let in at once


@given(peers=st.lists(st.integers(0, 9), max_size=400))
def test_when_all_places_are_taken_the_oldest_of_who_has_most_goes(peers: list[int]) -> None:
    ended: list[int] = []
    greetings = Greetings(ended.append)
    left: dict[int, int] = {}
    for number, peer in enumerate(peers):
        before = dict(left)
        greetings.admit(number, str(peer))
        left = {each: of for each, of in (left | {number: peer}).items() if each not in ended}
        counts = Counter(before.values())
        for each in before.keys() - left.keys():
            assert before[each] in (peer, counts.most_common(1)[0][0]) or counts[before[each]] == max(counts.values())
            assert each == min(other for other in before if before[other] == before[each])
        assert number in left
        assert len(left) <= store_module.MAX_GREETINGS
        assert max(Counter(left.values()).values()) <= store_module.MAX_GREETINGS_OF_ONE
    for each in left:
        greetings.forget(each)
    assert not greetings.open


def test_a_member_that_speaks_nonsense_is_let_go_alone(kept: StoreClient, section: StoreSection) -> None:
    for nonsense in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", frame(StoreReply())):
        context = key_context(section.key_path, ssl.PROTOCOL_TLS_CLIENT)
        with stranger(section) as plain, context.wrap_socket(plain) as secured:
            secured.sendall(nonsense)
            with contextlib.suppress(OSError):
                assert not secured.recv(1)
    assert kept.add("n", 1) == 1


def test_the_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path, old = tmp_path / "store.pem", os.umask(0)
    try:
        make_key(path)
    finally:
        os.umask(old)
    content = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    make_key(path)
    assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["store.pem"]
    with pytest.raises(EnvironmentUnfit, match=r"none/store\.pem: the store's key cannot be written"):
        make_key(tmp_path / "none" / "store.pem")


@pytest.mark.parametrize("harm", ["none", "readable", "damaged", "folder"])
def test_a_key_that_cannot_be_used_is_refused(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "store.pem"
    if harm == "readable":
        make_key(path)
        path.chmod(0o640)
    elif harm == "damaged":
        path.touch(0o600)
    elif harm == "folder":
        path.mkdir()
    with pytest.raises(ConfigurationError, match=r"store\.pem: .*(copy|remove)"):
        key_context(path, ssl.PROTOCOL_TLS_CLIENT)


def test_who_listens_there_already_is_told(kept: StoreClient, section: StoreSection) -> None:
    assert kept.add("n", 1) == 1
    with pytest.raises(EnvironmentUnfit, match="is a store there already"), kept_store(section):
        raise AssertionError("two stores on one port")


KEYS = st.sampled_from(["a", "ab", "b"])
REQUESTS = st.one_of(
    st.builds(Add, KEYS, st.integers(-(1 << 40), 1 << 40)),
    st.builds(Write, KEYS, st.binary(max_size=4), st.none() | st.binary(max_size=2)),
    st.builds(Read, st.lists(KEYS)),
    st.builds(Forget, st.sampled_from(["", "a", "ab", "c"])),
)


@given(st.lists(REQUESTS, max_size=40))
def test_the_contents_are_a_dictionary_of_texts_and_one_of_counters(requests: list[Any]) -> None:
    contents, texts, counts = Contents(), dict[str, bytes](), dict[str, int]()
    for request in requests:
        answer = contents.answer(read_request(frame(request)[4:]))
        if isinstance(request, Add):
            counts[request.key] = counts.get(request.key, 0) + request.amount
            assert answer.number == counts[request.key]
        elif isinstance(request, Write):
            if request.expected in (None, texts.get(request.key, b"")):
                texts[request.key] = request.value
            assert answer.values == [texts.get(request.key, b"")]
        elif isinstance(request, Read):
            assert answer.values == [texts.get(key) or None for key in request.keys]
        else:
            for entries in (texts, counts):
                for key in [key for key in entries if key.startswith(request.prefix)]:
                    del entries[key]


def test_what_a_member_writes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_KEYS", 3)
    monkeypatch.setattr(store_module, "MAX_BYTES", 10)
    contents = Contents()
    assert "at most" in contents.answer(Write("k" * 1000, b"")).error
    assert "full" in contents.answer(Write("a", b"x" * 11)).error
    assert contents.answer(Write("a", b"x" * 10)).error == ""
    assert "full" in contents.answer(Write("b", b"x")).error
    assert contents.answer(Write("a", b"x")).error == ""
    for key in "cd":
        assert contents.answer(Add(key, 1)).error == ""
    assert "full" in contents.answer(Add("e", 1)).error
    assert "overflow" in contents.answer(Add("c", 1 << 62)).error
    assert contents.answer(Add("c", 0)).number == 1


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_what_is_no_message_is_a_protocol_error(content: bytes) -> None:
    for read in (read_request, read_answer):
        with contextlib.suppress(ProtocolError):
            read(content)


@given(st.integers(0, (1 << 32) - 1))
def test_a_message_is_not_longer_than_it_may_be(size: int) -> None:
    length = size.to_bytes(4, "big")
    if size <= MAX_MESSAGE_BYTES:
        assert message_bytes(length) == size
    else:
        with pytest.raises(ProtocolError):
            message_bytes(length)


def test_a_message_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ProtocolError):
        frame(Write("a", bytes(MAX_MESSAGE_BYTES)))
