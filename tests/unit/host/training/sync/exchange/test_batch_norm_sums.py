import asyncio
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.step_frames import Reduce
from host.core.evaluation import NormSum
from host.training.contributions import Reason, Refusal
from host.training.sync.exchange.batch_norm_sums import Reductions
from host.training.sync.exchange.step_extension import StepStage

DEVICES = ["csd-00", "csd-01", "host"]


def frame(index: int, *values: float) -> Reduce:
    return Reduce(1, index, np.array(values, "<f8").tobytes())


def numbers(summed: bytes) -> list[float]:
    return [float(value) for value in np.frombuffer(summed, "<f8")]


def sums_of(*values: int, devices: list[str] = DEVICES, count: float = 0.0) -> Reductions:
    """A step of one record a device that adds so many numbers up, sum by sum."""
    return Reductions(1, dict.fromkeys(devices, 1), [NormSum(size, count) for size in values])


async def settle() -> None:
    """Let every task run as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


@settings(deadline=None)
@given(
    values=st.lists(st.lists(st.floats(1, 10) | st.floats(-10, -1), min_size=3, max_size=3), min_size=1, max_size=6),
    data=st.data(),
)
def test_all_get_the_sum_in_participant_order_whoever_comes_first(
    values: list[list[float]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(values))))

    async def run() -> list[bytes]:
        sums = sums_of(3, devices=[f"csd-{n:02}" for n in range(len(values))])
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
    sums = sums_of(1, 2)
    first = [asyncio.create_task(sums.add(device, frame(0, 1))) for device in DEVICES]
    await settle()
    ahead = asyncio.create_task(sums.add("host", frame(1, 5, 7)))
    assert [numbers(await task) for task in first] == [[3]] * 3
    await settle()
    assert not ahead.done()
    second = [asyncio.create_task(sums.add(device, frame(1, 1, 1))) for device in DEVICES[:2]]
    assert [numbers(await task) for task in (ahead, *second)] == [[7, 9]] * 3


async def test_nobody_waits_for_one_who_left() -> None:
    sums = sums_of(1)
    waiting = [asyncio.create_task(sums.add(device, frame(0, 2))) for device in DEVICES[:2]]
    await settle()
    assert not any(task.done() for task in waiting)
    sums.leave("host")
    assert [numbers(await task) for task in waiting] == [[4]] * 2


async def test_what_one_sent_who_left_is_not_in_the_sum() -> None:
    sums = sums_of(1)
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
    sums = sums_of(1)
    sums.leave("host")
    for device in ("host", "csd-09"):
        with pytest.raises(ProtocolError, match=f"{device} sent values .* does not take part"):
            await sums.add(device, frame(0, 1))


async def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    sums = sums_of(1, 1)
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


async def test_the_size_is_the_models_whoever_comes_first() -> None:
    sums = sums_of(4)
    with pytest.raises(ProtocolError, match="csd-00 sent 8 bytes for sum 0, where 32 were due"):
        await sums.add("csd-00", frame(0, 1))
    sums.leave("csd-00")
    others = [asyncio.create_task(sums.add(device, frame(0, 1, 1, 1, 1))) for device in DEVICES[1:]]
    assert [numbers(await task) for task in others] == [[2, 2, 2, 2]] * 2


@pytest.mark.parametrize("count", [2.0, 0.0, -1e9, math.nan])
async def test_a_count_of_other_records_than_were_dealt_is_refused_and_in_no_sum(count: float) -> None:
    refused: dict[str, Refusal] = {}
    sums = Reductions(1, dict.fromkeys(DEVICES, 3), [NormSum(2, 16.0)], refused=refused)
    waiting = [asyncio.create_task(sums.add(device, frame(0, 48, 1))) for device in DEVICES[1:]]
    await settle()
    assert numbers(await sums.add("csd-00", frame(0, count, 1))) == [96, 2], "so that its step ends"
    assert [numbers(await task) for task in waiting] == [[96, 2]] * 2
    assert list(refused) == ["csd-00"]


async def test_sums_out_of_proportion_are_refused_and_the_others_are_added_up() -> None:
    refused: dict[str, Refusal] = {}
    sums = Reductions(1, dict.fromkeys(DEVICES, 1), [NormSum(1, 0.0)] * 2, refused=refused)
    for index, odd in enumerate((1.0, 1e20)):
        tasks = [asyncio.create_task(sums.add(d, frame(index, odd if d == "host" else 1.0))) for d in DEVICES]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [numbers(each) for each in outcomes if isinstance(each, bytes)] == [[2]] * 3
    assert refused["host"].reason is Reason.NORM


async def test_what_is_owed_is_told() -> None:
    sums = Reductions(1, {"csd-00": 1}, [NormSum(1, 1.0), NormSum(1, 0.0)])
    own = sums.open("csd-00")
    assert "after 0 of 1 sums" in own.owed(StepStage.ACTIVATIONS)
    await sums.add("csd-00", frame(0, 1))
    assert own.owed(StepStage.ACTIVATIONS) == ""
    assert "after 1 of 2 sums" in own.owed(StepStage.REPORT)
    await sums.add("csd-00", frame(1, 1))
    assert own.owed(StepStage.REPORT) == ""


async def test_when_all_are_refused_nobody_waits() -> None:
    sums = sums_of(1, devices=DEVICES[:2])
    first = asyncio.create_task(sums.add("csd-00", frame(0, math.nan)))
    await settle()
    await sums.add("csd-01", frame(0, math.nan))
    async with asyncio.timeout(5):
        assert math.isnan(numbers(await first)[0])
