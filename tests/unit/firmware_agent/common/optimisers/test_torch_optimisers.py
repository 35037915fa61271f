import sys
from typing import Any

import pytest
import torch

from firmware_agent.common.errors import ModelError
from firmware_agent.common.optimisers.torch_optimisers import find_torch_optimiser, make_torch_optimiser


@pytest.mark.parametrize("name", ["Adam", "adam", "ADAM"])
def test_a_class_is_found_in_upper_and_lower_case(name: str) -> None:
    assert find_torch_optimiser(name) is torch.optim.Adam


@pytest.mark.parametrize(
    ("name", "match"),
    [("adamm", "did you mean 'Adam'"), ("lbfgs", "LBFGS cannot be used"), ("optimizer", "torch.optim has no")],
)
def test_what_cannot_be_used_is_named(name: str, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        find_torch_optimiser(name)


class Rateless(torch.optim.Optimizer):
    """Of the user's own: no learning rate, and a step with a decorator of its own."""

    def __init__(self, params: Any, pair: Any = ()) -> None:
        super().__init__(params, {"pair": pair})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(1.0)


def test_a_class_of_ones_own_keeps_its_step_and_gets_tuples_and_a_rate_if_it_takes_one() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    made = make_torch_optimiser(Rateless, [parameter], {"pair": [1, 2]}, 0.25)
    assert made.param_groups[0]["pair"] == (1, 2)
    made.step()
    assert parameter.tolist() == [1.0, 1.0]
    assert make_torch_optimiser(torch.optim.Adam, [parameter], {}, 0.25).param_groups[0]["lr"] == 0.25
    with pytest.raises(ModelError, match="what it made is a list"):
        make_torch_optimiser(lambda params: list(params), [parameter], {}, 0.1)
    assert Rateless.step.__module__ == sys.modules[__name__].__name__
