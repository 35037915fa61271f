"""Keys in place of a job file's."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import ConfigurationError
from host.config.job_file import JobConfig
from host.config.overrides import chosen_keys, given_keys, merge_keys, override, parse_assignments

NAMES = st.sampled_from(["rounds", "sync", "precision", "data", "source"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(".".join)
PLAIN = st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="ascii", exclude_categories=["C"]))
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=5)


def read(content: Any, path: str) -> Any:
    for name in path.split("."):
        content = content[name]
    return content


@given(PATHS, VALUES)
def test_a_key_has_its_value_and_what_was_there_stays(path: str, value: Any) -> None:
    content = {"model": "digits_cnn", "sync": {"tuner": 1}}
    changed = override(content, {path: value}, "job.yaml")
    assert read(changed, path) == value
    assert changed["model"] == "digits_cnn"
    assert content == {"model": "digits_cnn", "sync": {"tuner": 1}}
    if not path.startswith("sync"):
        assert changed["sync"] == {"tuner": 1}


@given(PATHS, VALUES)
def test_an_assignments_value_is_yaml(path: str, value: Any) -> None:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
    assert parse_assignments([f"{path}={text}"], "--set") == {path: value}


@given(PATHS, PATHS)
def test_one_setting_given_twice_is_an_error_and_two_settings_are_not(one: str, other: str) -> None:
    same = one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
    values: dict[str, Any] = {one: 1}
    if not same:
        merge_keys(values, {other: 2}, "--set")
        assert values == {one: 1, other: 2}
        return
    with pytest.raises(ConfigurationError, match="given twice; leave one out"):
        merge_keys(values, {other: 2}, "--set")


@pytest.mark.parametrize("text", ["rounds", "=6", " = 6", ""])
def test_what_is_no_assignment_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write KEY=VALUE, for example --set rounds=6"):
        parse_assignments([text], "--set")


def test_an_assignment_that_is_no_yaml_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--set a=\[1: is no valid YAML"):
        parse_assignments(["a=[1"], "--set")


def test_a_key_of_what_is_no_section_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"job.yaml: rounds.of: rounds is no section but 4"):
        override({"rounds": 4}, {"rounds.of": 1}, "job.yaml")


def test_options_that_were_not_given_are_left_out() -> None:
    assert given_keys({"a": None, "b": [], "c": 0, "d": False, "e": [1]}) == {"c": 0, "d": False, "e": [1]}
    assert chosen_keys(["rounds=6"], {"seed": 3, "name": None}) == {"rounds": 6, "seed": 3}
    with pytest.raises(ConfigurationError, match="seed: one setting is given twice"):
        chosen_keys(["seed=6"], {"seed": 3})


def test_a_run_is_called_by_its_name_or_its_model() -> None:
    job = JobConfig.model_validate({"model": "nets/my_net.py:build", "data": {"source": "digits"}})
    assert job.run_name == "my_net"
    assert job.model_copy(update={"name": "wide"}).run_name == "wide"
