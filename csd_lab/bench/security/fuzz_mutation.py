"""Cases of a fuzzer: examples of types, mutations of values, and of the bytes that they are written in."""

from __future__ import annotations

import copy
import math
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import yaml

_MOST_DEPTH = 12
# One of them fits what is asked of a text's length and form.
_FITTING_TEXTS = ("csd-00", "|u1", "0" * 16, "0" * 40, "0" * 64, "x", "")


def example_of(kind: Any) -> Any:
    """Return plain values (numbers, texts, lists, dicts) that can be read as a `kind`, with all fields given."""
    return _example(msgspec.inspect.type_info(kind), 0)


def examples_of(*kinds: Any) -> list[Any]:
    """Return an example of each of several types."""
    return [example_of(kind) for kind in kinds]


def _example(info: Any, depth: int) -> Any:
    """Return an example of what `msgspec.inspect` says of a type; None for one that has none."""
    make = _MAKERS.get(type(info).__name__.removesuffix("Type"))
    return None if make is None or depth > _MOST_DEPTH else make(info, depth + 1)


def _fields(info: Any, depth: int) -> dict[str, Any]:
    return {field.encode_name: _example(field.type, depth) for field in info.fields}


def _struct(info: Any, depth: int) -> Any:
    fields = _fields(info, depth)
    if info.array_like:
        return list(fields.values())
    return ({} if info.tag_field is None else {info.tag_field: info.tag}) | fields


def _union(info: Any, depth: int) -> Any:
    kinds = [each for each in info.types if not isinstance(each, msgspec.inspect.NoneType)]
    return _example(kinds[0], depth)


def _items(info: Any, depth: int) -> list[Any]:
    return [_example(info.item_type, depth)]


def _text(info: msgspec.inspect.StrType) -> str:
    fits = (each for each in _FITTING_TEXTS if (info.min_length or 0) <= len(each) <= (info.max_length or len(each)))
    return next((each for each in fits if re.search(info.pattern or "", each)), _FITTING_TEXTS[0])


_MAKERS: dict[str, Callable[[Any, int], Any]] = {
    "Struct": _struct,
    "Dataclass": _fields,
    "TypedDict": _fields,
    "NamedTuple": lambda info, depth: list(_fields(info, depth).values()),
    "Union": _union,
    "Metadata": lambda info, depth: _example(info.type, depth - 1),
    "Int": lambda info, _: max(1, info.ge or 0),
    "Float": lambda info, _: float(max(0.5, info.ge or 0)),
    "Bool": lambda *_: True,
    "Str": lambda info, _: _text(info),
    "Literal": lambda info, _: info.values[0],
    "Enum": lambda info, _: next(iter(info.cls)).value,
    "Dict": lambda info, depth: {_example(info.key_type, depth): _example(info.value_type, depth)},
    "Tuple": lambda info, depth: [_example(each, depth) for each in info.item_types],
    **dict.fromkeys(("Bytes", "ByteArray", "MemoryView"), lambda info, _: b"\0" * max(8, info.min_length or 0)),
    **dict.fromkeys(("List", "VarTuple", "Set", "FrozenSet"), _items),
}


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
        if not isinstance(value, dict | list) or not value or rng.random() >= 0.85:
            return self._leaf()
        is_dict = isinstance(value, dict)
        key: Any = rng.choice(list(value)) if is_dict else rng.randrange(len(value))
        action = rng.random()
        if action < 0.7:
            value[key] = self._value(value[key])
        elif action < (0.85 if is_dict else 0.8):
            del value[key]
        elif is_dict:
            value[rng.choice([*_TEXTS, key, 5])] = self._leaf()
        else:
            value[key:key] = copy.deepcopy(value[key : key + 1]) * rng.choice((1, 2, 40))
        return value

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
