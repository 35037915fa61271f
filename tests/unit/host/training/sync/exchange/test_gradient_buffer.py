"""A step's gradients come in, tensor by tensor, in any order, while devices are lost."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.slices import Array, Assembler, Spans, cut_slices, make_slice, tensor_specs
from host.core.tensor_sums import TensorContribution, combine
from host.training.sync.exchange.gradient_buffer import GradientBuffer
from host.training.tensor_ranges import TensorRange
from tests.support.examples import examples

TENSORS: dict[str, Array] = {
    "w": np.zeros((2, 3), np.float32),
    "b": np.zeros(5, np.float32),
    "n": np.zeros((), np.int64),
}
SPECS = tensor_specs(TENSORS)
EXCHANGE = 3


@dataclass
class Applied:
    """What a gathering has applied, in order; contributions as they were at that moment."""

    order: list[str] = field(default_factory=list)
    parts: dict[str, list[tuple[float, Array, Spans | None]]] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)

    def __call__(self, block: TensorRange, contributions: Sequence[TensorContribution]) -> None:
        name = block.tensor
        self.order.append(name)
        self.parts[name] = [(part.weight, part.array.copy(), part.spans) for part in contributions]
        self.values[name] = combine(name, contributions)


@dataclass(frozen=True)
class Plan:
    """Who sends what, and who is lost after how many tensors (None: never); then `part` bytes of one more come."""

    weights: dict[str, int]
    left_after: dict[str, int | None]
    part: int
    order: list[str]

    def sent(self, device: str) -> list[str]:
        """The tensors that a device sends completely."""
        return list(TENSORS)[: self.left_after[device]]

    @property
    def lost(self) -> list[str]:
        return [device for device, after in self.left_after.items() if after is not None]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    names = [f"csd-{number:02d}" for number in range(draw(st.integers(1, 4)))]
    weights = {name: draw(st.integers(1, 100)) for name in names}
    left_after = {name: draw(st.none() | st.integers(0, len(TENSORS) - 1)) for name in names}
    if all(after is not None for after in left_after.values()):
        left_after[names[0]] = None
    turns = [name for name in names for _ in range(len(TENSORS) + 2)]
    return Plan(weights, left_after, draw(st.integers(0, 7)), draw(st.permutations(turns)))


def values(device: str) -> dict[str, Array]:
    number = 1 + int(device[-2:])
    return {name: np.full_like(array, number) for name, array in TENSORS.items()}


def deliver(gathering: GradientBuffer, device: str, assembler: Assembler, arrays: dict[str, Array]) -> None:
    for piece in cut_slices(EXCHANGE, arrays):
        assembler.add(piece)
        gathering.arrived(device, piece.tensor, piece.offset, piece.offset + len(piece.data))


async def play(plan: Plan, gathering: GradientBuffer) -> None:
    """Have the devices send, as their turns come; a turn is: announce, a tensor, or be lost."""

    async def turns(device: str) -> AsyncIterator[None]:
        assembler = Assembler(EXCHANGE, SPECS)
        gathering.open(device, assembler)
        arrays = values(device)
        whole = plan.sent(device)
        for name in whole:
            deliver(gathering, device, assembler, {name: arrays[name]})
            yield
        if device in plan.lost:
            rest = list(TENSORS)[len(whole)]
            content = arrays[rest].tobytes()[: plan.part]
            if content:
                assembler.add(make_slice(EXCHANGE, rest, 0, content))
                gathering.arrived(device, rest, 0, len(content))
            gathering.lose(device)
            yield

    running = {device: turns(device) for device in plan.weights}
    for device in plan.order:
        await anext(running[device], None)
    for device in plan.weights:
        async for _ in running[device]:
            pass


@settings(max_examples=examples(200))
@given(plan=plans(), barrier=st.booleans())
def test_every_tensor_is_applied_once_with_weights_that_sum_to_one_for_every_element(plan: Plan, barrier: bool) -> None:
    applied = Applied()
    gathering = GradientBuffer(SPECS, plan.weights, applied, barrier)

    async def run() -> None:
        await play(plan, gathering)
        assert not (barrier and applied.order)
        await gathering.finish()

    asyncio.run(run())
    assert Counter(applied.order) == Counter(list(TENSORS))
    whole = [device for device in plan.weights if device not in plan.lost]
    for name, array in TENSORS.items():
        there = {device for device in plan.weights if device in whole or name in plan.sent(device)}
        partly = {d for d in plan.lost if list(TENSORS)[len(plan.sent(d))] == name}
        flat = applied.values[name].reshape(-1)
        for element in range(array.size):
            delivered = there | {d for d in partly if (element + 1) * array.itemsize <= min(plan.part, array.nbytes)}
            total = sum(plan.weights[device] for device in delivered)
            want = sum(plan.weights[d] / total * (1 + int(d[-2:])) for d in sorted(delivered))
            got = float(flat[element])
            assert got == pytest.approx(want, rel=1e-6) if array.dtype.kind == "f" else abs(got - want) <= 0.5
        weights = [weight for weight, _, _ in applied.parts[name]]
        names = [d for d in plan.weights if d in there or (d in partly and plan.part)]
        assert weights == [plan.weights[d] for d in names]  # in participant order
    used = any(plan.sent(device) or plan.part for device in plan.lost)
    assert gathering.mixed == used


@given(plan=plans(), data=st.data())
def test_what_late_devices_sent_goes_into_nothing(plan: Plan, data: st.DataObject) -> None:
    healthy = [device for device in plan.weights if device not in plan.lost]
    late = data.draw(st.sets(st.sampled_from(healthy), max_size=len(healthy) - 1)) if len(healthy) > 1 else set()
    applied = Applied()
    gathering = GradientBuffer(SPECS, plan.weights, applied, barrier=True)

    async def run() -> None:
        await play(plan, gathering)
        await gathering.finish(late)

    asyncio.run(run())
    assert Counter(applied.order) == Counter(list(TENSORS))
    for parts in applied.parts.values():
        assert sum(weight for weight, _, _ in parts) <= sum(plan.weights[d] for d in plan.weights if d not in late)
        assert not any(
            np.any(array == 1 + int(device[-2:])) for _, array, spans in parts if spans is None for device in late
        )


async def test_without_a_barrier_a_tensor_is_applied_as_soon_as_its_last_sender_has_sent_it() -> None:
    applied = Applied()
    gathering = GradientBuffer(SPECS, {"csd-00": 1, "csd-01": 2}, applied, barrier=False)
    assemblers = {device: Assembler(EXCHANGE, SPECS) for device in ("csd-00", "csd-01")}
    for device, assembler in assemblers.items():
        gathering.open(device, assembler)

    def send(device: str, name: str) -> None:
        deliver(gathering, device, assemblers[device], {name: values(device)[name]})

    async def settled() -> None:
        while gathering._drain is not None:
            await gathering._drain

    send("csd-00", "w")
    send("csd-01", "b")
    await settled()
    assert applied.order == []
    send("csd-01", "w")
    await settled()
    assert applied.order == ["w"]
    gathering.lose("csd-00")
    await settled()
    assert applied.order == ["w", "b"]
    send("csd-01", "n")
    await gathering.finish()
    assert applied.order == ["w", "b", "n"]


@pytest.mark.parametrize("barrier", [False, True])
async def test_nothing_more_is_applied_once_all_are_lost(barrier: bool) -> None:
    applied = Applied()
    gathering = GradientBuffer(SPECS, {"csd-00": 1, "csd-01": 2}, applied, barrier)
    assembler = Assembler(EXCHANGE, SPECS)
    gathering.open("csd-00", assembler)
    deliver(gathering, "csd-00", assembler, {"w": values("csd-00")["w"]})
    gathering.lose("csd-01")
    assert applied.order == []  # a thread does it, which has not begun
    gathering.lose("csd-00")
    await gathering.finish()
    assert applied.order == ([] if barrier else ["w"])


@pytest.mark.parametrize("barrier", [False, True])
async def test_an_error_while_applying_reaches_whoever_gathers(barrier: bool) -> None:
    def apply(block: TensorRange, contributions: Sequence[TensorContribution]) -> None:
        raise ArithmeticError(block.tensor)

    gathering = GradientBuffer(SPECS, {"csd-00": 1}, apply, barrier)
    assembler = Assembler(EXCHANGE, SPECS)
    gathering.open("csd-00", assembler)
    deliver(gathering, "csd-00", assembler, values("csd-00"))
    with pytest.raises(ArithmeticError, match="w"):
        await gathering.finish()


@given(
    block_items=st.integers(1, 7),
    slice_bytes=st.integers(1, 40),
    barrier=st.booleans(),
    data=st.data(),
)
def test_blocks_are_applied_once_each_when_all_bytes_are_there_and_give_the_whole_tensors_mean(
    block_items: int, slice_bytes: int, barrier: bool, data: st.DataObject
) -> None:
    generator = np.random.default_rng(0)
    sent = {d: {"w": generator.standard_normal((3, 5)), "b": generator.standard_normal(2)} for d in ("a", "b", "c")}
    specs, weights = tensor_specs(sent["a"]), {"a": 1, "b": 2, "c": 3}
    pieces = [(d, piece) for d in sent for piece in cut_slices(EXCHANGE, sent[d], slice_bytes)]
    order = data.draw(st.permutations(pieces))
    got = {name: np.full(array.size, np.nan) for name, array in sent["a"].items()}
    assemblers = {d: Assembler(EXCHANGE, specs) for d in sent}

    def apply(block: TensorRange, contributions: Sequence[TensorContribution]) -> None:
        here = got[block.tensor][block.start // 8 : block.end // 8]
        assert np.isnan(here).all()
        assert all(part.spans is None for part in contributions)
        here[:] = combine(block.tensor, contributions)

    async def run() -> None:
        gathering = GradientBuffer(specs, weights, apply, barrier, 8 * block_items)
        for device, assembler in assemblers.items():
            gathering.open(device, assembler)
        for device, piece in order:
            assert assemblers[device].add(piece)
            gathering.arrived(device, piece.tensor, piece.offset, piece.offset + len(piece.data))
        await gathering.finish()

    asyncio.run(run())
    for name, array in got.items():
        whole = combine(name, [TensorContribution(weights[d], sent[d][name]) for d in sent])
        assert array.tobytes() == whole.tobytes()
