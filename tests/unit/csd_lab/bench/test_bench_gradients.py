import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from csd_lab.bench.training.bench_gradients import relative_errors
from csd_lab.bench.training.gradient_reference import ReferenceParticipant, reference_step
from firmware_agent.common.slices import Array


def test_relative_errors() -> None:
    want = {"a": np.array([3.0, 4.0]), "zero": np.zeros(2), "b": np.array([1e-14]), "count": np.array(7)}
    got = {"a": np.array([3.0, 4.5]), "zero": np.zeros(2), "b": np.array([2e-14]), "count": np.array(7)}
    errors = relative_errors(got, want, ["a", "zero", "b"])
    assert errors.vanishing == 2
    assert errors.values == pytest.approx({"a": 0.1, "zero": 0.0, "b": 2e-15, "count": 0.0})


@pytest.mark.parametrize(
    ("got", "want"), [([math.nan, 1.0], [1.0, 1.0]), ([math.inf, 1.0], [1.0, 1.0]), ([1.0, 0.0], [0.0, 0.0])]
)
def test_no_number_and_something_for_nothing_are_infinitely_wrong(got: list[float], want: list[float]) -> None:
    for gradients in ([], ["g"]):
        errors = relative_errors({"g": np.array(got)}, {"g": np.array(want)}, gradients)
        assert errors.values == {"g": math.inf}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)]
    return nn.Sequential(*layers).double()


def groups_of(sizes: list[int], seed: int, same: bool = False) -> list[ReferenceParticipant]:
    generator = torch.Generator().manual_seed(seed)
    groups = []
    for number, size in enumerate(sizes):
        images = torch.randn(size, 4, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, 3, (size,), generator=generator)
        groups.append(ReferenceParticipant("same" if same else f"csd-{number:02}", images, labels, (size,)))
    return groups


def close(one: dict[str, Array], other: dict[str, Array], names: list[str]) -> bool:
    return all(np.allclose(one[name], other[name], rtol=1e-10, atol=1e-13) for name in names)


NAMES = ["0.weight", "1.weight", "1.bias", "4.weight", "4.bias"]


@pytest.mark.slow
@given(sizes=st.lists(st.integers(2, 5), min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_frozen_groups_at_once_and_one_by_one_are_the_same(sizes: list[int], seed: int) -> None:
    """In the mean over all records, weighted by the groups' sizes."""
    groups = groups_of(sizes, seed)
    whole = reference_step(network(), "frozen", groups, 5, 1)
    parts = [reference_step(network(), "frozen", [group], 5, 1) for group in groups]
    total = sum(sizes)
    mean = {n: sum(p[n] * (s / total) for p, s in zip(parts, sizes, strict=True)) for n in NAMES}
    assert close(whole, mean, NAMES)


def test_a_single_group_is_the_same_by_its_own_and_by_all_statistics() -> None:
    group = groups_of([6], 3)
    own, all_of_them = (reference_step(network(), mode, group, 5, 1) for mode in ("device", "synchronised"))
    assert close(own, all_of_them, NAMES)
    assert not close(own, reference_step(network(), "frozen", group, 5, 1), NAMES)


def test_masks_are_those_of_seed_device_and_step() -> None:
    groups = groups_of([4, 4], 3)
    for mode in ("device", "synchronised", "frozen"):
        first = reference_step(network(), mode, groups, 5, 1)
        assert close(first, reference_step(network(), mode, groups, 5, 1), NAMES)
        for other in ((6, 1), (5, 2)):
            assert not close(first, reference_step(network(), mode, groups, *other), NAMES)
        renamed = [group._replace(device=f"x{group.device}") for group in groups]
        assert not close(first, reference_step(network(), mode, renamed, 5, 1), NAMES)


def test_by_definition_is_torchs_batch_normalisation() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 3)).double()
    nn.init.normal_(plain[1].weight)
    images, labels = torch.randn(5, 1, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    got = reference_step(copy.deepcopy(plain), "synchronised", [ReferenceParticipant("a", images, labels, (5,))], 0, 1)
    nn.functional.cross_entropy(plain(images), labels).backward()
    for name, parameter in plain.named_parameters():
        np.testing.assert_allclose(got[name], parameter.grad, rtol=1e-9, atol=1e-14)
    for name, buffer in plain.named_buffers():
        np.testing.assert_allclose(got[name], buffer, rtol=1e-12)
