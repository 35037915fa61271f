"""YAML from elsewhere: bounded, plain, and never anything but a ConfigurationError."""

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.servers_file import read_servers
from csd_emu.engines.remote.inventory import load_inventory
from csd_emu.util.config_files import load_config
from csd_emu.util.yaml_files import MOST_BYTES, MOST_CHARACTERS, MOST_DEPTH, MOST_VALUES, load_yaml, parse_yaml
from firmware_agent.common.errors import ConfigurationError
from host.monitoring.report.load_run import load_run

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)

_MANY = MOST_VALUES - 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(LAUGHS, "values", id="billion laughs"),
        pytest.param("a: &a [*a]", "stands for what it is in", id="recursive"),
        pytest.param("[" * 200, f"more than {MOST_DEPTH} deep", id="deep in brackets"),
        pytest.param("[" * 100_000, "deep|nesting depth", id="deeper than libyaml of its own goes"),
        pytest.param("".join(f"{' ' * n}k:\n" for n in range(MOST_DEPTH + 2)), "deep", id="deep by indentation"),
        pytest.param(f"[{'1,' * MOST_VALUES}1]", "values", id="many values"),
        pytest.param("x" * (MOST_BYTES + 1), "most that is read", id="large"),
        pytest.param("a: " + "1:" * 20_000 + "1", "too long", id="sexagesimal, which takes the square of its length"),
        pytest.param(f"a: 0x{'f' * 5000}", "too long", id="a number that cannot be printed"),
        pytest.param("a:\n  " + "x" * 1_000_000, r"more than 65536 characters.*line 2", id="a long value"),
        pytest.param("a: !" + "x" * 1_000_000 + " 1", "tag or anchor has more", id="a long tag"),
        pytest.param('a: "' + "\\n" * 250_000 + '"', "characters", id="escapes"),
        pytest.param("".join(f"%TAG !a{n}! b:\n" for n in range(60_000)) + "--- 1", "begin with %", id="directives"),
        pytest.param("- 1\n" * MOST_VALUES, "values.*line 3000", id="many values in lines"),
        pytest.param("a: !!timestamp x", "no valid YAML", id="tag that does not fit"),
        pytest.param("a: !!bool x", "no valid YAML", id="another"),
        pytest.param("a: !!timestamp 2026-13-45", "no valid YAML", id="impossible date"),
        pytest.param("{[1]: 2}", "no valid YAML", id="key that is a list"),
        pytest.param("!!python/object/apply:os.system [id]", "no valid YAML", id="a call"),
        pytest.param("a: 1\na: 2", "occurs twice", id="repeated key"),
    ],
)
def test_a_hostile_file_is_refused_at_once(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "array.yaml"
    path.write_text(text)
    began = time.thread_time()
    with pytest.raises(ConfigurationError, match=f"(?s){told}") as raised:
        load_config(path, ArrayConfig)
    assert time.thread_time() - began < 3
    assert str(raised.value).startswith(str(path))
    assert len(str(raised.value)) < 2000


@pytest.mark.slow
def test_many_keys_take_no_time_that_grows_with_their_square() -> None:
    began = time.thread_time()
    assert len(parse_yaml("{" + ", ".join(f"k{n}: 1" for n in range(_MANY // 2)) + "}", "here")) == _MANY // 2
    assert time.thread_time() - began < 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "- 1\n" * _MANY,
        "- 2026-01-01 10:10:10\n" * _MANY,
        "- 1.5e3\n" * _MANY,
        "\n".join(f"- &a{n} {n}" for n in range(_MANY)),
        "#\n" * 500_000,
        "".join(f"a{n}: {'x ' * (MOST_CHARACTERS // 2 - 10)}\n" for n in range(15)),
    ],
    ids=["integers", "dates", "numbers", "anchors", "comments", "long values"],
)
def test_what_is_within_the_bounds_is_read_at_once(text: str) -> None:
    assert len(text) <= MOST_BYTES
    began = time.thread_time()
    parse_yaml(text, "here")
    assert time.thread_time() - began < 3


@pytest.mark.slow
def test_an_inventory_of_3_000_drives_and_a_file_of_5_000_servers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    drives = "".join(
        f"  csd-{n:05d}: {{host: 10.0.{n // 250}.{n % 250}, port: 22, groups: [a]}}\n" for n in range(3_000)
    )
    path.write_text(f"name: all\ngroups: {{a: {{user: root}}}}\ndrives:\n{drives}")
    assert len(load_inventory(path).drives) == 3_000
    path.write_text(
        f"name: all\nservers:\n{''.join(f'- {{name: s{n}, array: a.yaml}}{chr(10)}' for n in range(5_000))}"
    )
    assert len(read_servers(path).names) == 5_000


def test_a_run_directory_is_read_with_the_same_bounds(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("")
    (tmp_path / "array.yaml").write_text(LAUGHS)
    with pytest.raises(ConfigurationError, match="values"):
        load_run(tmp_path)


def test_an_alias_in_measure_is_followed() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: [*a, *a]", "here") == {"a": {"x": 1}, "b": [{"x": 1}] * 2}


def test_an_error_shows_a_part_of_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "array.yaml"
    path.write_text(f"name: {'x' * 100_000}\n" + "".join(f"k{n}: 1\n" for n in range(1000)))
    with pytest.raises(ConfigurationError) as raised:
        load_config(path, ArrayConfig)
    assert len(str(raised.value)) < 20_000


@given(st.text(alphabet="ab:&*{}[]-,'\"!|>#%\n \t0x.~<?@", max_size=60))
def test_any_text_is_values_or_a_configuration_error(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        parse_yaml(text, "here")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"x\.yaml"):
        load_yaml(tmp_path / "x.yaml")
