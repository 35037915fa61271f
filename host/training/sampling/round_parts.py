"""Steps of a federated round that a machine counts, as frames hold them. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from firmware_agent.common.frames.frame_fields import MAX_RAW_STEPS, MAX_SLICE_BYTES
from host.core.sampling.sampled_steps import SampledSteps
from host.core.sampling.strata import STAGES, Size, Stratum

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


def choose_parts(
    steps: SampledSteps,
    first: str,
    devices: Sequence[str],
    begun: Mapping[str, Sequence[Stratum]],
    check: bool,
    whole: bool = False,
) -> list[RoundPart]:
    """Return the steps to count: what strata lack, or one, behind the beginning of the `first` device's round.

    Without a `check` none if nothing is lacking; with one, unless it is `whole`, it may be the round's first alone.
    """
    parts = list_round_beginning([RoundPart(first, stratum, place) for place, stratum in enumerate(begun[first][:-1])])
    of_size: dict[Size, list[RoundPart]] = {}
    for device in sorted(devices, key=lambda device: device != first):
        for place, stratum in enumerate(begun[device][:-1]):
            of_size.setdefault(stratum.size, []).append(RoundPart(device, stratum, place))
    found = 0
    for size, same in of_size.items():
        began = [part.stratum for part in parts if part.stratum.size == size]
        strata = dict.fromkeys(each for part in same for each in (part.stratum, part.stratum.steady))
        lacking = [each for each in strata for _ in range(steps.lacks(each)) if each not in began]
        found += len(lacking)
        if any(each.is_steady for each in lacking):  # what a machine counts of a size at first is of other stages
            lacking += [lacking[-1]] * max(0, len(STAGES) - steps.taken[0][size] - len(began))
        if check and not lacking and size == begun[first][0].size:
            lacking = [same[0].stratum.steady]
        for number, stratum in enumerate(lacking):
            alike = [part for part in same if part.stratum.level == stratum.level]
            parts.append(alike[number % len(alike)]._replace(stratum=stratum))
    if not (found or whole) and steps.is_sure(steps.now(first, begun[first][0])):
        parts = parts[:1]
    return parts if check or found else []


def split_into_frames(parts: Sequence[RoundPart], batch_size: int) -> Iterator[list[RoundPart]]:
    """Return as many of a round's counted steps as one frame holds, each time behind its beginning."""
    most = min(MAX_RAW_STEPS, MAX_SLICE_BYTES // (_INDEX_BYTES * batch_size))
    begin = list_round_beginning(parts)[: most - 1]
    yield list(parts[:most])
    for start in range(most, len(parts), most - len(begin)):
        yield [*begin, *parts[start : start + most - len(begin)]]
