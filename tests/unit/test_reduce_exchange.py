import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.errors import ProtocolError
from firmware_agent.wire import Reduce
from host.sync.reduce_exchange import Reductions

DEVICES = ["csd-00", "csd-01", "host"]


def frame(index: int, *values: float) -> Reduce:
    return Reduce(1, index, np.array(values, "<f8").tobytes())


def numbers(summed: bytes) -> list[float]:
    return np.frombuffer(summed, "<f8").tolist()


async def settle() -> None:
    """Let every task run as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


@settings(deadline=None)
@given(
    values=st.lists(st.lists(st.floats(-1e30, 1e30), min_size=3, max_size=3), min_size=1, max_size=6),
    data=st.data(),
)
def test_all_get_the_sum_in_participant_order_whoever_comes_first(
    values: list[list[float]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(values))))

    async def run() -> list[bytes]:
        sums = Reductions([f"csd-{n:02}" for n in range(len(values))])
        tasks = []
        for n in order:
            tasks.append(asyncio.create_task(sums.add(f"csd-{n:02}", frame(0, *values[n]))))
            await settle()
        return await asyncio.gather(*tasks)

    total = np.zeros(3)
    for each in values:
        total += each
    assert asyncio.run(run()) == [total.astype("<f8").tobytes()] * len(values)


async def test_one_may_be_an_exchange_ahead_of_the_others() -> None:
    sums = Reductions(DEVICES)
    first = [asyncio.create_task(sums.add(device, frame(0, 1))) for device in DEVICES]
    await settle()
    ahead = asyncio.create_task(sums.add("host", frame(1, 5, 7)))
    assert [numbers(await task) for task in first] == [[3]] * 3
    await settle()
    assert not ahead.done()
    second = [asyncio.create_task(sums.add(device, frame(1, 1, 1))) for device in DEVICES[:2]]
    assert [numbers(await task) for task in (ahead, *second)] == [[7, 9]] * 3


async def test_nobody_waits_for_one_who_left() -> None:
    sums = Reductions(DEVICES)
    waiting = [asyncio.create_task(sums.add(device, frame(0, 2))) for device in DEVICES[:2]]
    await settle()
    assert not any(task.done() for task in waiting)
    sums.leave("host")
    assert [numbers(await task) for task in waiting] == [[4]] * 2


async def test_what_one_sent_who_left_is_not_in_the_sum() -> None:
    sums = Reductions(DEVICES)
    lost = asyncio.create_task(sums.add("csd-00", frame(0, 100)))
    others = [asyncio.create_task(sums.add("csd-01", frame(0, 1)))]
    await settle()
    sums.leave("csd-00")
    sums.leave("csd-00")
    sums.leave("unknown")
    others.append(asyncio.create_task(sums.add("host", frame(0, 2))))
    assert [numbers(await task) for task in others] == [[3]] * 2
    lost.cancel()


async def test_one_who_left_and_one_of_another_step_are_refused() -> None:
    sums = Reductions(DEVICES)
    sums.leave("host")
    for device in ("host", "csd-09"):
        with pytest.raises(ProtocolError, match=f"{device} sent values .* does not take part"):
            await sums.add(device, frame(0, 1))


async def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    sums = Reductions(DEVICES)
    waiting = asyncio.create_task(sums.add("csd-00", frame(0, 1)))
    await settle()
    bad = [frame(1, 1), frame(0, 1, 2), Reduce(1, 0, b"123456789")]
    for wrong, match in zip(bad, ("sum 1, its next is 0", "16 bytes for sum 0, where 8", "9 bytes"), strict=True):
        with pytest.raises(ProtocolError, match=match):
            await sums.add("csd-01", wrong)
    with pytest.raises(ProtocolError, match="csd-00 sent values for sum 0, its next is 1"):
        await sums.add("csd-00", frame(0, 1))
    others = [asyncio.create_task(sums.add(device, frame(0, 1))) for device in DEVICES[1:]]
    assert [numbers(await task) for task in (waiting, *others)] == [[3]] * 3


async def test_half_a_number_of_the_first_is_refused_too() -> None:
    with pytest.raises(ProtocolError, match="9 bytes"):
        await Reductions(DEVICES).add("csd-00", Reduce(1, 0, b"123456789"))
