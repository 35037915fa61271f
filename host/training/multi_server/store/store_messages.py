"""Messages between a server and the store: a length of 4 bytes, then MessagePack."""

from __future__ import annotations

from typing import Protocol

import msgspec

from firmware_agent.common.errors import EnvironmentUnfit, ProtocolError

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


class Counters(Protocol):
    """A store's counters."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter, which begins at 0, and return it."""


class Texts(Protocol):
    """A store's texts."""

    def read(self, keys: list[str], /) -> list[bytes | None]:
        """Return the texts of these keys, None where there is none."""


class Book(Counters, Texts, Protocol):
    """A store's counters and texts."""

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


def read_request(content: bytes) -> Request:
    """Return what a server asks for.

    Raises:
        ProtocolError: it is no request.
    """
    try:
        return _REQUESTS.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"store: what came is no request ({error})") from error


def read_answer(content: bytes) -> StoreReply:
    """Return what the store answers.

    Raises:
        ProtocolError: it is no answer.
    """
    try:
        return _ANSWERS.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"store: what came is no answer ({error})") from error
