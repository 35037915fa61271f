"""Exchanges of tensors with the host within a round, which a client program asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from firmware_agent.clock import Stopwatch
from firmware_agent.common.clients.client_round import EXCHANGED, MOST_EXCHANGES
from firmware_agent.common.errors import ModelError, ProtocolError
from firmware_agent.common.frames.frame_fields import TensorSpec
from firmware_agent.common.frames.session_frames import Exchange, Slice, Tensors
from firmware_agent.common.slices import Array, Assembler, cut_slices, tensor_specs
from firmware_agent.common.wire import AnyFrame, encode


def describe(spec: TensorSpec) -> str:
    """Return dtype and shape as torch and NumPy write them."""
    return f"{np.dtype(spec.dtype).name}{list(spec.shape)}"


class ClientExchange:
    """Sends the tensors of a client program, and returns the host's answer, which waits for the other drives.

    Encoding is device time of this drive's; waiting is not.
    """

    def __init__(self, send: Callable[[bytes], None], receive: Callable[[], AnyFrame], stopwatch: Stopwatch) -> None:
        """Send and receive by these, once a round has begun."""
        self._send, self._receive, self._stopwatch = send, receive, stopwatch
        self._round, self._number, self._specs = 0, 0, list[TensorSpec]()

    def begin(self, number: int, specs: Sequence[TensorSpec]) -> None:
        """Begin round `number`; `specs` are the tensors of an exchange, as in the program's trial on the host."""
        self._round, self._number, self._specs = number, 0, list(specs)

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return what the host answers, by name.

        Raises:
            ModelError: these are other tensors than in the trial, or there are too many exchanges.
            DeviceLost: the session has ended.
            ProtocolError: the host sent something else.
        """
        self._number += 1
        named = {EXCHANGED + name: array for name, array in arrays.items()}
        specs = tensor_specs(named)
        if specs != self._specs or self._number > MOST_EXCHANGES:
            told, due = (
                ", ".join(f"{s.name.removeprefix(EXCHANGED)} {describe(s)}" for s in each) or "nothing"
                for each in (specs, self._specs)
            )
            raise ModelError(
                f"csd.exchange: number {self._number} of this round gave {told}; at most {MOST_EXCHANGES} may give "
                f"what one gave in the trial on the host: {due}"
            )
        frames = [Tensors(self._round, specs), *cut_slices(self._round, named), Exchange(self._round, self._number)]
        messages = [encode(frame) for frame in frames]
        self._stopwatch.lap("encode")
        for message in messages:
            self._send(message)
        answer = self._answer()
        self._stopwatch.mark()
        return answer

    def _answer(self) -> dict[str, Array]:
        assembler = Assembler(self._round, [])
        while not isinstance(frame := self._receive(), Exchange):
            if isinstance(frame, Tensors):
                assembler = Assembler(frame.exchange, frame.specs)
            elif isinstance(frame, Slice):
                assembler.add(frame)
            else:
                raise ProtocolError(f"the host sent {type(frame).__name__} where the answer to an exchange was due")
        return assembler.arrays()
