"""The host's optimiser against torch's own on a whole model, step for step."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from firmware_agent.common.errors import CheckpointError, ConfigurationError
from firmware_agent.common.slices import Array
from host.config.sync_section import OptimiserSection
from host.training.host_optimiser import HostOptimiser
from host.training.sync.step_batches import scale_learning_rate
from host.training.tensor_ranges import TensorRange

SHAPES = {"a.weight": (3, 4), "a.bias": (3,), "scale": ()}
OPTIMISERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"nesterov": True, "weight_decay": 0.01}),
    ("Adam", {"betas": [0.8, 0.9], "amsgrad": True}),
    ("AdamW", {}),
    ("Adagrad", {"lr_decay": 0.1}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("Rprop", {}),
    ("ASGD", {}),
    ("Adafactor", {}),
]
IDS = [f"{name}{number}" for number, (name, _) in enumerate(OPTIMISERS)]


def first_weights(dtype: type = np.float64) -> dict[str, Array]:
    generator = np.random.default_rng(0)
    return {name: np.asarray(generator.standard_normal(shape), dtype) for name, shape in SHAPES.items()}


def gradients(step: int, dtype: type = np.float64) -> dict[str, Array]:
    generator = np.random.default_rng([1, step])
    return {name: np.asarray(generator.standard_normal(shape), dtype) for name, shape in SHAPES.items()}


def optimiser(
    weights: dict[str, Array], name: str = "SGD", clip: float | None = None, **arguments: Any
) -> HostOptimiser:
    return HostOptimiser(weights, OptimiserSection(name=name, arguments=arguments), 0.1, 0.9, clip)


def rate(step: int) -> float:
    return 0.1 / (1 + step)


def plain(
    name: str, steps: int, dtype: type = np.float64, clip: float | None = None, **arguments: Any
) -> dict[str, Array]:
    """The weights after so many steps of torch's own optimiser over all parameters together."""
    parameters = {n: nn.Parameter(torch.from_numpy(array)) for n, array in first_weights(dtype).items()}
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    if name == "SGD":
        arguments.setdefault("momentum", 0.9)
    reference = getattr(torch.optim, name)(parameters.values(), lr=0.1, **arguments)
    for step in range(steps):
        reference.param_groups[0]["lr"] = rate(step)
        for n, gradient in gradients(step, dtype).items():
            parameters[n].grad = torch.from_numpy(gradient)
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters.values(), clip)
        reference.step()
    return {n: parameter.detach().numpy() for n, parameter in parameters.items()}


def same(one: dict[str, Array], other: dict[str, Array]) -> bool:
    return {n: a.tobytes() for n, a in one.items()} == {n: a.tobytes() for n, a in other.items()}


def test_tensor_by_tensor_in_any_order_it_is_torchs_own(subtests: pytest.Subtests) -> None:
    for name, arguments in OPTIMISERS:
        for dtype in [np.float32, np.float64]:
            with subtests.test(dtype=dtype, name=name, arguments=arguments):
                weights = first_weights(dtype)
                ours = optimiser(weights, name, **arguments)
                assert ours.needs_all is None
                for step in range(5):
                    todo = list(gradients(step, dtype).items())
                    for n, gradient in todo if step % 2 else reversed(todo):
                        ours.step_block(TensorRange(n, 0, gradient.nbytes), gradient, rate(step))
                assert same(weights, plain(name, 5, dtype, **arguments))


def test_a_resumed_optimiser_goes_on_to_the_bit(subtests: pytest.Subtests) -> None:
    for name, arguments in OPTIMISERS:
        with subtests.test(name=name, arguments=arguments):
            weights = first_weights()
            ours = optimiser(weights, name, **arguments)
            for step in range(3):
                ours.step_all(gradients(step), rate(step))
            state = {n: array.copy() for n, array in ours.state().items()}
            resumed = {n: array.copy() for n, array in weights.items()}
            again = optimiser(resumed, name, **arguments)
            again.load_state(state)
            assert same(again.state(), state)
            for step in range(3, 6):
                ours.step_all(gradients(step), rate(step))
                again.step_all(gradients(step), rate(step))
            assert same(resumed, weights)
            assert same(again.state(), ours.state())
            assert not same(again.state(), state) or not state


def test_a_fresh_optimiser_has_no_state_and_takes_none() -> None:
    weights = first_weights()
    ours = optimiser(weights)
    assert ours.state() == {}
    ours.step_all(gradients(0), 0.1)
    assert ours.state()
    ours.load_state({})
    assert ours.state() == {}


@pytest.mark.parametrize("clip", [0.5, 1e6])
def test_clipping_scales_the_whole_gradient_and_keeps_a_barrier(clip: float) -> None:
    weights = first_weights()
    ours = optimiser(weights, clip=clip)
    assert ours.needs_all is not None
    assert "clip_norm" in ours.needs_all
    with pytest.raises(ConfigurationError, match=r"a.bias cannot be stepped alone: clip_norm"):
        ours.step_block(TensorRange("a.bias", 0, 8), gradients(0)["a.bias"], 0.1)
    for step in range(3):
        before = gradients(step)
        ours.step_all(before, rate(step))
        assert same(before, gradients(step))  # the caller's gradients stay
    want = plain("SGD", 3, clip=clip)
    for n, array in weights.items():
        np.testing.assert_allclose(array, want[n], rtol=1e-12)


def test_a_gradient_that_is_not_a_number_is_not_hidden_by_clipping() -> None:
    weights = first_weights()
    optimiser(weights, clip=1.0).step_all(gradients(0) | {"scale": np.array(math.nan)}, 0.1)
    assert all(np.isnan(array).all() for array in weights.values())


def test_an_optimiser_that_is_not_known_to_work_tensor_by_tensor_keeps_a_barrier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Novel(torch.optim.SGD):
        pass

    monkeypatch.setattr(torch.optim, "Novel", Novel, raising=False)
    weights = first_weights()
    ours = optimiser(weights, "Novel", momentum=0.9)
    assert ours.needs_all == "whether torch.optim.Novel steps each tensor by itself is not known"
    for step in range(3):
        ours.step_all(gradients(step), rate(step))
    assert same(weights, plain("SGD", 3))
    assert len(set(map(id, ours._optimisers.values()))) == 1


def test_what_does_not_work_is_named_with_its_remedy(subtests: pytest.Subtests) -> None:
    for name, arguments, match in [
        ("adamww", {}, "torch.optim has no 'adamww'; did you mean 'AdamW'"),
        ("Adamm", {}, "did you mean 'Adam'"),
        ("Optimizer", {}, "torch.optim has no 'Optimizer'"),
        ("zzz", {}, "there are: ASGD, .*SGD"),
        ("LBFGS", {}, "LBFGS cannot be used: it evaluates the loss several times"),
        ("SparseAdam", {}, "SparseAdam cannot be used: it takes sparse gradients.*use Adam"),
        ("Adam", {"beta": [0.9, 0.9]}, r"arguments.beta: Adam does not take it; did you mean 'betas'"),
        ("Adam", {"zzz": 1}, r"arguments.zzz: Adam does not take it; there are: betas"),
        ("SGD", {"lr": 0.1}, r"arguments.lr: .* set learning_rate"),
        ("SGD", {"weight_decay": -1.0}, "torch.optim.SGD refuses this: Invalid weight_decay"),
        ("Adam", {"betas": 3}, "torch.optim.Adam refuses this"),
    ]:
        with (
            subtests.test(name=name, arguments=arguments, match=match),
            pytest.raises(ConfigurationError, match=match),
        ):
            optimiser(first_weights(), name, **arguments)


def test_gradients_of_other_tensors_are_refused() -> None:
    weights = first_weights()
    with pytest.raises(ConfigurationError, match="see scale"):
        optimiser(weights).step_all({n: g for n, g in gradients(0).items() if n != "scale"}, 0.1)
    assert same(weights, first_weights())


@pytest.mark.parametrize("entry", ["tensor/momentum_buffer/other", "odd/step/scale", "nonsense", "int/step/a.bias"])
def test_state_that_does_not_fit_is_refused_and_changes_nothing(entry: str) -> None:
    ours = optimiser(first_weights())
    ours.step_all(gradients(0), 0.1)
    before = {n: a.copy() for n, a in ours.state().items()}
    good = {"tensor/momentum_buffer/scale": np.array(1.0)}
    with pytest.raises(CheckpointError, match="does not fit this job's model or optimiser"):
        ours.load_state(good | {entry: np.ones(3)})
    assert same(ours.state(), before)


def test_state_that_cannot_be_written_down_is_named() -> None:
    ours = optimiser(first_weights())
    ours.step_all(gradients(0), 0.1)
    ours._optimisers["scale"].state[ours._parameters["scale"]]["odd"] = object()
    with pytest.raises(ConfigurationError, match="cannot write down odd, a object"):
        ours.state()


@given(base=st.floats(1e-6, 10), first=st.integers(1, 10_000), records=st.integers(1, 10_000))
def test_rules_for_the_learning_rate(base: float, first: int, records: int) -> None:
    def rate(rule: Any) -> float:
        return scale_learning_rate(rule, base, records, first)

    assert rate("constant") == base
    assert rate("linear") * first == pytest.approx(base * records)
    assert rate("sqrt") ** 2 == pytest.approx(rate("linear") * base)
    for rule in ("constant", "linear", "sqrt"):
        assert scale_learning_rate(rule, base, first, first) == base  # type: ignore[arg-type]


@pytest.mark.parametrize("records", [(0, 1), (1, 0), (-1, 5)])
def test_a_batch_without_records_has_no_rate(records: tuple[int, int]) -> None:
    with pytest.raises(ConfigurationError, match="must be positive"):
        scale_learning_rate("linear", 0.1, *records)
