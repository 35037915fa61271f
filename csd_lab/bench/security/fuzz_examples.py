"""An example of any type that msgspec knows: what a fuzzer begins with, so that it gets past the first check."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

_MOST_DEPTH = 12
# One of them fits what is asked of a text's length and form.
_TEXTS = ("csd-00", "|u1", "0" * 16, "0" * 40, "0" * 64, "x", "")


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
    fits = (each for each in _TEXTS if (info.min_length or 0) <= len(each) <= (info.max_length or len(each)))
    return next((each for each in fits if re.search(info.pattern or "", each)), _TEXTS[0])


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
