"""An example of any type that msgspec knows: what a fuzzer begins with, so that it gets past the first check."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_MOST_DEPTH = 6
# One of them fits what is asked of a text's length and form.
_TEXTS = ("csd-00", "|u1", "0" * 16, "0" * 40, "0" * 64, "x", "")


def example_of(kind: Any) -> Any:
    """Return plain values (numbers, texts, lists, dicts) that can be read as a `kind`, with all fields given."""
    return _example(msgspec.inspect.type_info(kind), 0)


def examples_of(*kinds: Any) -> list[Any]:
    """Return an example of each of several types."""
    return [example_of(kind) for kind in kinds]


def _example(info: msgspec.inspect.Type, depth: int) -> Any:
    inspect = msgspec.inspect
    match info:
        case inspect.StructType():
            return _struct(info, depth)
        case inspect.DataclassType() | inspect.TypedDictType():
            return {field.encode_name: _example(field.type, depth + 1) for field in info.fields}
        case inspect.NamedTupleType():
            return [_example(field.type, depth + 1) for field in info.fields]
        case inspect.UnionType():
            kinds = [each for each in info.types if not isinstance(each, inspect.NoneType)]
            return _example(kinds[0], depth) if kinds and depth < _MOST_DEPTH else None
        case inspect.IntType():
            return max(1, info.ge or 0)
        case inspect.FloatType():
            return float(max(0.5, info.ge or 0))
        case inspect.BoolType():
            return True
        case inspect.StrType():
            return _text(info)
        case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
            return b"\0" * max(8, info.min_length or 0)
        case inspect.LiteralType() | inspect.EnumType():
            values = info.values if isinstance(info, inspect.LiteralType) else [each.value for each in info.cls]
            return next(iter(values))
        case inspect.DictType():
            return {_example(info.key_type, depth + 1): _example(info.value_type, depth + 1)}
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            return [_example(info.item_type, depth + 1)] if depth < _MOST_DEPTH else []
        case inspect.TupleType():
            return [_example(each, depth + 1) for each in info.item_types]
        case _:
            return None


def _text(info: msgspec.inspect.StrType) -> str:
    fits = (each for each in _TEXTS if (info.min_length or 0) <= len(each) <= (info.max_length or len(each)))
    return next((each for each in fits if re.search(info.pattern or "", each)), _TEXTS[0])


def _struct(info: msgspec.inspect.StructType, depth: int) -> Any:
    fields = {field.encode_name: _example(field.type, depth + 1) for field in info.fields}
    if info.array_like:
        return list(fields.values())
    return ({} if info.tag_field is None else {info.tag_field: info.tag}) | fields
