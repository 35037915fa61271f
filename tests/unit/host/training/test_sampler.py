from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from firmware_agent.common.errors import ConfigurationError
from host.policies.batching.stannis import Overflow, plan_shards
from host.training.sampler import Deal, EpochQueue, QueueState
from tests.support.examples import examples

OVERFLOWS: tuple[Overflow, ...] = ("repeat", "subsample")
DEVICES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 200)), min_size=1, max_size=6)


def one_epoch(queue: EpochQueue, batches: list[int]) -> list[Deal]:
    deals = []
    while queue.left(batches):
        deals.append(queue.next_step(batches))
    return deals


def counts(deals: list[Deal], sizes: list[int]) -> tuple[list[Counter[int]], Counter[int]]:
    """How often each private record of each device, and each public record, was dealt."""
    private: list[Counter[int]] = [Counter() for _ in sizes]
    public: Counter[int] = Counter()
    for deal in deals:
        for device, (records, size) in enumerate(zip(deal.records, sizes, strict=True)):
            private[device].update(records[records < size].tolist())
            public.update((records[records >= size] - size).tolist())
    return private, public


@given(DEVICES, st.integers(0, 500), st.integers(0, 2**31 - 1), st.sampled_from(OVERFLOWS))
def test_an_epoch_is_what_the_plan_says(devices: list[tuple[int, int]], pool: int, seed: int, how: Overflow) -> None:
    batches, sizes = [b for b, _ in devices], [p for _, p in devices]
    if sum(sizes) + pool == 0:
        return
    full = [b if size + pool else 0 for b, size in zip(batches, sizes, strict=True)]
    plan = plan_shards(batches, sizes, pool, how)
    queue = EpochQueue(sizes, pool, seed, how)
    assert queue.steps_left(batches) == plan.steps
    deals = one_epoch(queue, batches)
    private, public = counts(deals, sizes)
    assert len(deals) == plan.steps
    assert queue.state.epoch == 1
    assert all(len(records) <= b for deal in deals for records, b in zip(deal.records, batches, strict=True))
    for size, seen, least in zip(sizes, private, plan.private_seen, strict=True):
        assert max(seen.values(), default=1) == 1
        assert set(seen) <= set(range(size))
        # Rounding up each step may find room for a few more.
        assert least <= len(seen) <= least + plan.steps
    assert set(public) == set(range(pool))
    if how == "subsample" or not plan.overflowing:
        assert max(public.values(), default=1) == 1
        # All steps but the last are full, if there is something to fill them with.
        if not plan.overflowing:
            assert all([len(records) for records in deal.records] == full for deal in deals[:-1])
    else:
        assert max(public.values(), default=1) - min(public.values(), default=1) <= 1
        assert sum(deal.repeated for deal in deals) == public.total() - pool <= plan.repeated
        if pool >= sum(batches):
            assert all([len(records) for records in deal.records] == full for deal in deals[:-1])
    queue.next_step(batches)
    assert queue.state.epoch == 2


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 300))
def test_a_last_step_leaves_nobody_without_a_record_if_it_can(batches: list[int], pool: int) -> None:
    last = one_epoch(EpochQueue([0] * len(batches), pool, 0, "repeat"), batches)[-1]
    dealt = [len(records) for records in last.records]
    assert (min(dealt) >= 1) == (sum(dealt) >= len(batches))
    share = sum(dealt) / sum(batches)
    assert all(n == 1 or n <= share * b + 1 for n, b in zip(dealt, batches, strict=True))


@pytest.mark.parametrize("how", OVERFLOWS)
def test_a_device_for_which_there_is_no_record_takes_no_part(how: Overflow) -> None:
    queue = EpochQueue([0, 10], 0, 0, how)
    assert [[len(r) for r in deal.records] for deal in one_epoch(queue, [4, 4])] == [[0, 4], [0, 4], [0, 2]]
    assert plan_shards([4, 4], [0, 10], 0, how).steps == 3


def test_private_records_are_spread_over_the_whole_epoch() -> None:
    queue = EpochQueue([100, 0], 500, 7, "repeat")
    deals = one_epoch(queue, [20, 10])
    own = [int((deal.records[0] < 100).sum()) for deal in deals]
    assert sum(own) == 100
    assert max(own) - min(own) <= 1
    # And within a batch: no half of it is all private or all public.
    half = deals[0].records[0][:10] < 100
    assert 0 < half.sum() < 10


def test_the_order_follows_from_seed_and_epoch() -> None:
    queue = EpochQueue([30, 0], 70, 1, "repeat")
    orders = [
        [deal.records[1].tolist() for deal in deals] for deals in (one_epoch(queue, [8, 4]), [queue.next_step([8, 4])])
    ]
    assert orders[0][:1] != orders[1]
    first, again, other = (one_epoch(EpochQueue([30, 0], 70, seed, "repeat"), [8, 4]) for seed in (1, 1, 2))
    assert all(
        np.array_equal(a, b)
        for x, y in zip(first, again, strict=True)
        for a, b in zip(x.records, y.records, strict=True)
    )
    assert any(
        not np.array_equal(a, b)
        for x, y in zip(first, other, strict=True)
        for a, b in zip(x.records, y.records, strict=True)
    )


def test_nobody_there_or_nothing_within_reach_is_said() -> None:
    with pytest.raises(ConfigurationError, match="no device that is left has a record"):
        EpochQueue([5, 5], 0, 0, "repeat").next_step([0, 0])
    with pytest.raises(ConfigurationError, match="no device that is left has a record"):
        EpochQueue([5, 0], 0, 0, "repeat").next_step([0, 4])


@given(put=st.sampled_from([1, 2]), batches=st.lists(st.integers(1, 4), min_size=2, max_size=3), seed=st.integers(0, 9))
def test_of_two_outstanding_steps_either_can_be_put_back_and_an_epoch_still_covers_all(
    put: int, batches: list[int], seed: int
) -> None:
    queue = EpochQueue([3] * len(batches), 40, seed, "repeat")
    deals = [queue.next_step(batches), queue.next_step(batches)]
    back = deals[put - 1]
    for device, records in enumerate(back.records):
        queue.put_back(device, records, back.number)
        if len(records):
            with pytest.raises(ConfigurationError, match="not of its last step"):
                queue.put_back(device, records, back.number)
    seen = [deals[2 - put]]
    while queue.left(batches):
        seen.append(queue.next_step(batches))
    assert queue.state.epoch == 1
    for device in range(len(batches)):
        own = Counter(r for deal in seen for r in deal.records[device].tolist() if r < 3)
        assert own == Counter(range(3))
    public = Counter(r - 3 for deal in seen for part in deal.records for r in part.tolist() if r >= 3)
    assert set(public) == set(range(40))
    first = deals[0]
    with pytest.raises(ConfigurationError, match="not of its last step"):  # too long ago, by now
        queue.put_back(0, first.records[0], first.number)


def test_only_what_the_last_step_dealt_can_be_put_back_and_once() -> None:
    queue = EpochQueue([10, 10], 40, 0, "repeat")
    old = queue.next_step([4, 4])
    deal = queue.next_step([4, 4])
    for device, records in ((0, old.records[0]), (1, deal.records[0]), (2, deal.records[0])):
        with pytest.raises(ConfigurationError, match="not of its last step"):
            queue.put_back(device, records)
    queue.put_back(0, deal.records[0])
    with pytest.raises(ConfigurationError, match="not of its last step"):
        queue.put_back(0, deal.records[0])


def test_a_device_that_is_away_keeps_its_private_records_and_the_others_finish() -> None:
    queue = EpochQueue([12, 12], 24, 0, "repeat")
    queue.next_step([4, 4])
    while queue.left([4, 0]):
        queue.next_step([4, 0])
    assert queue.private_left[0] == 0
    away = queue.private_left[1]
    assert away == 10
    # It is back before the next epoch begins: this one goes on for it.
    deals = one_epoch(queue, [4, 4])
    assert queue.state.epoch == 1
    assert queue.private_left == [0, 0]
    assert len(deals) == 3
    assert sum(deal.repeated for deal in deals) > 0


@given(DEVICES, st.integers(0, 500), st.sets(st.integers(0, 5)), st.integers(0, 9))
def test_what_lies_in_place_is_counted_in_order_and_gets_nothing_beside(
    devices: list[tuple[int, int]], pool: int, own: set[int], seed: int
) -> None:
    batches, sizes = [b for b, _ in devices], [p for _, p in devices]
    own &= set(range(len(sizes)))
    shared = pool if len(own) < len(sizes) else 0
    if not sum(sizes) + shared:
        return
    queue = EpochQueue(sizes, pool, seed, "repeat", in_place=own)
    steps = queue.steps_left(batches)
    deals = one_epoch(queue, batches)
    assert len(deals) == steps
    assert {deal.epoch for deal in deals} == {1}
    for device, size in enumerate(sizes):
        dealt = np.concatenate([deal.records[device] for deal in deals])
        if device in own:
            assert dealt.tolist() == list(range(size))
    private, public = counts(deals, sizes)
    assert [len(seen) for seen in private] == sizes
    assert set(public) == set(range(shared))
    assert queue.next_step(batches).epoch == 2


def test_a_drive_that_says_it_holds_billions_costs_the_host_no_memory() -> None:
    queue = EpochQueue([1 << 32, 4], 0, 0, "subsample", in_place=[0])
    (first, _) = queue.next_step([8, 2]).records
    assert first.tolist() == list(range(8))


@pytest.mark.parametrize("size", [1 << 32, 1 << 50, 1 << 60])
def test_a_drive_that_says_it_holds_endless_records_starves_no_other(size: int) -> None:
    batches = [1 << 15, 1 << 15]
    deal = EpochQueue([size, 1000], 100_000, 0, "repeat", in_place=[0]).next_step(batches)
    assert [len(records) for records in deal.records] == batches


class Epochs(RuleBasedStateMachine):
    """Batches change, devices come and go, steps are put back, the host is killed: each record is dealt once."""

    @initialize(
        sizes=st.lists(st.integers(0, 60), min_size=1, max_size=5),
        pool=st.integers(1, 200),
        seed=st.integers(0, 2**31 - 1),
        how=st.sampled_from(OVERFLOWS),
        own=st.sets(st.integers(0, 4), max_size=2),
    )
    def begin(self, sizes: list[int], pool: int, seed: int, how: Overflow, own: set[int]) -> None:
        self.arguments = (sizes, pool, seed, how)
        self.sizes, self.pool, self.how = sizes, pool, how
        self.own = own & set(range(len(sizes)))
        self.queue = EpochQueue(*self.arguments, in_place=self.own)
        self.batches = [8] * len(sizes)
        self.new_epoch(1)

    def new_epoch(self, number: int) -> None:
        self.epoch, self.repeated = number, 0
        self.private: list[Counter[int]] = [Counter() for _ in self.sizes]
        self.public: Counter[int] = Counter()
        self.last: Deal | None = None

    def count(self, device: int, records: np.ndarray[tuple[int], np.dtype[np.int64]], sign: int) -> None:
        size = self.sizes[device]
        for record in records.tolist():
            if record < size:
                self.private[device][record] += sign
            else:
                self.public[record - size] += sign

    @rule(data=st.data())
    def retune(self, data: st.DataObject) -> None:
        self.batches = data.draw(st.lists(st.integers(0, 30), min_size=len(self.sizes), max_size=len(self.sizes)))
        if not any(self.batches):
            self.batches[0] = 1

    @rule()
    def step(self) -> None:
        expected = self.queue.steps_left(self.batches)
        ended = not self.queue.left(self.batches)
        assert ended == (expected == 0)
        if ended:
            self.check_end()
            self.new_epoch(self.epoch + 1)
            if not any(batch and (size or device not in self.own) for device, batch, size in self.each()):
                with pytest.raises(ConfigurationError, match="no device that is left has a record"):
                    self.queue.next_step(self.batches)
                return
        deal = self.queue.next_step(self.batches)
        assert self.queue.state.epoch == self.epoch
        assert sum(len(records) for records in deal.records) > 0
        for device, (records, batch) in enumerate(zip(deal.records, self.batches, strict=True)):
            assert len(records) <= batch
            most = self.sizes[device] + (0 if device in self.own else self.pool)
            assert np.all((records >= 0) & (records < most))
            self.count(device, records, 1)
        self.repeated += deal.repeated
        if self.how == "subsample":
            assert deal.repeated == 0
        if not ended:
            assert self.queue.steps_left(self.batches) <= expected - 1
        self.last = deal

    def each(self) -> list[tuple[int, int, int]]:
        return list(zip(range(len(self.sizes)), self.batches, self.sizes, strict=True))

    def check_end(self) -> None:
        if any(batch and device not in self.own for device, batch, _ in self.each()):
            assert set(range(self.pool)) == {record for record, times in self.public.items() if times}
        for device, batch in enumerate(self.batches):
            missing = self.sizes[device] - sum(self.private[device].values())
            assert self.queue.private_left[device] == missing
            if batch and self.how == "repeat":
                assert missing == 0

    @precondition(lambda self: self.last is not None)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        assert self.last is not None
        device = data.draw(st.integers(0, len(self.sizes) - 1))
        records = self.last.records[device]
        self.queue.put_back(device, records)
        self.count(device, records, -1)
        left = list(self.last.records)
        left[device] = records[:0]
        self.last = Deal(tuple(left), self.last.repeated)

    @rule()
    def resume(self) -> None:
        state = msgspec.json.decode(msgspec.json.encode(self.queue.state), type=QueueState)
        self.queue, self.last = EpochQueue(*self.arguments, state=state, in_place=self.own), None

    @invariant()
    def each_once(self) -> None:
        if not hasattr(self, "queue"):
            return
        for counted in self.private:
            assert all(times in (0, 1) for times in counted.values())
        over = sum(max(0, times - 1) for times in self.public.values())
        assert over <= self.repeated


TestEpochs = pytest.mark.slow(Epochs.TestCase)
TestEpochs.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
