"""What layers take by a clock, watched, and what is left of it when nobody watches."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.measure_frames import LayerTime
from firmware_agent.common.layer_costs import trace_layers
from firmware_agent.common.layer_seconds import LayerSeconds, layer_times, measure_layers, median_pass, unwatched

seconds = st.floats(0, 1e4)
counts = st.integers(0, 50)
layers = st.lists(st.tuples(seconds, counts), min_size=1, max_size=12)


class Functional(nn.Module):
    """Uses one module twice, a parameter without a module, functions, and memory in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = functional.relu(self.first(images.flatten(1)), inplace=True)
        values = torch.tanh(values * self.scale) + 1
        logits: torch.Tensor = self.last(self.first(values).relu_()).mul(2)
        return logits


def small() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))


def ticking() -> Callable[[], float]:
    """A clock that advances by a second whenever it is read."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


@given(layers, seconds)
def test_layers_add_up_to_the_unwatched_pass(parts: list[tuple[float, int]], whole: float) -> None:
    left = unwatched([each for each, _ in parts], [count for _, count in parts], whole)
    assert sum(left) == pytest.approx(whole, rel=1e-9, abs=1e-12)
    assert all(each >= 0 for each in left)


@given(st.lists(st.tuples(st.floats(1e-3, 1e4), counts), min_size=1, max_size=12), st.floats(0, 10))
def test_what_watching_takes_is_taken_off_exactly_where_every_look_takes_as_long(
    parts: list[tuple[float, int]], look: float
) -> None:
    seen = [own + look * count for own, count in parts]
    left = unwatched(seen, [count for _, count in parts], sum(own for own, _ in parts))
    assert left == pytest.approx([own for own, _ in parts], rel=1e-6, abs=1e-6 * max(seen))


@given(layers, st.floats(0, 1), st.integers(1, 9))
def test_of_layers_that_are_looked_at_as_often_the_longer_one_stays_longer(
    parts: list[tuple[float, int]], share: float, count: int
) -> None:
    seen = [each for each, _ in parts]
    left = unwatched(seen, [count] * len(seen), share * sum(seen))
    for (one, after), (other, behind) in itertools.combinations(zip(seen, left, strict=True), 2):
        assert one <= other or after >= behind * (1 - 1e-9)


def test_a_watched_pass_that_was_no_longer_is_scaled_and_one_of_nothing_is_even() -> None:
    assert unwatched([1.0, 3.0], [5, 5], 8.0) == (2.0, 6.0)
    assert unwatched([0.0, 0.0], [1, 1], 4.0) == (2.0, 2.0)
    assert unwatched([0.0, 0.0], [0, 0], 0.0) == (0.0, 0.0)
    # What is left of neither goes by what was seen.
    assert unwatched([1.0, 3.0], [1, 3], 0.0) == (0.0, 0.0)


@given(st.lists(st.lists(st.tuples(seconds, seconds), min_size=3, max_size=3), min_size=1, max_size=5))
def test_the_median_is_each_layers_own(passes: list[list[tuple[float, float]]]) -> None:
    seen = median_pass([[LayerSeconds(*each, 2, 1) for each in one] for one in passes])
    for place, layer in enumerate(seen):
        own = sorted(one[place][0] for one in passes)
        assert own[0] <= layer.forward_seconds <= own[-1]
        assert (layer.forward_looks, layer.backward_looks) == (2, 1)


def test_every_call_of_torch_is_a_look_and_every_gradient() -> None:
    model, images = small(), torch.ones(2, 3, 6, 6)
    works = trace_layers(model, images)
    conv, linear = measure_layers(model, lambda: model(images).sum(), ticking(), works)
    assert conv.forward_looks == 3  # the convolution, what is positive of it, and the same in one row
    assert linear.forward_looks == 2  # the product, and the loss
    assert (conv.backward_looks, linear.backward_looks) == (2, 2)


def test_what_no_module_computes_is_in_the_layer_that_it_comes_behind() -> None:
    model, images = Functional(), torch.rand(5, 1, 2, 2)
    works = trace_layers(model, images)
    assert [work.name for work in works] == ["first", "", "last"]
    now = ticking()
    begin = now()
    seen = measure_layers(model, lambda: functional.cross_entropy(model(images), torch.zeros(5).long()), now, works)
    assert sum(each.forward_seconds + each.backward_seconds for each in seen) == now() - begin - 2
    assert [each.backward_looks for each in seen] == [2, 1, 2]
    # Nothing of the pass is nobody's: the second use of the first layer is the second one's.
    assert sum(each.forward_looks for each in seen) > 8
    assert seen[1].forward_looks >= 5


def test_layer_times_add_up_to_the_median_step_and_say_what_was_seen() -> None:
    model, images = small(), torch.ones(2, 3, 6, 6)
    works = trace_layers(model, images)
    now = ticking()
    passes = [measure_layers(model, lambda: model(images).sum(), now, works) for _ in range(3)]
    steps = [PhaseSeconds(1.0, 3.0), PhaseSeconds(1.5, 2.0), PhaseSeconds(9.0, 4.0)]
    times = layer_times(works, passes, steps)
    assert [layer.name for layer in times.layers] == ["0", "3"]
    assert sum(layer.forward_seconds for layer in times.layers) == pytest.approx(1.5)
    assert sum(layer.backward_seconds for layer in times.layers) == pytest.approx(3.0)
    assert (times.watched, times.passes) == (PhaseSeconds(2.0, 5.0), 3)
    assert isinstance(times.layers[0], LayerTime)
