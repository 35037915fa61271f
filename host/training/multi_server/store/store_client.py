"""A server's end of the store, the key that lets it in, and the messages: a length of 4 bytes, then MessagePack.

The key is one file, on the store's machine and on every server, with a private key and its self-signed certificate,
PEM. Both ends of a connection show that certificate and accept no other (TLS 1.3), so whoever has the file is one of
the servers, and nobody else gets a byte into the store.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import stat
import tempfile
import threading
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from csd_emu.config.servers_file import StoreSection
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit, ProtocolError
from host.core.owned_files import writing

_MODE = 0o600


def make_key(path: Path) -> None:
    """Make the key file unless it is there; of two that do so at once one wins.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    from host.fleet.certificates import Authority  # a worker only reads

    if path.exists():
        return
    made = Authority("servers")
    with (
        writing(path, "name another place with store.key", "the store's key"),
        tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as file,  # mode 600
    ):
        file.write(made.private_pem + made.ca_pem)
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)


def key_context(path: Path, protocol: int) -> ssl.SSLContext:
    """Return TLS with the key; `protocol` is `ssl.PROTOCOL_TLS_SERVER` at the store, `PROTOCOL_TLS_CLIENT` at a server.

    Raises:
        ConfigurationError: the key is not there, is damaged, or others than its owner can read it.
    """
    _check(path)
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate is known itself, whatever address it is met at
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(path)
        context.load_verify_locations(path)
    except OSError as error:  # ssl's own errors are of this kind
        raise ConfigurationError(
            f"{path}: this key of the store is damaged ({error}); copy it from the store's machine again"
        ) from error
    return context


def _check(path: Path) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigurationError(
            f"{path}: the store's key cannot be read ({error.strerror}); csd-emu store makes it on its machine: "
            "copy it from there, mode 600"
        ) from error
    if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) & ~_MODE or found.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(
            f"{path}: others can read or change the store's key; it must be a file of yours, mode 600. If they had it, "
            "remove it, start csd-emu store, and copy the new one"
        )


T = TypeVar("T")
LENGTH_BYTES = 4
# 10,000 servers' names and marks take a third of it.
MAX_MESSAGE_BYTES = 1 << 20
MAX_KEY_CHARACTERS = 256


class StoreLost(EnvironmentUnfit):
    """Raised when the store does not answer, or no longer."""


class Add(msgspec.Struct, frozen=True, tag="add"):
    """Add to a counter, which begins at 0; it is answered with `StoreReply.number`."""

    key: str
    amount: int


class Write(msgspec.Struct, frozen=True, tag="write"):
    """Set a text, if `expected` is what is there (b"": nothing) or is None; answered with what is there then."""

    key: str
    value: bytes
    expected: bytes | None = None


class Read(msgspec.Struct, frozen=True, tag="read"):
    """Read texts; answered with one for each key, None where there is none."""

    keys: list[str]


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Remove all counters and texts whose keys begin with `prefix`."""

    prefix: str


class StoreReply(msgspec.Struct, frozen=True):
    """What comes back; `error` says why nothing was done."""

    values: list[bytes | None] = []
    number: int = 0
    error: str = ""


Request = Add | Write | Read | Forget
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_ANSWERS = msgspec.msgpack.Decoder(StoreReply)


class Book(Protocol):
    """A store's counters and texts."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter, which begins at 0, and return it."""

    def read(self, keys: list[str], /) -> list[bytes | None]:
        """Return the texts of these keys, None where there is none."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a text if it is the expected one, or if there is none and none is expected; return what is there then."""

    def forget(self, prefix: str, /) -> None:
        """Remove all whose keys begin with `prefix`."""


def frame(message: Request | StoreReply) -> bytes:
    """Return a message as it is sent.

    Raises:
        ProtocolError: it is too long.
    """
    content = msgspec.msgpack.encode(message)
    if len(content) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"store: a message of {len(content)} bytes is more than {MAX_MESSAGE_BYTES}")
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def message_bytes(length: bytes) -> int:
    """Return how long the message is whose length came.

    Raises:
        ProtocolError: longer than any may be.
    """
    size = int.from_bytes(length, "big")
    if size > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"store: a message of {size} bytes is announced, more than {MAX_MESSAGE_BYTES}")
    return size


def decoded(
    decoder: msgspec.msgpack.Decoder[T] | msgspec.json.Decoder[T], content: bytes, wrong: str, remedy: str = ""
) -> T:
    """Return what a decoder of msgspec's makes of what came from elsewhere; `wrong` says what that was not.

    Raises:
        ProtocolError: it makes nothing of it.
    """
    try:
        return decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"{wrong} ({error}){remedy}") from error


def read_request(content: bytes) -> Request:
    """Return what a server asks for.

    Raises:
        ProtocolError: it is no request.
    """
    return decoded(_REQUESTS, content, "store: what came is no request")


def read_answer(content: bytes) -> StoreReply:
    """Return what the store answers.

    Raises:
        ProtocolError: it is no answer.
    """
    return decoded(_ANSWERS, content, "store: what came is no answer")


PATIENCE_SECONDS = 10.0


class StoreClient:
    """Asks the store, one request after the other; several threads may share it."""

    def __init__(self, connection: socket.socket, place: str) -> None:
        """Take a connection on which both ends have shown the key."""
        self._connection, self._place, self._lock = connection, place, threading.Lock()

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter, which begins at 0, and return it."""
        return self._ask(Add(key, amount)).number

    def set(self, key: str, text: str | bytes, /) -> None:
        """Set a text; an empty one is none."""
        self._ask(Write(key, text.encode() if isinstance(text, str) else text))

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a text if it is the expected one, or if there is none and none is expected; return what is there then."""
        (value,) = self._ask(Write(key, desired.encode(), expected.encode())).values
        return value or b""

    def read(self, keys: list[str], /) -> list[bytes | None]:
        """Return the texts of these keys, None where there is none."""
        return self._ask(Read(keys)).values

    def forget(self, prefix: str, /) -> None:
        """Remove all whose keys begin with `prefix`."""
        self._ask(Forget(prefix))

    def limit(self, seconds: float | None) -> None:
        """Take the store for lost when an answer takes longer; None: wait, as for a link that will be mended."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _ask(self, request: Request) -> StoreReply:
        with self._lock:
            try:
                self._connection.sendall(frame(request))
                answer = read_answer(self._receive(message_bytes(self._receive(LENGTH_BYTES))))
            except (OSError, ProtocolError) as error:
                self._connection.close()  # what comes later must not answer another request
                raise StoreLost(f"store: {self._place} does not answer ({error}); start csd-emu store there") from error
        if answer.error:
            raise StoreLost(f"store: {self._place} refuses: {answer.error}")
        return answer

    def _receive(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            more = self._connection.recv(size - len(content))
            if not more:
                raise ConnectionError("the connection has ended")
            content += more
        return bytes(content)


def connect(section: StoreSection, patience_seconds: float = PATIENCE_SECONDS) -> StoreClient:
    """Return a client of the store.

    Raises:
        StoreLost: nobody answers there, or it has another key.
        ConfigurationError: this server's key cannot be used.
    """
    context = key_context(section.key_path, ssl.PROTOCOL_TLS_CLIENT)
    place = f"{section.address}:{section.port}"
    with contextlib.ExitStack() as undo:
        try:
            plain = socket.create_connection((str(section.address), section.port), patience_seconds)
            undo.callback(plain.close)
        except OSError as error:
            raise StoreLost(
                f"store: nobody answers at {place} ({error}); start csd-emu store there, and let the network through"
            ) from error
        try:
            secured = context.wrap_socket(plain)
            undo.callback(secured.close)
            secured.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = StoreClient(secured, place)
            client.read([])  # only an answer says that the other end takes our key
        except (OSError, StoreLost) as error:
            raise StoreLost(
                f"store: what answers at {place} is no csd-emu store with the key {section.key_path} ({error}); copy "
                "the key from the store's machine"
            ) from error
        undo.pop_all()
    client.limit(None)
    return client
