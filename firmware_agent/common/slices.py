"""Named arrays as slices, and back: the order of arrival does not matter, a repetition does no harm."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np
import numpy.typing as npt
import xxhash

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.frame_fields import (
    MAX_DIMENSIONS,
    MAX_EXCHANGE_BYTES,
    MAX_SLICE_BYTES,
    MAX_TENSORS,
    TensorSpec,
)
from firmware_agent.common.frames.session_frames import Slice

Array = npt.NDArray[np.generic]
Spans = list[tuple[int, int]]
"""Bytes [start, end) of a tensor, rising and apart."""

# Slices of one tensor, and of all in an exchange. At 8 KiB, the smallest that a tuner tries, they are 1 and 8 GiB.
MAX_TENSOR_SLICES, MAX_EXCHANGE_SLICES = 1 << 17, 1 << 20


def tensor_specs(arrays: Mapping[str, Array]) -> list[TensorSpec]:
    """Return name, dtype and shape of each array, in order.

    Raises:
        ProtocolError: there are more arrays or dimensions than the wire takes.
    """
    if len(arrays) > MAX_TENSORS or any(array.ndim > MAX_DIMENSIONS for array in arrays.values()):
        raise ProtocolError(
            f"an exchange takes {MAX_TENSORS} tensors of {MAX_DIMENSIONS} dimensions each; this model has "
            f"{len(arrays)}, of up to {max(array.ndim for array in arrays.values())}"
        )
    return [TensorSpec(name, np.dtype(a.dtype).newbyteorder("<").str, a.shape) for name, a in arrays.items()]


def spec_bytes(spec: TensorSpec) -> int:
    """Return the size of one tensor in bytes."""
    return prod(spec.shape) * np.dtype(spec.dtype).itemsize


def cut_slices(exchange: int, arrays: Mapping[str, Array], slice_bytes: int = MAX_SLICE_BYTES) -> Iterator[Slice]:
    """Yield the arrays' bytes as slices of at most `slice_bytes`, tensor by tensor, offset rising.

    An empty tensor has no slice. The slices are views: whoever changes an array before its slices are encoded changes
    them too, and their checksums are wrong then.
    """
    if not 1 <= slice_bytes <= MAX_SLICE_BYTES:
        raise ProtocolError(f"slices of {slice_bytes} bytes: the wire takes 1 to {MAX_SLICE_BYTES}")
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, dtype=np.dtype(array.dtype).newbyteorder("<"))
        flat = little.reshape(-1).view(np.uint8).data
        for offset in range(0, len(flat), slice_bytes):
            yield make_slice(exchange, name, offset, flat[offset : offset + slice_bytes])


def make_slice(exchange: int, tensor: str, offset: int, data: bytes | memoryview) -> Slice:
    """Return a slice with its checksum; `data` are not copied."""
    view = memoryview(data).toreadonly()
    return Slice(exchange, tensor, offset, slice_checksum(exchange, tensor, offset, view), view)


def slice_checksum(exchange: int, tensor: str, offset: int, data: bytes | memoryview) -> bytes:
    """Return the 8 bytes that guard a slice: XXH3 of the data, seeded by XXH3 of the place."""
    return xxhash.xxh3_64_digest(data, xxhash.xxh3_64_intdigest(f"{exchange} {offset} {tensor}".encode()))


class Assembler:
    """Collects the slices of one exchange until every byte of every tensor is there.

    Slices may come in any order, cut anywhere, and may be repeated; a slice that contradicts what came before is
    refused and changes nothing.
    """

    def __init__(
        self,
        exchange: int,
        specs: Sequence[TensorSpec],
        expected: Sequence[TensorSpec] | None = None,
        into: Mapping[str, Array] | None = None,
    ) -> None:
        """Prepare for the tensors in `specs`.

        Args:
            exchange: the number that every slice must carry.
            specs: the tensors announced by the peer.
            expected: if given, what this side knows the tensors must be.
            into: arrays whose memory takes the bytes as they come in; one that is missing, does not fit its spec, or
                does not lie in memory as on the wire gets memory of its own.

        Raises:
            ProtocolError: a name occurs twice, the whole is too large, or `specs` differs from `expected`.
        """
        if expected is not None and list(specs) != list(expected):
            raise ProtocolError(f"the tensors announced are not the model's: {_difference(specs, expected)}")
        if len({spec.name for spec in specs}) != len(specs):
            raise ProtocolError("an exchange announces one tensor twice")
        # As NumPy counts sizes, which has a dimension of 0 for 1.
        if sum(prod(filter(None, spec.shape)) * np.dtype(spec.dtype).itemsize for spec in specs) > MAX_EXCHANGE_BYTES:
            raise ProtocolError(f"an exchange announces more than {MAX_EXCHANGE_BYTES} bytes")
        self.exchange = exchange
        self._arrays = {spec.name: _array_for(spec, (into or {}).get(spec.name)) for spec in specs}
        self._bytes = {name: array.reshape(-1).view(np.uint8) for name, array in self._arrays.items()}
        self._spans: dict[str, Spans] = {spec.name: [] for spec in specs}
        self._slices = 0
        self._left = {spec.name: spec_bytes(spec) for spec in specs}
        self._missing = sum(self._left.values())

    @property
    def complete(self) -> bool:
        """Whether every byte has come in."""
        return self._missing == 0

    @property
    def missing_bytes(self) -> int:
        """How many bytes have not come in yet."""
        return self._missing

    def add(self, piece: Slice) -> bool:
        """Take one slice, and return whether it was news: a repetition changes nothing.

        Raises:
            ProtocolError: the slice is of another exchange, names no tensor of it, lies outside of the tensor, overlaps
                what came before without being its exact repetition, its checksum is wrong, or it is one too many.
        """
        target = self._target(piece)
        start, end = piece.offset, piece.offset + len(piece.data)
        data = np.frombuffer(piece.data, np.uint8)
        spans = self._spans[piece.tensor]
        place = bisect_left(spans, (start, end))
        if spans[place : place + 1] == [(start, end)]:
            if not np.array_equal(target[start:end], data):
                raise ProtocolError(f"{piece.tensor}+{start}: a repeated slice has other bytes")
            return False
        if any(s < end and start < e for s, e in spans[max(0, place - 1) : place + 1]):
            raise ProtocolError(f"{piece.tensor}+{start}: {len(piece.data)} bytes overlap an earlier slice")
        if len(spans) == MAX_TENSOR_SLICES or self._slices == MAX_EXCHANGE_SLICES:
            raise ProtocolError(
                f"{piece.tensor}+{start}: one slice more than the {MAX_TENSOR_SLICES} of a tensor or the "
                f"{MAX_EXCHANGE_SLICES} of an exchange; send larger ones"
            )
        target[start:end] = data
        spans.insert(place, (start, end))
        self._slices += 1
        self._left[piece.tensor] -= len(piece.data)
        self._missing -= len(piece.data)
        return True

    def arrays(self) -> dict[str, Array]:
        """Return the tensors, in the announced order; those of `into` that took the bytes are among them.

        Raises:
            ProtocolError: bytes are still missing.
        """
        if not self.complete:
            raise ProtocolError(f"an exchange ended with {self._missing} bytes missing")
        return dict(self._arrays)

    def has(self, tensor: str) -> bool:
        """Whether every byte of this tensor has come in; of one without a byte, from the beginning.

        Raises:
            ProtocolError: the exchange has no such tensor.
        """
        if tensor not in self._left:
            raise ProtocolError(f"this exchange does not have the tensor {tensor!r}")
        return self._left[tensor] == 0

    def partial(self, tensor: str) -> tuple[Array, Spans | None]:
        """Return one tensor as far as it has come in, and which of its bytes have; None if all.

        The other bytes are whatever lay in memory.

        Raises:
            ProtocolError: the exchange has no such tensor.
        """
        whole = self.has(tensor)  # which names a tensor that is not in the exchange
        return self._arrays[tensor], None if whole else _merged(self._spans[tensor])

    def _target(self, piece: Slice) -> npt.NDArray[np.uint8]:
        if piece.exchange != self.exchange:
            raise ProtocolError(f"a slice of exchange {piece.exchange} came in during exchange {self.exchange}")
        target = self._bytes.get(piece.tensor)
        if target is None:
            raise ProtocolError(f"a slice names the tensor {piece.tensor!r}, which this exchange does not have")
        if piece.offset + len(piece.data) > len(target):
            raise ProtocolError(f"{piece.tensor}+{piece.offset}: {len(piece.data)} bytes reach past its {len(target)}")
        if piece.checksum != slice_checksum(piece.exchange, piece.tensor, piece.offset, piece.data):
            raise ProtocolError(
                f"{piece.tensor}+{piece.offset}: {len(piece.data)} bytes do not match their checksum; "
                "they were damaged in memory or under way"
            )
        return target


def _array_for(spec: TensorSpec, offered: Array | None) -> Array:
    """Return `offered` if the tensor's bytes can go straight into its memory, else a new array."""
    dtype = np.dtype(spec.dtype)
    if offered is None or offered.dtype != dtype or offered.shape != spec.shape:
        return np.empty(spec.shape, dtype)
    return offered if offered.flags.c_contiguous and offered.flags.writeable else np.empty(spec.shape, dtype)


def _merged(spans: Spans) -> Spans:
    merged: Spans = []
    for start, end in spans:
        if merged and merged[-1][1] == start:
            start, _ = merged.pop()
        merged.append((start, end))
    return merged


def _difference(specs: Sequence[TensorSpec], expected: Sequence[TensorSpec]) -> str:
    for got, want in zip(specs, expected, strict=False):
        if got != want:
            return f"{got.name} {got.dtype}{got.shape} in place of {want.name} {want.dtype}{want.shape}"
    return f"{len(specs)} tensors in place of {len(expected)}"
