"""Laws of the strategies; local training is simulated, on quadratics whose minimum is known."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firmware_agent.common.clients.built_in_clients import effective_steps
from firmware_agent.common.errors import CheckpointError, ConfigurationError
from firmware_agent.common.slices import Array
from host.config.job_file import JobConfig
from host.policies.aggregation import (
    Clipped,
    Contribution,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedBn,
    FedBuff,
    FedNova,
    FedProx,
    FedYogi,
    Krum,
    Median,
    MultiKrum,
    PrivateFedAvg,
    Scaffold,
    Strategy,
    TrimmedMean,
    make_strategy,
)
from tests.support.examples import examples

PARAMETERS = ("w", "b")
MAKERS: dict[str, Callable[[], Strategy]] = {
    "fedavg": FedAvg,
    "fedprox": lambda: FedProx(0.1),
    "fednova": lambda: FedNova(0.9, PARAMETERS),
    "fedadam": lambda: FedAdam(0.1, 0.9, 0.99, 1e-3, parameters=PARAMETERS),
    "fedyogi": lambda: FedYogi(0.1, 0.9, 0.99, 1e-3, parameters=PARAMETERS),
    "fedadagrad": lambda: FedAdagrad(parameters=PARAMETERS),
    "private_fedavg": lambda: PrivateFedAvg(1.0, 0.5, parameters=PARAMETERS),
    "scaffold": lambda: Scaffold(parameters=PARAMETERS),
    "fedbuff": lambda: FedBuff(10, parameters=PARAMETERS),
}
numbers = st.floats(-100, 100, width=32)
momenta = st.just(0.0) | st.floats(0.01, 0.99)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[dict[str, Array], list[Contribution]]:
    """Global weights and contributions: a matrix, a vector, running statistics and an integer counter."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))

    def model() -> dict[str, Array]:
        return {
            "w": draw(hnp.arrays(np.float32, shape, elements=numbers)),
            "running_var": draw(hnp.arrays(np.float32, (2,), elements=st.floats(0, 100, width=32))),
            "b": draw(hnp.arrays(np.float32, (2,), elements=numbers)),
            "seen": np.asarray(draw(st.integers(0, 1000))),
        }

    parts = [
        Contribution(model(), draw(st.integers(1, 1000)), draw(st.integers(1, 50)))
        for _ in range(draw(st.integers(1, 4)))
    ]
    return model(), parts


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_names_order_types_and_shapes_stay_and_the_inputs_too(name: str, data: st.DataObject) -> None:
    before, parts = data.draw(rounds())
    copies = [{n: a.tobytes() for n, a in weights.items()} for weights in (before, *(p.weights for p in parts))]
    after = MAKERS[name]().aggregate(before, parts)
    assert list(after) == list(before)
    for key, array in after.items():
        assert (array.dtype, array.shape) == (before[key].dtype, before[key].shape)
    assert copies == [{n: a.tobytes() for n, a in weights.items()} for weights in (before, *(p.weights for p in parts))]


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_what_is_no_parameter_is_averaged_by_samples(name: str, data: st.DataObject) -> None:
    before, parts = data.draw(rounds())
    after, mean = MAKERS[name]().aggregate(before, parts), FedAvg().aggregate(before, parts)
    for key in ("running_var", "seen"):
        assert after[key].tobytes() == mean[key].tobytes()
    assert (after["running_var"] >= 0).all()


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_the_same_input_gives_the_same_bits_also_after_a_checkpoint(name: str, data: st.DataObject) -> None:
    first, second = MAKERS[name](), MAKERS[name]()
    before, parts = data.draw(rounds())
    other_parts = [Contribution(p.weights, p.samples, p.steps + 1) for p in reversed(parts)]
    one = first.aggregate(first.aggregate(before, parts), other_parts)
    middle = second.aggregate(before, parts)
    third = MAKERS[name]()
    third.load_state({key: array.copy() for key, array in second.state().items()})
    two = third.aggregate(middle, other_parts)
    assert {n: a.tobytes() for n, a in one.items()} == {n: a.tobytes() for n, a in two.items()}


@pytest.mark.parametrize("name", MAKERS)
def test_no_contribution_and_no_samples_are_refused(name: str) -> None:
    before: dict[str, Array] = {"w": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}
    for parts in ([], [Contribution(before, 0, 1)]):
        with pytest.raises(ConfigurationError, match="cannot average"):
            MAKERS[name]().aggregate(before, parts)


@pytest.mark.parametrize("name", MAKERS)
def test_the_state_of_another_strategy_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="not that of this strategy"):
        MAKERS[name]().load_state({"m/other": np.zeros(2)})


@settings(max_examples=examples(50))
@given(data=st.data(), momentum=momenta, steps=st.integers(1, 50))
def test_fednova_with_equal_steps_is_fedavg(data: st.DataObject, momentum: float, steps: int) -> None:
    before, parts = data.draw(rounds())
    equal = [Contribution(part.weights, part.samples, steps) for part in parts]
    nova, mean = FedNova(momentum, PARAMETERS).aggregate(before, equal), FedAvg().aggregate(before, equal)
    for name in before:
        np.testing.assert_allclose(nova[name], mean[name], rtol=1e-6, atol=2e-5)


@given(momentum=momenta, steps=st.integers(0, 60))
def test_effective_steps_are_the_sum_of_the_gradients_weights(momentum: float, steps: int) -> None:
    """A constant gradient of 1 through torch's rule, velocity = momentum * velocity + gradient, moves so far."""
    velocity = moved = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0
        moved += velocity
    assert effective_steps(steps, momentum) == pytest.approx(moved, rel=1e-9, abs=1e-9)


def local_sgd(start: float, centre: float, rate: float, momentum: float, steps: int) -> float:
    """Steps of gradient descent on (x - centre)^2 / 2."""
    x, velocity = start, 0.0
    for _ in range(steps):
        velocity = momentum * velocity + (x - centre)
        x -= rate * velocity
    return x


def fixed_point(strategy: Strategy, centres: Sequence[float], samples: Sequence[int], steps: Sequence[int]) -> float:
    """Where rounds converge to: a round is affine in the weights, so two evaluations tell."""

    def one_round(x: float) -> float:
        parts = [
            Contribution({"w": np.asarray(local_sgd(x, c, RATE, MOMENTUM, t))}, n, t)
            for c, n, t in zip(centres, samples, steps, strict=True)
        ]
        return float(strategy.aggregate({"w": np.asarray(x)}, parts)["w"])

    at_zero, at_one = one_round(0.0), one_round(1.0)
    return at_zero / (1.0 - (at_one - at_zero))


RATE, MOMENTUM = 1e-6, 0.5


@settings(max_examples=examples(50))
@given(data=st.data(), count=st.integers(2, 5))
def test_fednova_converges_to_the_minimum_of_the_objective_whatever_the_local_steps(
    data: st.DataObject, count: int
) -> None:
    """Up to first order in rate times steps: the drift of local training itself, which no averaging can undo."""
    draw = [data.draw(st.lists(s, min_size=count, max_size=count)) for s in (numbers, st.integers(1, 99))]
    centres, samples = draw
    steps = data.draw(st.lists(st.integers(1, 40), min_size=count, max_size=count))
    minimum = math.fsum(c * n for c, n in zip(centres, samples, strict=True)) / sum(samples)
    found = fixed_point(FedNova(MOMENTUM, {"w"}), centres, samples, steps)
    assert found == pytest.approx(minimum, abs=400 * 80 * RATE)


def test_fedavg_does_not() -> None:
    """The same setting, so that the law above can fail: a drive that takes 40 steps counts 40-fold."""
    centres, samples, steps = [0.0, 100.0], [1, 1], [1, 40]
    assert fixed_point(FedNova(MOMENTUM, {"w"}), centres, samples, steps) == pytest.approx(50.0, abs=0.05)
    assert fixed_point(FedAvg(), centres, samples, steps) > 95.0


def test_fednova_leaves_out_a_drive_that_took_no_step() -> None:
    before: dict[str, Array] = {"w": np.zeros(1)}
    parts = [Contribution({"w": np.ones(1)}, 10, 5), Contribution({"w": np.zeros(1)}, 10, 0)]
    # tau_eff is 2.5: half the drives' data took 5 steps.
    assert FedNova(0.0, {"w"}).aggregate(before, parts)["w"] == pytest.approx(0.25)


SECOND_MOMENTS: dict[type[FedAdam], Callable[[float, float], float]] = {
    FedAdam: lambda v, square: 0.95 * v + 0.05 * square,
    FedYogi: lambda v, square: v - 0.05 * square * math.copysign(1.0, v - square),
    FedAdagrad: lambda v, square: v + square,
}


@pytest.mark.parametrize("kind", SECOND_MOMENTS)
def test_adaptive_strategies_follow_the_papers_recursion(kind: type[FedAdam]) -> None:
    """Three rounds by hand, in scalars."""
    rate, beta1, tau = 0.3, 0.8, 0.01
    beta2 = {} if kind is FedAdagrad else {"beta2": 0.95}
    strategy = kind(learning_rate=rate, beta1=beta1, tau=tau, parameters={"w"}, **beta2)
    w, m, v = 1.0, 0.0, tau**2
    weights: dict[str, Array] = {"w": np.asarray(w)}
    for returned in ((2.0, 4.0), (1.0, -3.0), (0.5, 0.25)):
        mean = (returned[0] * 1 + returned[1] * 3) / 4
        parts = [Contribution({"w": np.asarray(x)}, n, 1) for x, n in zip(returned, (1, 3), strict=True)]
        weights = strategy.aggregate(weights, parts)
        delta = mean - w
        m, v = beta1 * m + (1 - beta1) * delta, SECOND_MOMENTS[kind](v, delta**2)
        w += rate * m / (math.sqrt(v) + tau)
        assert float(weights["w"]) == pytest.approx(w, rel=1e-12)


@settings(max_examples=examples(25))
@given(data=st.data(), seed=st.integers(0, 99))
def test_no_drive_moves_a_private_mean_by_more_than_its_share_and_the_noise_is_that_of_the_law(
    data: st.DataObject, seed: int
) -> None:
    before, parts = data.draw(rounds())
    quiet = PrivateFedAvg(0.5, 0.0, parameters=PARAMETERS).aggregate(before, parts)
    without = PrivateFedAvg(0.5, 0.0, parameters=PARAMETERS).aggregate(before, [*parts[:-1], parts[0]])
    for name in PARAMETERS:
        moved = np.linalg.norm(np.asarray(quiet[name] - without[name], np.float64))
        assert moved <= 2 * 0.5 / len(parts) + 1e-3
    wide: dict[str, Array] = {"w": np.zeros(4000), "b": np.zeros(2)}
    noisy = PrivateFedAvg(0.5, 2.0, seed, parameters=PARAMETERS).aggregate(wide, [Contribution(wide, 9, 1)] * 4)
    assert np.std(noisy["w"].astype(float)) == pytest.approx(2.0 * 0.5 / 4, rel=0.1)


def test_fedadam_with_a_huge_tau_is_a_step_along_the_mean_update() -> None:
    """With tau far above sqrt(v), w moves by (learning_rate / 2 tau) of the first moment: sqrt(v) starts at tau."""
    strategy = FedAdam(2e6, 0.0, 0.99, 1e6, parameters={"w"})
    after = strategy.aggregate({"w": np.zeros(3)}, [Contribution({"w": np.array([1.0, -2.0, 0.5])}, 5, 1)])
    np.testing.assert_allclose(after["w"], [1.0, -2.0, 0.5], rtol=1e-2)


def test_the_job_file_names_the_strategy(subtests: pytest.Subtests) -> None:
    for section, kind, proximal in [
        ("fedavg", FedAvg, 0.0),
        ({"name": "fedavg"}, FedAvg, 0.0),
        ("fedprox", FedProx, 0.01),
        ({"name": "fedprox", "mu": 0.5}, FedProx, 0.5),
        ("fednova", FedNova, 0.0),
        ({"name": "fedadam", "learning_rate": 0.1}, FedAdam, 0.0),
        ("fedyogi", FedYogi, 0.0),
        ("fedadagrad", FedAdagrad, 0.0),
        ({"name": "private_fedavg", "clip": 2, "noise": 0}, PrivateFedAvg, 0.0),
        ("scaffold", Scaffold, 0.0),
        ("fedbn", FedBn, 0.0),
        ({"name": "fedbuff", "buffer": 3}, FedBuff, 0.0),
        ("median", Median, 0.0),
        ({"name": "trimmed_mean", "discard": 0}, TrimmedMean, 0.0),
        ("krum", Krum, 0.0),
        ({"name": "multi_krum", "keep": 2}, MultiKrum, 0.0),
        ({"name": "fedprox", "mu": 0.5, "update_norm": 10}, Clipped, 0.5),
    ]:
        with subtests.test(section=section, kind=kind, proximal=proximal):
            job = JobConfig.model_validate({"model": "m", "data": {"source": "digits"}, "strategy": section})
            strategy = make_strategy(job.strategy, job.momentum, PARAMETERS)
            assert type(strategy) is kind
            assert strategy.proximal == proximal


@pytest.mark.parametrize("name", ["scaffold", "fedbn", "fednova"])
def test_a_strategy_whose_updates_are_shortened_still_says_what_it_needs(name: str) -> None:
    job = {"model": "m", "data": {"source": "digits"}, "strategy": {"name": name, "update_norm": 10}}
    section = JobConfig.model_validate(job).strategy
    clipped, plain = make_strategy(section, 0.0, PARAMETERS), make_strategy(name_alone(section), 0.0, PARAMETERS)
    for what in ("client", "counts_steps"):
        assert getattr(clipped, what, None) == getattr(plain, what, None)
    assert hasattr(clipped, "configure") == hasattr(plain, "configure")


def name_alone(section: Any) -> Any:
    return section.model_copy(update={"update_norm": None})


@settings(max_examples=examples(25))
@given(data=st.data())
def test_fedprox_averages_as_fedavg(data: st.DataObject) -> None:
    before, parts = data.draw(rounds())
    one, other = FedProx(0.3).aggregate(before, parts), FedAvg().aggregate(before, parts)
    assert {n: a.tobytes() for n, a in one.items()} == {n: a.tobytes() for n, a in other.items()}
