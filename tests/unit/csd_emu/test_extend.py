"""What users' code imports, and the paths of before."""

import importlib

import pytest

from csd_emu import extend


def test_each_name_stands_for_something(subtests: pytest.Subtests) -> None:
    for name in extend.__all__:
        with subtests.test(name=name):
            assert getattr(extend, name).__name__.split("[")[0] in {name, "NDArray", "ndarray"}


def test_an_unknown_name_is_told_with_those_that_there_are() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'FedAvgg'; it has Array, "):
        extend.FedAvgg  # noqa: B018


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("host.strategies", "Stateless"),
        ("host.strategies", "weighted_mean"),
        ("host.tuning", "FixedBatches"),
        ("host.pytest_plugin.array", "CsdArray"),
        ("firmware_agent.exchange", "Array"),
        ("firmware_agent.errors", "ConfigurationError"),
    ],
)
def test_an_old_path_works_with_a_warning_that_names_the_new_one(module: str, name: str) -> None:
    with pytest.warns(FutureWarning, match=f"{module} is deprecated: import {name} from csd_emu.extend"):
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(extend, name)
