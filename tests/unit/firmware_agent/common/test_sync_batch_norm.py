"""Participants in threads against one plain torch process that sees all records."""

import copy
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from firmware_agent.common.errors import ModelError
from firmware_agent.common.sync_batch_norm import (
    Reduction,
    StatisticsExchange,
    SynchronisedBatchNorm,
    Values,
    freeze_statistics,
    synchronise,
)
from tests.support.examples import examples

T = TypeVar("T")
DEADLINE_SECONDS = 60.0


class Gathering:
    """Sums values over `count` threads, in the order of their numbers."""

    def __init__(self, count: int) -> None:
        self._values: list[Values] = [np.empty(0)] * count
        self._all_here = threading.Barrier(count, timeout=DEADLINE_SECONDS)
        self.sums = 0

    def member(self, number: int) -> Reduction:
        def reduce(values: Values) -> Values:
            self._values[number] = values
            self.sums += number == 0
            self._all_here.wait()
            total = np.sum(self._values, axis=0)
            self._all_here.wait()
            return total  # type: ignore[no-any-return]

        return reduce


def together(work: Sequence[Callable[[], T]]) -> list[T]:
    """The results of all, each in a thread of its own; the first error, if there is one."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = work[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(work))]


def joined(model: nn.Module, count: int) -> tuple[list[nn.Module], Gathering]:
    gathering = Gathering(count)
    models = []
    for number in range(count):
        meeting = StatisticsExchange()
        meeting.reduce = gathering.member(number)
        models.append(synchronise(copy.deepcopy(model), meeting))
    return models, gathering


@st.composite
def nets(draw: st.DrawFn) -> nn.Module:
    """Normalisation of images and of vectors, with and without its own parameters, statistics and momentum."""
    affine, track = draw(st.booleans()), draw(st.booleans())
    momentum = draw(st.sampled_from([0.1, 0.7, None]))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    norms = [
        nn.BatchNorm2d(4, draw(st.sampled_from([1e-5, 1e-3])), momentum, affine, track),
        nn.BatchNorm1d(5, momentum=momentum, affine=affine, track_running_stats=track),
    ]
    for norm in norms:
        if affine:
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
        if track:
            nn.init.normal_(norm.running_mean)
    # No bias before a normalisation: its gradient is zero but for rounding.
    convolution, linear = nn.Conv2d(2, 4, 3, bias=False), nn.Linear(4 * 9, 5, bias=False)
    layers = [convolution, norms[0], nn.ReLU(inplace=True), nn.Flatten(), linear, norms[1], nn.Tanh(), nn.Linear(5, 3)]
    return nn.Sequential(*layers).double()


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(40))
@given(
    model=nets(),
    batches=st.lists(st.integers(1, 6), min_size=2, max_size=4).filter(lambda sizes: sum(sizes) > 2),
    centre=st.sampled_from([0.0, 5.0]),
    seed=st.integers(0, 2**31),
)
def test_the_weighted_gradients_are_those_of_one_process_with_all_records(
    model: nn.Module, batches: list[int], centre: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    total = sum(batches)
    images = torch.randn(total, 2, 5, 5, generator=generator).double() + centre
    labels = torch.randint(0, 3, (total,), generator=generator)
    whole = copy.deepcopy(model)
    models, gathering = joined(model, len(batches))

    def backward(number: int) -> None:
        span = slice(sum(batches[:number]), sum(batches[: number + 1]))
        nn.functional.cross_entropy(models[number](images[span]), labels[span]).backward()

    together([lambda n=n: backward(n) for n in range(len(batches))])  # type: ignore[misc]
    nn.functional.cross_entropy(whole(images), labels).backward()
    assert gathering.sums == 4  # one per layer and direction
    grads = [dict(each.named_parameters()) for each in models]
    for name, parameter in whole.named_parameters():
        assert parameter.grad is not None
        mean = sum(each[name].grad * (size / total) for each, size in zip(grads, batches, strict=True))  # type: ignore[misc]
        torch.testing.assert_close(mean, parameter.grad, rtol=1e-9, atol=1e-12)
    for name, buffer in whole.named_buffers():
        for each in models:
            torch.testing.assert_close(dict(each.named_buffers())[name], buffer, rtol=1e-12, atol=1e-14)
    first = models[0].state_dict()
    assert all(torch.equal(t, first[name]) for each in models for name, t in each.state_dict().items() if "run" in name)


def test_single_precision_loses_nothing_beyond_its_own_rounding() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 3))
    images = torch.randn(8, 2, 5, 5) + 30
    whole = copy.deepcopy(model)
    models, _ = joined(model, 2)
    outputs = together([lambda: models[0](images[:3]), lambda: models[1](images[3:])])
    torch.testing.assert_close(torch.cat(outputs), whole(images), rtol=1e-4, atol=1e-4)


def test_names_and_tensors_of_the_state_stay() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, affine=False)))
    names = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    same = synchronise(model, StatisticsExchange())
    assert same is model
    assert {name: tensor.data_ptr() for name, tensor in same.state_dict().items()} == names
    assert [type(module) for module in same.get_submodule("1").children()] == [SynchronisedBatchNorm] * 2


def test_a_layer_used_twice_stays_one_layer_and_the_model_may_be_a_layer() -> None:
    layer = nn.BatchNorm1d(3)
    model = synchronise(nn.Sequential(layer, nn.ReLU(), layer), StatisticsExchange())
    assert model[0] is model[2]
    assert isinstance(synchronise(nn.BatchNorm1d(3), StatisticsExchange()), SynchronisedBatchNorm)


def test_alone_and_in_evaluation_it_is_plain_batch_normalisation() -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(3).double()
    ours = synchronise(copy.deepcopy(plain), StatisticsExchange())
    images = torch.randn(4, 3, 2, 2).double()
    torch.testing.assert_close(ours(images), plain(images), rtol=1e-12, atol=1e-12)
    plain.eval()
    ours.eval()
    torch.testing.assert_close(ours.running_mean, plain.running_mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours(images), plain(images), rtol=1e-12, atol=1e-12)
    untracked = nn.BatchNorm2d(3, track_running_stats=False).double().eval()
    torch.testing.assert_close(synchronise(copy.deepcopy(untracked), StatisticsExchange())(images), untracked(images))


def test_an_error_of_the_exchange_passes_through_the_backward_pass_unchanged() -> None:
    meeting = StatisticsExchange()
    model = synchronise(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), meeting)
    loss = model(torch.randn(4, 2)).square().sum()

    def cut(_: Values) -> Values:
        raise ConnectionError("cut")

    meeting.reduce = cut
    with pytest.raises(ConnectionError, match="cut"):
        loss.backward()


def test_one_value_in_all_is_refused_as_torch_does() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        synchronise(nn.BatchNorm1d(3), StatisticsExchange())(torch.ones(1, 3))


class Own(nn.BatchNorm1d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1


def test_what_cannot_be_synchronised_or_frozen_is_named() -> None:
    with pytest.raises(ModelError, match=r"layer '1.0' is a Own, which normalises in its own way"):
        synchronise(nn.Sequential(nn.ReLU(), nn.Sequential(Own(3))), StatisticsExchange())
    with pytest.raises(ModelError, match="70000 channels, the wire takes 65535"):
        synchronise(nn.Sequential(nn.BatchNorm1d(70_000)), StatisticsExchange())
    with pytest.raises(ModelError, match="layer '0' keeps no running statistics"):
        freeze_statistics(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)))


def test_frozen_statistics_stay_while_the_affine_part_learns() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).train()
    freeze_statistics(model)
    before = copy.deepcopy(model[1].state_dict())
    model(torch.randn(4, 2)).sum().backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model[1].state_dict().items())
    assert model[1].weight.grad is not None
    assert model[2].training
