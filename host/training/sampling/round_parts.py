"""Steps of a federated round that a machine counts, as frames hold them. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from firmware_agent.common.frames.frame_fields import MAX_RAW_STEPS, MAX_SLICE_BYTES
from host.core.sampling.strata import Stratum

# Of the place of a record, in a frame.
_INDEX_BYTES = 4


class RoundPart(NamedTuple):
    """A step of a federated round that is counted: whose, of which stratum, and its place in the round."""

    device: str
    stratum: Stratum
    place: int


def list_round_beginning(parts: Sequence[RoundPart]) -> list[RoundPart]:
    """Return the steps with which a round begins that are not like the many."""
    return list(itertools.takewhile(lambda part: not part.stratum.is_steady, parts))


def split_into_frames(parts: Sequence[RoundPart], batch_size: int) -> Iterator[list[RoundPart]]:
    """Return as many of a round's counted steps as one frame holds, each time behind its beginning."""
    most = min(MAX_RAW_STEPS, MAX_SLICE_BYTES // (_INDEX_BYTES * batch_size))
    begin = list_round_beginning(parts)[: most - 1]
    yield list(parts[:most])
    for start in range(most, len(parts), most - len(begin)):
        yield [*begin, *parts[start : start + most - len(begin)]]
