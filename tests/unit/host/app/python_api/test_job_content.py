"""What Python gives in place of array and job files."""

from pathlib import Path

import pytest

from csd_emu.config.array_file import ArrayConfig
from firmware_agent.common.errors import ConfigurationError
from host.app.python_api.commands import list_options
from host.app.python_api.job_content import read_job
from host.app.python_api.open_array import array_keys


def test_a_job_is_a_file_with_changes_or_keys_alone(tmp_path: Path) -> None:
    (tmp_path / "small net.yaml").write_text("{model: digits_cnn, data: {source: digits}, rounds: 2}")
    content, where, folder = read_job("small net.yaml", {"rounds": 6, "data.private": 0.5}, tmp_path, tmp_path)
    assert content["rounds"] == 6
    assert content["data"] == {"source": "digits", "private": 0.5}
    assert content["name"] == "small-net"
    assert (where, folder) == (str(tmp_path / "small net.yaml"), tmp_path)
    content, where, folder = read_job(None, {"model": "digits_cnn", "data": "digits"}, tmp_path, tmp_path)
    assert content == {"model": "digits_cnn", "data": {"source": "digits"}}
    assert (where, folder) == ("the job", tmp_path)


def test_changes_stand_in_place_of_a_mappings_own_and_only_of_those(tmp_path: Path) -> None:
    content, _, _ = read_job({"rounds": 2, "sync.precision": "fp16"}, {"rounds": 3}, tmp_path, tmp_path)
    assert content == {"rounds": 3, "sync": {"precision": "fp16"}}
    with pytest.raises(ConfigurationError, match=r"data and data\.source: one setting is given twice; leave one out"):
        read_job({"rounds": 2}, {"data": "digits", "data.source": "synthetic"}, tmp_path, tmp_path)


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("[1]")
    with pytest.raises(ConfigurationError, match="must be a mapping of keys to values"):
        read_job("job.yaml", {}, tmp_path, tmp_path)


def test_arguments_of_an_array_are_keys_of_its_file() -> None:
    assert array_keys(None, None, None, {})["devices"] == [{"profile": "newport", "count": 2}]
    assert array_keys(None, 3, "solana", {"engine": "native"}) == {
        "engine": "native",
        "devices": [{"profile": "solana", "count": 3}],
    }
    assert array_keys(Path("/a.yaml"), None, None, {}) == {"array": "/a.yaml"}
    ArrayConfig.model_validate({"name": "lab"} | array_keys(None, 3, "solana", {"engine": "native"}))


def test_two_arguments_that_say_which_drives_there_are_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="drives and devices both say which drives there are"):
        array_keys(None, 3, None, {"devices": [{"profile": "newport"}]})


def test_keywords_become_options() -> None:
    options = {"from_tables": True, "apply": False, "steps": 3, "include": ["csd-00", "csd-01"], "tuner": None}
    assert list_options(options) == ["--from-tables", "--steps", "3", "--include", "csd-00", "--include", "csd-01"]
