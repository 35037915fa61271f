"""Mutations of a fuzzer: of values by what a format's grammar allows, and of the bytes that they are written in."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import yaml

MOST_BYTES = 1 << 17
_NUMBERS = (0, -1, 1, 2, 7, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, 1e-300, 1e300, -1.5, 0.1, math.nan, math.inf, -math.inf)
_TEXTS: tuple[str, ...] = (
    "",
    "csd-00",
    "..",
    "../../x",
    "/dev/zero",
    "\0",
    "\x1b]0;x\7",
    "é" * 40,
    "a" * 5000,
    "os:system",
    "x.py:f",
)
_TEXTS += ("1", "null", "nan", "1 GiB", "-1 s", "1e999 W", "%s{0}", "<b>", "*", "~", "1:1:1", "0x" + "f" * 400)
_BYTES: tuple[bytes, ...] = (
    b"",
    b"\0",
    b"\xff" * 8,
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0" * 512,
    b"[" * 300,
    b"{" * 300,
    b"\n",
    b'"',
)
_BYTES += (b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"&a *a ", b"- " * 50)


def encoder(codec: str) -> Callable[[Any], bytes]:
    """Return what writes values as ``json``, ``lines`` (of JSON), ``msgpack``, ``yaml`` or ``bytes``."""
    return _ENCODERS[codec]


class Mutator:
    """Cases out of seeds, all decided by one generator."""

    def __init__(self, rng: random.Random) -> None:
        """Draw from `rng` alone."""
        self._rng = rng

    def case(self, codec: str, seeds: Sequence[Any], corpus: Sequence[bytes]) -> bytes:
        """Return one case: a seed changed by its grammar, or bytes of the `corpus` changed, or both."""
        rng = self._rng
        if corpus and rng.random() < 0.4:
            content = rng.choice(corpus)
            return self._bytes(content, corpus)[:MOST_BYTES]
        value = rng.choice(seeds)
        if codec == "bytes":
            return self._bytes(value, corpus)[:MOST_BYTES]
        value = copy.deepcopy(value)
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            value = self._value(value)
        try:
            content = encoder(codec)(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError, yaml.YAMLError):
            content = encoder(codec)(rng.choice(seeds))  # the format has no such value
        return (self._bytes(content, corpus) if rng.random() < 0.25 else content)[:MOST_BYTES]

    def _value(self, value: Any) -> Any:
        """Return the value with one of its parts replaced, doubled, removed or added."""
        rng = self._rng
        if isinstance(value, dict) and value and rng.random() < 0.85:
            key = rng.choice(list(value))
            action = rng.random()
            if action < 0.7:
                value[key] = self._value(value[key])
            elif action < 0.85:
                del value[key]
            else:
                value[rng.choice([*_TEXTS, key, 5])] = self._leaf()
            return value
        if isinstance(value, list) and value and rng.random() < 0.85:
            place = rng.randrange(len(value))
            action = rng.random()
            if action < 0.7:
                value[place] = self._value(value[place])
            elif action < 0.8:
                del value[place]
            else:
                value[place:place] = copy.deepcopy(value[place : place + 1]) * rng.choice((1, 2, 40))
            return value
        return self._leaf()

    def _leaf(self) -> Any:
        rng = self._rng
        kind = rng.randrange(8)
        if kind < 3:
            return rng.choice(_NUMBERS) + rng.choice((0, 0, 1, -1))
        if kind == 3:
            return rng.choice(_FLOATS)
        if kind == 4:
            return rng.choice(_TEXTS)
        if kind == 5:
            return rng.choice((None, True, False, [], {}, [[]], {"": {}}, b"", b"\0" * 64))
        nested: Any = rng.choice((0, "x"))
        for _ in range(rng.choice((1, 3, 40, 200))):
            nested = [nested] if kind == 6 else {"a": nested}
        return nested

    def _bytes(self, content: bytes, corpus: Sequence[bytes]) -> bytes:
        """Return the bytes with up to a few places changed, removed, repeated, or taken from another case."""
        rng, changed = self._rng, bytearray(content)
        for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
            place, length = rng.randint(0, len(changed)), rng.choice((1, 1, 2, 4, 8, 64, 512))
            match rng.randrange(7):
                case 0 if place < len(changed):
                    changed[place] ^= 1 << rng.randrange(8)
                case 1 if place < len(changed):
                    changed[place] = rng.randrange(256)
                case 2:
                    del changed[place : place + length]
                case 3:
                    changed[place:place] = changed[place : place + length] * rng.choice((1, 2, 50))
                case 4:
                    changed[place:place] = rng.choice(_BYTES)
                case 5:
                    other = rng.choice(corpus) if corpus else content
                    begin = rng.randint(0, len(other))
                    changed[place : place + length] = other[begin : begin + length]
                case _:
                    changed[place : place + 4] = rng.choice(_NUMBERS[:14]).to_bytes(8, "little", signed=True)[:4]
            del changed[MOST_BYTES:]
        return bytes(changed[: rng.randint(0, len(changed))] if rng.random() < 0.05 else changed)


def _lines(values: Any) -> bytes:
    return b"".join(msgspec.json.encode(each) + b"\n" for each in values)


def _yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")


_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "json": msgspec.json.encode,
    "msgpack": msgspec.msgpack.encode,
    "lines": _lines,
    "yaml": _yaml,
    "bytes": bytes,
}
