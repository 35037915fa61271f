"""Errors about keys of a file: where they stand, what is meant, and which file it is."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.servers_file import ServersConfig
from csd_emu.engines.remote.inventory import Inventory
from csd_emu.util.config_files import FILE_KINDS, Config, list_keys, load_config
from csd_emu.util.yaml_files import find_mark, load_nodes
from firmware_agent.common.errors import ConfigurationError
from host.config.job_file import JobConfig, read_job

KEYS = st.text("abcdefgh_", min_size=1, max_size=6)
CONTENTS = st.dictionaries(
    KEYS,
    st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)),
    max_size=4,
)


def places(value: Any, before: tuple[int | str, ...] = ()) -> Iterator[tuple[int | str, ...]]:
    """Yield the way to every key and entry."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*before, key)
        yield from places(inner, (*before, key))


@given(content=CONTENTS, flow=st.booleans())
def test_every_key_and_entry_is_found_where_it_stands(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any], flow: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "marks.yaml"
    text = yaml.safe_dump(content, default_flow_style=flow, sort_keys=False)
    path.write_text(text)
    lines, (_, node) = text.splitlines(), load_nodes(path)
    for place in places(content):
        line, column = (int(part.split()[1]) for part in find_mark(node, place).split(", "))
        there = lines[line - 1][column - 1 :]
        if isinstance(place[-1], str):
            assert there.startswith((place[-1], f"'{place[-1]}'", f"? {place[-1]}"))
    assert find_mark(node, ["there is none", "of these"]) == ""


def test_a_wrong_key_and_a_wrong_value_are_told_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: digits_cnn\ndata: {source: digits}\nrounds: many\nsync:\n  precisionn: fp16\n")
    with pytest.raises(ConfigurationError) as told:
        read_job(path)
    assert str(told.value).splitlines() == [
        f"{path}: sync.precisionn: unknown key; did you mean 'precision'? (line 5, column 3)",
        f"{path}: rounds: must be a whole number (it is 'many') (line 3, column 1)",
    ]


def test_what_the_command_line_gives_has_no_line(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: digits_cnn\ndata: {source: digits}\nrounds: 2\ntrack: [csv]\n")
    with pytest.raises(ConfigurationError, match=r"track\[1\]: .*\(it is 'nonsense'\)$"):
        read_job(path, {"track": ["csv", "nonsense"]})
    with pytest.raises(ConfigurationError, match=r"rounds: must be a whole number \(it is 'many'\)$"):
        read_job(path, {"rounds": "many"})


@pytest.mark.parametrize("kind", [JobConfig, ArrayConfig])
def test_synonyms_are_no_keys_and_stand_for_keys(kind: type[Config]) -> None:
    keys = set(list_keys(kind))
    assert kind.synonyms
    assert not set(kind.synonyms) & keys
    assert {meant.partition(":")[0] for meant in kind.synonyms.values()} <= keys


def test_a_key_by_its_name_elsewhere_is_answered_with_the_one_that_is_meant(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: digits_cnn\ndata: {source: digits}\nLR: 0.1\nnum_rounds: 3\n")
    with pytest.raises(ConfigurationError, match=r"(?s)LR: unknown key; it is called learning_rate.*called rounds"):
        read_job(path)


FILES: Mapping[type[Config], str] = {
    JobConfig: "model: digits_cnn\ndata: {source: digits}\n",
    ArrayConfig: "name: lab\ndevices: [{profile: newport}]\n",
    ServersConfig: "name: hall\nservers: [{name: a, array: array.yaml}]\n",
    Inventory: "name: lab\ndrives: {shelf-1: {host: 10.0.0.1}}\n",
}


@pytest.mark.parametrize("wanted", FILES)
@pytest.mark.parametrize("given_kind", FILES)
def test_a_file_of_another_kind_is_recognised(wanted: type[Config], given_kind: type[Config], tmp_path: Path) -> None:
    if wanted is given_kind:
        return
    path = tmp_path / "file.yaml"
    path.write_text(FILES[given_kind])
    is_this, expected = (FILE_KINDS[kind.__name__][0] for kind in (given_kind, wanted))
    told = f"this is {is_this}, where {expected} is expected"
    with pytest.raises(ConfigurationError, match=told):
        load_config(path, wanted)
