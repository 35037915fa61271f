"""Laws of median, trimmed mean, Krum, Multi-Krum and norm clipping, with hostile drives among honest ones."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from csd_emu.config.array_file import ArrayConfig
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array
from host.app.prepare import prepare_run
from host.config.job_file import JobConfig
from host.config.resolve import ResolvedRun
from host.core.tensor_sums import BLOCK_ELEMENTS
from host.policies.aggregation import (
    Clipped,
    Contribution,
    FedAdam,
    FedAvg,
    FedNova,
    FedProx,
    Krum,
    Median,
    MultiKrum,
    Strategy,
    TrimmedMean,
    check_drives,
    make_strategy,
)
from host.policies.aggregation.clipping import update_norm
from host.policies.aggregation.krum import rank, squared_distances
from host.policies.aggregation.median import trimmed_mean
from host.policies.aggregation.update_direction import Directions, update_cosine
from tests.support.fakes import FakeDrive
from tests.unit.host.policies.aggregation.test_strategies import PARAMETERS
from tests.unit.host.training.test_federated import CutOff, Run, events

numbers = st.floats(-100, 100, width=32)
wild = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 3e38, -3e38])
SHAPES = {"w": (2, 3), "b": (2,), "running_var": (2,)}
ZERO: dict[str, Array] = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()} | {"seen": np.array(0)}
MAKERS: dict[str, Callable[[], Strategy]] = {
    "median": Median,
    "trimmed_mean": lambda: TrimmedMean(1),
    "krum": lambda: Krum(1, parameters=PARAMETERS),
    "multi_krum": lambda: MultiKrum(1, 2, parameters=PARAMETERS),
}


def model(draw: st.DrawFn, elements: st.SearchStrategy[float]) -> dict[str, Array]:
    arrays: dict[str, Array] = {n: draw(hnp.arrays(np.float32, s, elements=elements)) for n, s in SHAPES.items()}
    return arrays | {"seen": np.array(draw(st.integers(-(2**63), 2**63 - 1)))}


def contributions(models: Sequence[dict[str, Array]]) -> list[Contribution]:
    return [Contribution(weights, 10 + number, 5) for number, weights in enumerate(models)]


@st.composite
def arrays_under_attack(draw: st.DrawFn) -> tuple[list[dict[str, Array]], list[dict[str, Array]], int]:
    """Honest models, at most f hostile ones that return anything, and f, for n > 2f + 2."""
    f = draw(st.integers(0, 2))
    hostile = [model(draw, wild) for _ in range(draw(st.integers(0, f)))]
    least = 2 * f + 3 - len(hostile)
    return [model(draw, numbers) for _ in range(draw(st.integers(least, least + 2)))], hostile, f


def bits(weights: dict[str, Array]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in weights.items()}


@pytest.mark.slow
@given(attack=arrays_under_attack(), kind=st.sampled_from(["median", "trimmed_mean"]))
def test_every_coordinate_lies_between_the_honest_drives_whatever_f_others_return(
    attack: tuple[list[dict[str, Array]], list[dict[str, Array]], int], kind: str
) -> None:
    honest, hostile, f = attack
    strategy = Median() if kind == "median" else TrimmedMean(f)
    after = strategy.aggregate(ZERO, contributions([*hostile, *honest]))
    for name in ZERO:
        values = np.stack([weights[name] for weights in honest])
        assert (values.min(axis=0) <= after[name]).all()
        assert (after[name] <= values.max(axis=0)).all()


@given(data=st.data(), kind=st.sampled_from(sorted(MAKERS)))
def test_the_order_of_the_drives_is_nothing_to_the_result_to_the_bit(data: st.DataObject, kind: str) -> None:
    honest, hostile, _ = data.draw(arrays_under_attack())
    honest += honest[:2]  # equal ones have equal scores
    parts = contributions([*honest, *hostile])
    mixed = data.draw(st.permutations(parts))
    assert bits(MAKERS[kind]().aggregate(ZERO, parts)) == bits(MAKERS[kind]().aggregate(ZERO, mixed))


@given(data=st.data(), kind=st.sampled_from(["trimmed_mean", "multi_krum"]))
def test_with_nothing_discarded_it_is_fedavg_of_equal_samples(data: st.DataObject, kind: str) -> None:
    count = data.draw(st.integers(3, 6))
    models = [model(data.draw, numbers) | {"seen": np.array(data.draw(st.integers(0, 1000)))} for _ in range(count)]
    parts = [Contribution(weights, 7, 5) for weights in models]
    strategy = TrimmedMean(0) if kind == "trimmed_mean" else MultiKrum(0, count, parameters=PARAMETERS)
    after, mean = strategy.aggregate(ZERO, parts), FedAvg().aggregate(ZERO, parts)
    for name in PARAMETERS:
        np.testing.assert_allclose(after[name], mean[name], rtol=1e-6, atol=1e-6)
    # Sums in another order may lie on the other side of a half, so the two integers may be neighbours there.
    exact = sum(int(weights["seen"]) for weights in models) / count
    assert max(abs(int(each["seen"]) - exact) for each in (after, mean)) <= 0.5


@given(attack=arrays_under_attack(), keep=st.integers(1, 8), seed=st.integers(0, 99), far=st.floats(1e3, 1e30))
def test_krum_returns_an_input_and_never_keeps_a_far_one(
    attack: tuple[list[dict[str, Array]], list[dict[str, Array]], int], keep: int, seed: int, far: float
) -> None:
    """Honest drives within r of a point; hostile ones beyond r + 2r sqrt((n-f-2) / (n-2f-1)) are never kept."""
    honest, hostile, f = attack
    generator, n = np.random.default_rng(seed), len(honest) + len(hostile)
    for weights in hostile:  # in the reach of float32, all in one place, which the honest ones are not
        weights["w"] = np.full((2, 3), far, np.float32)
    parts = [Contribution(weights, 1, 1) for weights in (*honest, *hostile)]
    order = generator.permutation(n)
    trained = [{name: parts[index].weights[name] for name in PARAMETERS} for index in order]
    kept = [int(order[index]) for index in rank(trained, n - f - 2)[: min(keep, n - f)]]
    radius = 100 * math.sqrt(8)
    if far > radius * (1 + 2 * math.sqrt((n - f - 2) / (n - 2 * f - 1))):
        assert all(index < len(honest) for index in kept)
    one = Krum(f, parameters=PARAMETERS).aggregate(ZERO, parts)
    assert any(all((one[name] == part.weights[name]).all() for name in PARAMETERS) for part in parts)


def test_krum_looks_at_trained_weights_alone_and_bounds_the_buffers_by_itself() -> None:
    models = [{n: a.copy() for n, a in ZERO.items()} | {"b": np.full(2, i, np.float32)} for i in (0, 1.5, 2, 2.5, 9)]
    models[2]["running_var"] = np.full(2, 1e30, np.float32)  # the drive in the middle, chosen by what it trained
    after = Krum(1, parameters=PARAMETERS).aggregate(ZERO, contributions(models))
    assert after["b"].tolist() == [2.0, 2.0]
    assert after["running_var"].tolist() == [0.0, 0.0]


def test_weights_that_are_no_numbers_are_infinitely_far() -> None:
    good, bad = {"w": np.ones(2, np.float32)}, {"w": np.array([np.nan, 1], np.float32)}
    distances = squared_distances([good, bad, good])
    assert distances.tolist() == [[0, math.inf, 0], [math.inf, 0, math.inf], [0, math.inf, 0]]


@given(data=st.data(), block=st.integers(1, 9))
def test_blocks_change_nothing_and_large_tensors_agree_with_numpy(data: st.DataObject, block: int) -> None:
    values = data.draw(hnp.arrays(np.float64, (5, 8), elements=st.floats(-1e6, 1e6)))
    weights: list[dict[str, Array]] = [{"w": row} for row in values]
    whole, parts = trimmed_mean(weights, 1), trimmed_mean(weights, 1, block)
    assert bits(whole) == bits(parts)
    np.testing.assert_allclose(whole["w"], np.sort(values, axis=0)[1:-1].mean(axis=0), rtol=1e-12, atol=1e-6)
    expected = ((values[:, None] - values[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(squared_distances(weights, block), expected, rtol=1e-9)


@pytest.mark.slow
def test_a_tensor_that_the_cores_share_is_the_median_of_numpy() -> None:
    models = np.random.default_rng(0).standard_normal((5, (1 << 20) + BLOCK_ELEMENTS + 3), np.float32)
    after = Median().aggregate({"w": models[0]}, contributions([{"w": row} for row in models]))
    assert np.array_equal(after["w"], np.median(models, axis=0))


@given(data=st.data(), bound=st.floats(1e-3, 1e3))
def test_a_clipped_update_has_at_most_the_bounds_norm_and_keeps_its_direction(
    data: st.DataObject, bound: float
) -> None:
    before, weights = model(data.draw, numbers), model(data.draw, numbers) | {"seen": np.array(7)}
    part = Contribution(weights, 3, 2)
    after = Clipped(FedAvg(), bound, PARAMETERS).aggregate(before, [part])
    rounding = np.finfo(np.float32).eps * 200 * math.sqrt(8)
    assert update_norm(before, after, PARAMETERS) <= bound + rounding
    whole = update_norm(before, part.weights, PARAMETERS)
    for name in PARAMETERS:
        wanted = before[name] + min(1.0, bound / max(whole, 1e-9)) * (
            part.weights[name].astype(np.float64) - before[name]
        )
        np.testing.assert_allclose(after[name], wanted, rtol=1e-6, atol=rounding)  # type: ignore[call-overload]
    assert bits({"v": after["running_var"]}) == bits({"v": part.weights["running_var"] + np.float32(0)})


def test_a_bound_that_no_update_reaches_changes_nothing_to_the_bit(subtests: pytest.Subtests) -> None:
    makers: list[Callable[[], Strategy]] = [
        *MAKERS.values(),
        FedAvg,
        lambda: FedProx(0.1),
        lambda: FedNova(0.9, PARAMETERS),
        lambda: FedAdam(0.1, 0.9, 0.99, 1e-3, parameters=PARAMETERS),
    ]
    for make in makers:
        with subtests.test(make=make):
            generator = np.random.default_rng(1)
            models = [
                {n: generator.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()} | {"seen": np.array(4)}
                for _ in range(6)
            ]
            parts, clipped, plain = contributions(models), Clipped(make(), 1e6, PARAMETERS), make()
            for _ in range(2):
                assert bits(clipped.aggregate(ZERO, parts)) == bits(plain.aggregate(ZERO, parts))
            assert (clipped.proximal, clipped.least_contributions) == (plain.proximal, plain.least_contributions)
            assert bits(clipped.state()) == bits(plain.state())
            again = Clipped(make(), 1e6, PARAMETERS)
            again.load_state(clipped.state())
            assert bits(again.aggregate(ZERO, parts)) == bits(plain.aggregate(ZERO, parts))


@given(weights=hnp.arrays(np.float32, (3,), elements=wild).filter(lambda values: not np.isfinite(values).all()))
def test_an_update_without_a_norm_counts_as_none(weights: Array) -> None:
    before: dict[str, Array] = {"w": np.array([1, 2, 3], np.float32)}
    after = Clipped(FedAvg(), 1.0, {"w"}).aggregate(before, [Contribution({"w": weights}, 1, 1)])
    assert bits(after) == bits(before)


def test_how_many_drives_a_strategy_needs(subtests: pytest.Subtests) -> None:
    for section, least in [
        ("fedavg", 1),
        ("median", 3),
        ("trimmed_mean", 3),
        ({"name": "trimmed_mean", "discard": 0}, 1),
        ({"name": "trimmed_mean", "discard": 3, "update_norm": 10}, 7),
        ("krum", 5),
        ({"name": "krum", "hostile": 2}, 7),
        ({"name": "multi_krum", "hostile": 2}, 7),
        ({"name": "multi_krum", "hostile": 2, "keep": 6}, 8),
    ]:
        with subtests.test(section=section, least=least):
            job = JobConfig.model_validate({"model": "m", "data": {"source": "digits"}, "strategy": section})
            strategy: Strategy = make_strategy(job.strategy, job.momentum, PARAMETERS)
            check_drives(strategy, job.strategy.name, least)
            with pytest.raises(
                ConfigurationError, match=f"needs the weights of {least} drives in a round, and {least - 1} take"
            ):
                check_drives(strategy, job.strategy.name, least - 1)
            with pytest.raises(ConfigurationError, match="cannot average"):
                strategy.aggregate(ZERO, contributions([ZERO] * (least - 1)))


@pytest.mark.parametrize("participation", [{"share": 1.0}, {"count": 3}])
def test_a_run_that_can_never_have_as_many_drives_is_refused_before_it_starts(participation: dict[str, Any]) -> None:
    array = ArrayConfig.model_validate({"name": "a", "devices": [{"profile": "newport", "count": 4}]})
    job = JobConfig.model_validate(
        {"model": "digits_cnn", "data": {"source": "digits"}, "strategy": "krum", "participation": participation}
    )
    with pytest.raises(ConfigurationError, match=r"strategy krum: needs the weights of 5 drives .* participation"):
        prepare_run(ResolvedRun(array, job, ShippedCode(job.model)))


async def test_a_round_with_too_few_drives_left_keeps_the_weights_and_says_so() -> None:
    drives = [FakeDrive(f"csd-0{number}", step=float(number)) for number in range(2)]
    run = Run(*drives, CutOff("csd-02", step=9.0), rounds=2, strategy="trimmed_mean")
    await run.run()
    assert {float(value) for value in run.weights["w"].flat} == {1.0}  # of 0, 1 and 9; nothing came of round 2
    note = "host: note round 2: 2 drives' weights can be used, and strategy trimmed_mean needs 3; the weights stay"
    assert note in events(run.records)


@given(data=st.data(), scale=st.floats(0.1, 10))
def test_the_cosine_of_updates_is_that_of_numpy(data: st.DataObject, scale: float) -> None:
    before, one, other = (model(data.draw, numbers) for _ in range(3))
    u, v = (
        np.concatenate([(part[n].astype(np.float64) - before[n]).reshape(-1) for n in PARAMETERS])
        for part in (one, other)
    )
    lengths = np.linalg.norm(u) * np.linalg.norm(v)
    expected = float(u @ v / lengths) if lengths else 0.0
    assert update_cosine(before, one, other, PARAMETERS) == pytest.approx(expected, abs=1e-9)
    assert -1.000001 <= update_cosine(before, one, other, PARAMETERS) <= 1.000001


@given(wild_one=hnp.arrays(np.float32, (3,), elements=wild))
def test_a_cosine_is_a_number_whatever_the_update(wild_one: Array) -> None:
    start: dict[str, Array] = {"w": np.zeros(3, np.float32)}
    assert math.isfinite(update_cosine(start, {"w": wild_one}, {"w": np.ones(3, np.float32)}, ["w"]))


def test_a_drive_that_points_away_is_told_of_once_after_three_rounds_running() -> None:
    start: dict[str, Array] = {"w": np.zeros(2)}
    after: dict[str, Array] = {"w": np.array([1.0, 1.0])}
    honest: dict[str, Array] = {"w": np.array([2.0, 0.5])}
    flipped: dict[str, Array] = {"w": -honest["w"]}  # type: ignore[misc]
    directions, told = Directions({"w"}), []
    for turned in (flipped, flipped, honest, flipped, flipped, flipped, flipped):
        resumed = Directions({"w"})  # a run that is resumed before each round counts on
        resumed.load_state(directions.state())
        directions = resumed
        told.append(set(directions.watch(start, after, {"good": honest, "bad": turned})))
    assert told == [set(), set(), set(), set(), set(), {"bad"}, set()]


async def test_a_flipped_sign_is_held_off_and_named_by_a_robust_strategy() -> None:
    drives = [FakeDrive(f"csd-0{number}", step=1.0 + number / 10) for number in range(3)]
    run = Run(*drives, FakeDrive("csd-03", step=-1.0), rounds=4, strategy="median")
    await run.run()
    assert float(run.weights["w"].flat[0]) == pytest.approx(4 * 1.05)
    away = "in round 3: its updates point away from what median makes of all, 3 rounds running (cosine -1.00)"
    assert [event for event in events(run.records) if "away" in event] == [f"csd-03: note {away}"]
