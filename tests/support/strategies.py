"""Hypothesis strategies: frames by the types that the wire declares, arrays as models have them."""

import msgspec.inspect as inspect
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firmware_agent.common.frames.frame_fields import Frame
from firmware_agent.common.slices import Array

FRAMES: list[type[Frame]] = Frame.__subclasses__()
# Every dtype that the wire admits, in either byte order.
DTYPES = ["|b1", "|i1", "|u1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", ">f4", ">i8"]


def frames() -> st.SearchStrategy[Frame]:
    """Any frame whose fields are within their declared ranges."""
    return st.one_of([_values(inspect.type_info(kind)) for kind in FRAMES])


def arrays(max_side: int = 6) -> st.SearchStrategy[dict[str, Array]]:
    """Named arrays of any dtype and shape, empty and zero-dimensional ones included."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=max_side)
    array = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(np.dtype(dtype), shapes))
    return st.dictionaries(st.text("ab.0", min_size=1, max_size=4), array, min_size=1, max_size=4)


def _values(kind: inspect.Type) -> st.SearchStrategy:  # type: ignore[type-arg]
    """Values of a type as msgspec sees it, so that a new field of a frame is covered from its first day."""
    match kind:
        case inspect.StructType():
            fields = {field.name: _values(field.type) for field in kind.fields}
            return st.builds(kind.cls, **fields)
        case inspect.IntType():
            return st.integers(-(2**63) if kind.ge is None else kind.ge, 2**63 - 1 if kind.le is None else kind.le)
        case inspect.FloatType():
            low, high = kind.ge if kind.ge is not None else kind.gt, kind.le if kind.le is not None else kind.lt
            exclude = {"exclude_min": kind.gt is not None, "exclude_max": kind.lt is not None}
            return st.floats(low, high, allow_nan=False, **exclude)
        case inspect.StrType(pattern=str()):
            return st.from_regex(kind.pattern, fullmatch=True).filter(lambda text: "\n" not in text)
        case inspect.MemoryViewType():
            return st.binary(min_size=kind.min_length or 0, max_size=20).map(memoryview)
        case inspect.StrType() | inspect.BytesType():
            make = st.text if isinstance(kind, inspect.StrType) else st.binary
            return make(min_size=kind.min_length or 0, max_size=min(kind.max_length or 20, 20))
        case _:
            return _collections(kind)


def _collections(kind: inspect.Type) -> st.SearchStrategy:  # type: ignore[type-arg]
    match kind:
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.UnionType():
            return st.one_of([_values(member) for member in kind.types])
        case inspect.DictType():
            return st.dictionaries(_values(kind.key_type), _values(kind.value_type), max_size=3)
        case inspect.ListType():
            return st.lists(_values(kind.item_type), min_size=kind.min_length or 0, max_size=3)
        case inspect.TupleType():
            return st.tuples(*map(_values, kind.item_types))
        case inspect.VarTupleType():
            return st.lists(_values(kind.item_type), max_size=3).map(tuple)
    raise NotImplementedError(f"the wire has a new kind of field: {kind}; teach tests/support/strategies.py to draw it")
