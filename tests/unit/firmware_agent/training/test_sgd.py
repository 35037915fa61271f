import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from firmware_agent.training.sgd import LocalSgd
from tests.support.examples import examples


def model_of(sizes: list[int], seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))


@settings(max_examples=examples(60))
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    rate=st.floats(1e-4, 1.0),
    momentum=st.just(0.0) | st.floats(0.01, 0.99),
    seed=st.integers(0, 2**31),
    skip=st.integers(-1, 5),
)
def test_it_is_torchs_sgd_step_for_step(sizes: list[int], rate: float, momentum: float, seed: int, skip: int) -> None:
    """Random gradients; parameter `skip` gets none in even steps, as a branch of a model that was not taken."""
    ours = model_of(sizes, seed)
    theirs = copy.deepcopy(ours)
    mine = LocalSgd(ours.parameters(), rate, momentum)
    reference = torch.optim.SGD(theirs.parameters(), lr=rate, momentum=momentum)
    for step in range(4):
        mine.zero_grad()
        reference.zero_grad(set_to_none=True)
        for number, (a, b) in enumerate(zip(ours.parameters(), theirs.parameters(), strict=True)):
            if number != skip or step % 2:
                a.grad = torch.randn_like(a)
                b.grad = a.grad.clone()
        mine.step()
        reference.step()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b)


@settings(max_examples=examples(40))
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    mu=st.floats(1e-3, 10.0),
    momentum=st.just(0.0) | st.floats(0.01, 0.99),
    seed=st.integers(0, 2**31),
)
def test_the_proximal_term_is_that_of_the_loss(sizes: list[int], mu: float, momentum: float, seed: int) -> None:
    """torch.optim.SGD on loss + mu/2 ||w - w_0||^2, differentiated by torch, takes the same steps."""
    ours = model_of(sizes, seed)
    theirs = copy.deepcopy(ours)
    start = [p.detach().clone() for p in theirs.parameters()]
    mine = LocalSgd(ours.parameters(), 0.01, momentum, mu)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=momentum)
    for _ in range(4):
        inputs = torch.randn(3, sizes[0])
        mine.zero_grad()
        ours(inputs).square().mean().backward()
        mine.step()
        reference.zero_grad()
        distance = sum((p - p0).square().sum() for p, p0 in zip(theirs.parameters(), start, strict=True))
        (theirs(inputs).square().mean() + mu / 2 * distance).backward()
        reference.step()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_strong_proximal_term_holds_the_weights_near_their_start() -> None:
    moved = []
    for mu in (0.0, 50.0):
        model = model_of([3, 2], 0)
        before = copy.deepcopy(model.state_dict())
        optimiser = LocalSgd(model.parameters(), 0.01, 0.0, mu)
        for _ in range(50):
            optimiser.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimiser.step()
        moved.append(sum(float((t - before[n]).norm()) for n, t in model.state_dict().items()))
    assert moved[1] < moved[0] / 10


def test_frozen_parameters_stay() -> None:
    model = model_of([2, 2], 0)
    model[0].weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    optimiser = LocalSgd(model.parameters(), 0.1, 0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimiser.step()
    assert torch.equal(model[0].weight, before["0.weight"])
    assert not torch.equal(model[0].bias, before["0.bias"])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_dropping_gradients_makes_a_step_do_nothing(momentum: float) -> None:
    model = model_of([2, 2], 0)
    optimiser = LocalSgd(model.parameters(), 0.1, momentum)
    model(torch.ones(1, 2)).sum().backward()
    optimiser.zero_grad()
    before = copy.deepcopy(model.state_dict())
    optimiser.step()
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
