"""Weights of the steps that the host announces, put into the model's memory slice by slice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from firmware_agent.common.clients.client_program import EXTRA, STATE
from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.session_frames import Slice, Tensors
from firmware_agent.common.slices import Array, Assembler, tensor_specs

ModelArrays = Callable[[], Mapping[str, Array]]
"""Returns what the host sends, by name, in the model's own memory where that is possible."""
# A step and the one that is announced before it is over.
_STEPS = 2


class WeightIntake:
    """The exchanges that are announced and not forgotten, by number."""

    def __init__(self, arrays: ModelArrays, extras: bool = False) -> None:
        """Begin with none; `arrays` are those of the model, and with `extras` others may come beside them."""
        self._arrays, self._extras = arrays, extras
        self._announced: dict[int, Assembler] = {}

    def take(self, frame: Tensors | Slice) -> None:
        """Take an announcement or a slice.

        Raises:
            ProtocolError: it does not belong there.
        """
        if isinstance(frame, Slice):
            self.exchange(frame.exchange).add(frame)
        else:
            self._announce(frame)

    def announced(self, number: int) -> bool:
        """Return whether an exchange was announced, and is not forgotten."""
        return number in self._announced

    def exchange(self, number: int) -> Assembler:
        """Return what has come of an exchange.

        Raises:
            ProtocolError: it was not announced.
        """
        found = self._announced.get(number)
        if found is None:
            raise ProtocolError(f"the host sent a slice or a task of exchange {number}, which it has not announced")
        return found

    def take_over(self, number: int) -> Mapping[str, Array]:
        """Return the arrays of an exchange, all of which has come, and forget it.

        Raises:
            ProtocolError: it was not announced, or is not whole.
        """
        arrays = self.exchange(number).arrays()
        del self._announced[number]
        return arrays

    def _announce(self, frame: Tensors) -> None:
        # A step that nobody returned is taken again; all that was announced before is over then.
        again = self._announced.get(frame.exchange)
        if (self._announced and frame.exchange < max(self._announced)) or (again is not None and not again.complete):
            raise ProtocolError(f"the host announced exchange {frame.exchange} after {max(self._announced)}")
        for old in sorted(self._announced)[: None if again is not None else 1 - _STEPS]:
            if not self._announced[old].complete:
                raise ProtocolError(
                    f"the host announced exchange {frame.exchange} while {self._announced[old].missing_bytes} bytes of "
                    f"{old} are missing; one step may be announced ahead"
                )
            del self._announced[old]
        arrays = self._arrays()
        expected = tensor_specs(arrays)
        if self._extras:
            expected += [spec for spec in frame.specs if spec.name.startswith((EXTRA, STATE))]
        self._announced[frame.exchange] = Assembler(frame.exchange, frame.specs, expected, arrays)
