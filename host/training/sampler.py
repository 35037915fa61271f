"""Sampler of an epoch's records for each device, which covers them all, whatever batches do meanwhile. Pure.

Records have the numbers that they have in a drive's shard: its own private ones first, [0, p), then the public pool,
[p, p + U), which lies on every drive in the same order. A drive that has records of its own in place has no public ones
and draws its own itself: their numbers are places in the order that it has them in an epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from firmware_agent.common.errors import ConfigurationError
from host.core.partition import Indices
from host.core.tuning.batch_tuner import Batches
from host.policies.batching.stannis import Mask, Overflow, apportion, water_level

# A step whose outcome is not known, and the one that was dealt before it was.
OUTSTANDING = 2
# First numbers of the random streams.
_PUBLIC, _PRIVATE = 0, 1


class PileState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a pile is dealt: passes begun before this one, records of this one, and those that came back."""

    passes: int
    dealt: int
    returned: list[int]


class QueueState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An `EpochQueue` between two steps; with the arguments it was made with, all that it needs to go on."""

    epoch: int
    private: list[PileState]
    public: PileState


@dataclass(frozen=True)
class Deal:
    """The records of one step.

    Attributes:
        records: for each device, (n,) int64 numbers in its shard; empty for one that is not there.
        repeated: how many public records had been dealt in this epoch before, by the way of filling up.
        number: of the deal, for `EpochQueue.put_back`.
        epoch: that it is of.
    """

    records: tuple[Indices, ...]
    repeated: int
    number: int = 0
    epoch: int = 1


class _Left(NamedTuple):
    """What an epoch still has for the devices that are there.

    Attributes:
        there: their numbers; the arrays are of these.
        b: records per step.
        p: private records left.
        filled: who is filled up with public records; all, if there is none for any of them.
        public: public records left.
        pool: of all.
    """

    there: Indices
    b: Batches
    p: Batches
    filled: Mask
    public: int
    pool: int


class EpochQueue:
    """Deals an epoch's records out, step by step.

    Private records are spread over the steps that are left in proportion to what is left, so that private and public
    ones mix, and all end together. Batches may change before any step; a device with a batch of 0 is not there, its
    private records are out of reach until it is back. An epoch ends when no record is left within reach; only its last
    step is smaller than the batches.

    Every order follows from (seed, epoch, device) alone.
    """

    def __init__(
        self,
        private_sizes: Sequence[int],
        public_size: int,
        seed: int,
        overflow: Overflow,
        state: QueueState | None = None,
        outstanding: int = OUTSTANDING,
        in_place: Collection[int] = (),
    ) -> None:
        """Begin with epoch 1, or go on from `state`.

        Args:
            private_sizes: (devices,) private records of each, p.
            public_size: records of the public pool, U.
            seed: of the orders.
            overflow: if a device has more private records left than equal steps have room for: ``repeat`` goes on until
                they are dealt, while the others see public records again; ``subsample`` leaves the rest out.
            state: of a queue that was made with the same arguments.
            outstanding: so many deals, the last ones, can be put back.
            in_place: numbers of the devices that have their own records alone, in place.
        """
        self._in_place = frozenset(in_place)
        self._sizes, self._pool = tuple(private_sizes), public_size
        self._seed, self._overflow, self._outstanding = seed, overflow, outstanding
        # What was dealt and can still be put back, by the deal's number.
        self._dealt: dict[int, tuple[Indices, ...]] = {}
        self._deals = 0
        self._begin(state.epoch if state else 1)
        if state is not None:
            for pile, kept in zip([*self._private, self._public], [*state.private, state.public], strict=True):
                pile.restore(kept)

    @property
    def state(self) -> QueueState:
        """What to keep in order to go on from here; what the last step dealt cannot be put back then."""
        return QueueState(self._epoch, [pile.state for pile in self._private], self._public.state)

    @property
    def private_left(self) -> list[int]:
        """Private records of each device that this epoch has not dealt; at its end they are left out of it."""
        return [pile.left for pile in self._private]

    def left(self, batches: Sequence[int]) -> int:
        """Return how many records this epoch still has to deal to devices with these batches; 0 at its end."""
        left = self._left(batches)
        if not len(left.there):
            return 0
        if self._overflow == "subsample":
            return water_level(left.b, left.p, left.public, left.filled)[0]
        return int(left.p.sum()) + left.public

    def steps_left(self, batches: Sequence[int]) -> int:
        """Return how many steps this epoch still has with these batches."""
        left = self._left(batches)
        if not len(left.there):
            return 0
        records, per = _steps(left, self._overflow)
        return -(-records // per)

    def next_step(self, batches: Sequence[int]) -> Deal:
        """Deal the records of a step; if none is left within reach, the next epoch begins.

        Args:
            batches: (devices,) records per step; 0 for a device that is not there.

        Raises:
            ConfigurationError: no device that is there has a record.
        """
        if not self.left(batches):
            self._begin(self._epoch + 1)
            if not self.left(batches):
                raise ConfigurationError("no device that is left has a record to train on; bring one back")
        left = self._left(batches)
        private, public = _shares(left, self._overflow)
        common, repeated = self._public.take(int(public.sum()))
        records = [np.empty(0, np.int64)] * len(self._sizes)
        for number, own, ours in zip(left.there, private, np.split(common, np.cumsum(public)[:-1]), strict=True):
            taken, _ = self._private[number].take(int(own))
            records[number] = _mix(taken, ours + self._sizes[number])
        self._deals += 1
        self._dealt[self._deals] = tuple(records)
        self._dealt.pop(self._deals - self._outstanding, None)
        return Deal(tuple(records), repeated, self._deals, self._epoch)

    def put_back(self, device: int, records: Indices, deal: int | None = None) -> None:
        """Take records back that were dealt to a device and that were not computed; they go first again.

        Args:
            device: its place.
            records: some of those.
            deal: number of the deal, one of the `outstanding` last ones of this epoch; None for the last.

        Raises:
            ConfigurationError: that step did not deal them to it, or they are back already.
        """
        number = self._deals if deal is None else deal
        last = self._dealt.get(number, ())
        dealt = Counter(last[device].tolist()) if device < len(last) else Counter()
        back = Counter(records.tolist())
        if back - dealt:
            raise ConfigurationError(
                f"device {device}: records {sorted(back - dealt)[:5]} are not of its last step; put back what it was "
                "dealt, once, and before the next step"
            )
        size = self._sizes[device]
        self._private[device].put_back(records[records < size])
        self._public.put_back(records[records >= size] - size)
        kept = np.array(sorted((dealt - back).elements()), np.int64)
        self._dealt[number] = (*last[:device], kept, *last[device + 1 :])

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._dealt.clear()
        seeds = [(self._seed, epoch, _PRIVATE, device) for device in range(len(self._sizes))]
        self._private = [
            _Pile(size, None if device in self._in_place else seed)
            for device, (size, seed) in enumerate(zip(self._sizes, seeds, strict=True))
        ]
        self._public = _Pile(self._pool, (self._seed, epoch, _PUBLIC))

    def _left(self, batches: Sequence[int]) -> _Left:
        every, filled = np.array(batches, np.int64), np.full(len(self._sizes), self._pool > 0)
        filled[list(self._in_place)] = False
        # A device without a record of its own takes no part where there is no public one.
        there = np.flatnonzero((every > 0) & (filled | (np.array(self._sizes) > 0)))
        own = every[there], np.array(self.private_left, np.int64)[there]
        if not filled[there].any():
            return _Left(there, *own, np.ones(len(there), bool), 0, 0)
        return _Left(there, *own, filled[there], self._public.left, self._pool)


class _Pile:
    """Records in a random order, or with no seed in the order that the drive draws; those that came back lie on top."""

    def __init__(self, size: int, seed: tuple[int, ...] | None) -> None:
        self._size, self._seed = size, seed
        self._passes, self._dealt = 0, 0
        self._returned: list[int] = []
        self._order: Indices | range | None = None  # until a record of it is wanted

    @property
    def left(self) -> int:
        """Records not dealt: of the first pass, and any that came back."""
        return len(self._returned) + (self._size - self._dealt if self._passes == 0 else 0)

    @property
    def state(self) -> PileState:
        return PileState(self._passes, self._dealt, list(self._returned))

    def restore(self, state: PileState) -> None:
        self._passes, self._dealt, self._returned = state.passes, state.dealt, list(state.returned)
        self._order = None

    def take(self, count: int) -> tuple[Indices, int]:
        """Return the next `count` records, and how many of them were dealt before; one pass follows another."""
        repeated = max(0, count - self.left)
        parts = [np.array(self._returned[:count], np.int64)]
        del self._returned[:count]
        missing = count - len(parts[0])
        while missing:
            if self._dealt == self._size:
                self._passes, self._dealt, self._order = self._passes + 1, 0, None
            if self._order is None:
                self._order = self._shuffled()
            parts.append(np.array(self._order[self._dealt : self._dealt + missing], np.int64))
            self._dealt += len(parts[-1])
            missing -= len(parts[-1])
        return np.concatenate(parts), repeated

    def put_back(self, records: Indices) -> None:
        self._returned = [*records.tolist(), *self._returned]

    def _shuffled(self) -> Indices | range:
        if self._seed is None:
            return range(self._size)
        return np.random.default_rng([*self._seed, self._passes]).permutation(self._size).astype(np.int64)


def _steps(left: _Left, overflow: Overflow) -> tuple[int, int]:
    """Return the steps that an epoch still has, as a fraction: numerator and denominator."""
    _, b, p, filled, public_left, _ = left
    if overflow == "subsample":
        records, total, _ = water_level(b, p, public_left, filled)
        return records, total
    steps = int(p[filled].sum()) + public_left, int(b[filled].sum())
    longest = int((p / b).argmax())
    own = int(p[longest]), int(b[longest])
    return own if own[0] * steps[1] > steps[0] * own[1] else steps


def _shares(left: _Left, overflow: Overflow) -> tuple[Batches, Batches]:
    """Return how many private and how many public records each device gets in a step.

    With K steps left, ceil(p_i / K) private ones and public ones up to b_i: rounded up, because then p_i <= K b_i stays
    true, and the public records never fall short of what is to be filled. The last step shares out what is left.
    """
    _, b, p, filled, public_left, pool = left
    records, per = _steps(left, overflow)
    if records <= per:
        whole = _last_step(left, overflow)
        private = np.minimum(p, whole)
        return private, whole - private
    private = np.minimum(b, -(-p.astype(object) * per // records)).astype(np.int64)  # Python's: int64 could overflow
    public = np.where(filled, b - private, 0)
    most = pool if overflow == "repeat" else public_left
    return private, public if public.sum() <= most else apportion(most, public)


def _last_step(left: _Left, overflow: Overflow) -> Batches:
    """Return how many records each device gets if one step has room for all that are left.

    In proportion to the batches, as far as private records allow; everybody gets one if there are enough.
    """
    _, b, p, filled, public_left, _ = left
    records, total, inside = water_level(b, p, public_left, filled)
    whole = p.copy() if overflow == "repeat" else np.minimum(p, np.maximum(1, records * b // total))
    whole[inside] = apportion(records, b[inside])
    for empty in np.flatnonzero(filled & (whole == 0)):
        spare = np.where(whole > 1, whole - p, 0)
        if spare.max() > 0:
            whole[spare.argmax()] -= 1
            whole[empty] += 1
    return whole


def _mix(private: Indices, public: Indices) -> Indices:
    """Return both, evenly mixed: parts of a batch that are computed one after the other should be alike."""
    places = [(np.arange(len(part)) + 0.5) / max(1, len(part)) for part in (private, public)]
    return np.concatenate([private, public])[np.argsort(np.concatenate(places), kind="stable")]
