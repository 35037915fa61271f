"""The host's part of a cut model against the whole model in one process: whatever it draws, normalises and mixes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from csd_lab.bench.training.gradient_reference import ReferenceParticipant, reference_step
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.slices import Array
from firmware_agent.common.split.cutting import cut_model
from firmware_agent.common.weights import state_arrays, tied_names, trained_names
from host.training.sync.server_model.activation_types import ActivationBatch
from host.training.sync.server_model.server_model import ServerModel

SEED, STEP, WIDTH, CLASSES = 3, 4, 6, 4
Values = Callable[["Net", torch.Tensor], torch.Tensor]


def tokens(net: Net, values: torch.Tensor) -> torch.Tensor:
    """Normalise what has three rows for each record."""
    flat = net.norm(values.view(-1, 3, WIDTH // 3).flatten(0, 1).repeat(1, 3))
    return flat.view(values.size(0), 3, WIDTH).mean(1)  # type: ignore[no-any-return]


def sequence_first(net: Net, values: torch.Tensor) -> torch.Tensor:
    """Drop what has the records in its second dimension."""
    return net.drop(values.view(-1, 3, 2).transpose(0, 1)).transpose(0, 1).flatten(1)  # type: ignore[no-any-return]


def centred(net: Net, values: torch.Tensor) -> torch.Tensor:
    """Take away the mean over the batch."""
    return values - values.mean(0)


def noisy(net: Net, values: torch.Tensor) -> torch.Tensor:
    return values + torch.randn_like(values)


def stochastic_depth(net: Net, values: torch.Tensor) -> torch.Tensor:
    return values * torch.bernoulli(values.new_full((values.size(0), 1), 0.999)) + values.tanh()


def drawn_rows(net: Net, values: torch.Tensor) -> torch.Tensor:
    return values * values.new_empty((values.size(0), 1)).uniform_()


def dropped_by_row(net: Net, values: torch.Tensor) -> torch.Tensor:
    """Draw where there is no record: one number for all of a batch."""
    return values * functional.dropout(torch.ones_like(values[:1]), 0.4)


def dropped_weight(net: Net, values: torch.Tensor) -> torch.Tensor:
    """Drop a weight that is as long as two drives' batches together."""
    return functional.linear(values, functional.dropout(net.square.weight, 0.5))


def by_function(net: Net, values: torch.Tensor) -> torch.Tensor:
    norm = net.plain
    return functional.batch_norm(values, norm.running_mean, norm.running_var, training=net.training)


def own_statistics(net: Net, values: torch.Tensor) -> torch.Tensor:
    net.mean.add_(values.detach().mean(0))
    return values - net.mean


def instances(net: Net, values: torch.Tensor) -> torch.Tensor:
    return net.instance(values.view(-1, 2, 3)).flatten(1)  # type: ignore[no-any-return]


def dropped(net: Net, values: torch.Tensor) -> torch.Tensor:
    return functional.dropout(net.drop(net.norm(values).tanh()), 0.3)


def dropped_in_place(net: Net, values: torch.Tensor) -> torch.Tensor:
    return net.in_place(net.square(values))  # type: ignore[no-any-return]


TOGETHER: list[Values] = [dropped, dropped_in_place, noisy, stochastic_depth, drawn_rows]
ALONE: list[Values] = [
    tokens, sequence_first, centred, dropped_by_row, dropped_weight, by_function, own_statistics, instances,
]  # fmt: skip


class Net(nn.Module):
    """A front of one layer, and a tail that does `middle` with what it gets."""

    def __init__(self, middle: Values) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.first, self.second = nn.Linear(5, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.plain = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH, affine=False)
        self.instance = nn.InstanceNorm1d(2, track_running_stats=True)
        self.drop, self.in_place = nn.Dropout(0.4), nn.Dropout(0.4, inplace=True)
        self.square, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.middle = middle

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self, self.second(self.first(images)).tanh()))  # type: ignore[no-any-return]


def make(middle: Values, batch_norm: str = "device") -> tuple[ServerModel, nn.Module]:
    model = Net(middle).double().train()
    weights = {name: array.copy() for name, array in state_arrays(model).items()}
    cut = cut_model(model, torch.zeros(2, 5, dtype=torch.float64), "second")
    return ServerModel(cut, weights, trained_names(model), tied_names(model), batch_norm, SEED), cut.front


def groups_of(sizes: list[int]) -> list[ReferenceParticipant]:
    generator = torch.Generator().manual_seed(1)
    return [
        ReferenceParticipant(
            f"csd-0{place}",
            torch.rand(sum(parts), 5, dtype=torch.float64, generator=generator),
            torch.arange(sum(parts)) % CLASSES,
            parts,
        )
        for place, parts in enumerate([(size,) for size in sizes])
    ]


def pass_through(
    tail: ServerModel, front: nn.Module, groups: list[ReferenceParticipant], step: int = STEP
) -> dict[str, Array]:
    """Return the tail's gradients and buffers, and the front's gradients."""
    passing = tail.begin(step)
    values = [front(group.images)[0] for group in groups]
    backs = passing.compute(
        [
            ActivationBatch(g.device, [value.detach().numpy()], g.labels.numpy())
            for g, value in zip(groups, values, strict=True)
        ]
    )
    total = sum(len(group.labels) for group in groups)
    for group, value, back in zip(groups, values, backs, strict=True):
        value.backward(torch.from_numpy(back.gradients["0"]) * (len(group.labels) / total))
    own = {name: each.grad.numpy() for name, each in front.named_parameters() if each.grad is not None}
    return passing.gradients() | passing.buffers() | own


@pytest.mark.parametrize("middle", [*TOGETHER, *ALONE])
@pytest.mark.parametrize("sizes", [[4, 2], [2, 3, 5], [3]])
def test_gradients_are_those_of_the_whole_model(middle: Values, sizes: list[int]) -> None:
    tail, front = make(middle)
    assert tail.together == (middle in TOGETHER)
    got = pass_through(tail, front, groups_of(sizes))
    want = reference_step(Net(middle).double(), "device", groups_of(sizes), SEED, STEP)
    for name, array in got.items():
        np.testing.assert_allclose(array, want[name], rtol=1e-10, atol=1e-12, err_msg=name)
    assert want.keys() - got.keys() <= {"mean", *(name for name in want if name.split(".")[0] in UNUSED)}


UNUSED = ("norm", "plain", "instance", "square")


@pytest.mark.parametrize("middle", [noisy, stochastic_depth, drawn_rows, dropped])
def test_what_is_drawn_is_another_in_another_step(middle: Values) -> None:
    """And the same in the same step; torch's generator is left alone."""
    tail, front = make(middle)
    state = torch.get_rng_state()
    first, again, other = (pass_through(tail, copy.deepcopy(front), groups_of([2, 3]), step) for step in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert first["last.weight"].tobytes() == again["last.weight"].tobytes()
    if middle is not stochastic_depth:  # which hardly ever leaves anything out
        assert not np.allclose(first["last.weight"], other["last.weight"])


@pytest.mark.parametrize("middle", [centred, dropped_by_row, sequence_first, by_function])
def test_with_synchronised_statistics_a_part_that_mixes_records_by_itself_is_refused(middle: Values) -> None:
    with pytest.raises(ConfigurationError, match="from 'second' on mixes the records of a batch, or draws"):
        make(middle, "synchronised")
    assert make(middle, "frozen")[0].together is False


@pytest.mark.parametrize("middle", [dropped, tokens])
def test_with_synchronised_statistics_all_records_are_normalised_together(middle: Values) -> None:
    tail, front = make(middle, "synchronised")
    got = pass_through(tail, front, groups_of([2, 4]))
    if middle is tokens:  # nothing is drawn: one group of all is the same
        whole = groups_of([2, 4])
        one = ReferenceParticipant(
            "csd-00", torch.cat([g.images for g in whole]), torch.cat([g.labels for g in whole]), (6,)
        )
        want = reference_step(Net(middle).double(), "device", [one], SEED, STEP)
        for name, array in got.items():
            np.testing.assert_allclose(array, want[name], rtol=1e-10, atol=1e-12, err_msg=name)
    assert all(np.isfinite(array).all() for array in got.values())


@pytest.mark.slow
def test_trying_it_leaves_no_trace() -> None:
    for middle in (*TOGETHER, *ALONE):
        model = Net(middle).double()
        before = {name: array.copy() for name, array in state_arrays(model).items()}
        cut = cut_model(model.train(), torch.zeros(2, 5, dtype=torch.float64), "second")
        weights = {name: array.copy() for name, array in before.items()}
        state = torch.get_rng_state()
        ServerModel(cut, weights, trained_names(model), tied_names(model), "device", SEED)
        assert torch.equal(state, torch.get_rng_state())
        assert all(array.tobytes() == before[name].tobytes() for name, array in weights.items())
        assert all(each.training for each in cut.tail.modules())
        assert all(each.grad is None for each in cut.tail.parameters())


def undefined(net: Net, values: torch.Tensor) -> torch.Tensor:
    """Has no value for some of what it is tried with."""
    return (values - 0.5).log().detach() + values


@pytest.mark.parametrize("mixes", [False, True])
def test_where_nothing_can_be_tried_each_drives_records_are_computed_alone(mixes: bool) -> None:
    def middle(net: Net, values: torch.Tensor) -> torch.Tensor:
        return undefined(net, centred(net, values) if mixes else values)

    assert not make(middle)[0].together


@pytest.mark.slow
def test_a_probes_pass_beside_a_steps_leaves_that_alone() -> None:
    """They are computed in threads, with one module, one generator of torch's and its buffers."""
    tail, front = make(dropped)
    groups, probed = groups_of([40, 30]), groups_of([50])
    want = pass_through(tail, copy.deepcopy(front), groups)
    for _ in range(20):
        begin, fronts = threading.Barrier(2), [copy.deepcopy(front) for _ in range(2)]

        def go(number: int, begin: threading.Barrier = begin, fronts: list[nn.Module] = fronts) -> dict[str, Array]:
            begin.wait(30.0)
            return pass_through(tail, fronts[number], groups if number == 0 else probed)

        with ThreadPoolExecutor(2) as pool:
            got, _ = pool.map(go, range(2))
        assert all(array.tobytes() == want[name].tobytes() for name, array in got.items())
