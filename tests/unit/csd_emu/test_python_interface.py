"""The front door: what `csd_emu` has, that it is documented, and that its import is quick."""

import inspect

import pytest

import csd_emu
from firmware_agent.common.errors import CsdError

KINDS = {name: value for name in csd_emu.__all__ if inspect.isclass(value := getattr(csd_emu, name))}
ERRORS = {name for name, kind in KINDS.items() if issubclass(kind, CsdError)}
DOCUMENTED = sorted(set(csd_emu.__all__) - {"__version__"} - ERRORS)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_name_has_a_docstring_types_and_an_example(name: str) -> None:
    value = getattr(csd_emu, name)
    text = inspect.getdoc(value) or ""
    members = [each for each in vars(value).values() if inspect.isfunction(each)] if inspect.isclass(value) else [value]
    assert ">>> " in text, f"{name}: no example"
    for member in members:
        if not member.__name__.startswith("_") or member.__name__ == "__init__":
            assert inspect.getdoc(member), f"{name}.{member.__name__}"
            parameters = inspect.signature(member).parameters
            untyped = [each for each, kind in parameters.items() if kind.annotation is kind.empty and each != "self"]
            assert not untyped, f"{name}.{member.__name__}: {untyped}"


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_an_error_says_what_it_is(name: str) -> None:
    assert getattr(csd_emu, name).__doc__


def test_a_name_that_is_not_there_is_an_attribute_error_that_lists_what_is() -> None:
    with pytest.raises(AttributeError, match="module 'csd_emu' has no attribute 'Arrays'; it has Array"):
        _ = csd_emu.Arrays
    assert dir(csd_emu) == sorted(csd_emu.__all__)
