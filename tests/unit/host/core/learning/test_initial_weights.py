import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from firmware_agent.common.errors import ModelError
from host.core.learning.initial_weights import read_initial_weights

State = dict[str, Any]


class Tied(nn.Module):
    """Two layers of which the second has the first one's weight, and running statistics."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second, self.norm = nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.second.weight = self.first.weight


def write(folder: Path, state: State, name: str = "w.pt") -> Path:
    path = folder / name
    if path.suffix == ".safetensors":
        save_file({key: tensor.clone() for key, tensor in state.items()}, path)
    else:
        torch.save(state, path)
    return path


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@given(seed=st.integers(1, 1000))
def test_a_file_of_a_models_weights_makes_another_the_same(
    seed: int, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wanted, model = Tied(seed), Tied()
    path = write(tmp_path_factory.mktemp("w"), wanted.state_dict(), name)
    assert read_initial_weights(path, model) == hashlib.sha256(path.read_bytes()).hexdigest()
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, wanted.state_dict()[key]), key
    assert model.second.weight is model.first.weight


def test_tied_weights_may_be_there_once(tmp_path: Path) -> None:
    state = dict(Tied(3).state_dict())
    del state["second.weight"]
    model = Tied()
    read_initial_weights(write(tmp_path, state), model)
    assert torch.equal(model.second.weight, state["first.weight"])


def changed(**changes: Any) -> State:
    state = {**Tied(3).state_dict(), **{key.replace("__", "."): value for key, value in changes.items()}}
    return {key: value for key, value in state.items() if value is not None}


BAD: list[tuple[Any, str]] = [
    (changed(first__bias=None), r"has no 'first.bias' \(1 such\); near it are 'first|has no 'first.bias'"),
    (changed(third__bias=torch.zeros(3)), "has, beside the model's, 'third.bias' .*; near it are first.bias"),
    (changed(first__bias=torch.zeros(4)), r"first.bias is \(4,\) float32, and the model's \(3,\) float32"),
    (changed(first__bias=torch.zeros(3, dtype=torch.float64)), r"first.bias is \(3,\) float64, and the model's"),
    (changed(first__bias=torch.tensor([0.0, float("nan"), 0.0])), "first.bias has values that are no finite numbers"),
    (changed(first__bias=torch.tensor([0.0, float("inf"), 0.0])), "first.bias has values that are no finite numbers"),
    ({"model": changed()}, "is no state dict, name -> tensor"),
    ([1, 2], "is no state dict, name -> tensor"),
    (nn.Linear(3, 3), "is no safetensors file and no torch state dict"),
    (changed(first__bias=torch.zeros(3).to_sparse()), "is no state dict, name -> tensor"),
    (changed(first__bias=torch.zeros(2_000_000)), "cannot be read .*has more than"),
]


@pytest.mark.parametrize(("state", "match"), BAD, ids=range(len(BAD)))
def test_what_is_no_such_file_is_refused_and_changes_nothing(state: Any, match: str, tmp_path: Path) -> None:
    model = Tied()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with pytest.raises(ModelError, match=f"initial_weights: .*w.pt {match}"):
        read_initial_weights(write(tmp_path, state), model)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_near_names_are_told_at_most_three(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_initial_weights(write(tmp_path, changed(first__weight=None, second__weight=None)), Tied())
    assert str(caught.value).partition("near it are ")[2].count(",") == 2


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.pt"):
        with pytest.raises(ModelError, match="cannot be read"):
            read_initial_weights(path, Tied())
    (tmp_path / "w.safetensors").write_bytes(b"no such thing")
    with pytest.raises(ModelError, match="is no safetensors file"):
        read_initial_weights(tmp_path / "w.safetensors", Tied())
