"""Files of a run become plain values, and no data set is loaded for that."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from firmware_agent.common.errors import ConfigurationError, DataError, PluginError
from host.app.prepare import prepare_run
from host.config.job_file import read_job
from host.config.resolve import JobChanges, check_plugins, resolve_run

ARRAY: dict[str, Any] = {
    "name": "lab",
    "engine": "native",
    "host": {"profile": "xeon-4108"},
    "devices": [{"profile": "newport"}],
}
JOB: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "./empty"}, "mode": "sync", "rounds": 1}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Job and array; the folder of the data set holds nothing."""
    (tmp_path / "empty").mkdir()
    for name, content in (("job", JOB), ("array", ARRAY)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return tmp_path / "job.yaml", tmp_path / "array.yaml"


def test_data_are_loaded_when_a_run_is_prepared_and_not_before(files: tuple[Path, Path]) -> None:
    resolved = resolve_run(*files)
    assert (resolved.config.name, resolved.whole, resolved.server_group) == ("lab", resolved.config, None)
    with pytest.raises(DataError, match="empty"):
        prepare_run(resolved)


def test_what_the_command_line_says_replaces_what_the_files_say(files: tuple[Path, Path]) -> None:
    changes = JobChanges(
        {"tuner": "stannis", "placement": "auto", "planner.prefer": "time", "planner.steps": 3}, "priority"
    )
    resolved = resolve_run(*files, changes=changes)
    job = resolved.job
    assert (job.tuner, job.communication.schedule, job.placement) == ("stannis", "priority", "auto")
    assert job.planner is not None
    assert (job.planner.prefer, job.planner.steps) == ("time", 3)


def test_neither_an_array_nor_servers_is_no_run(files: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigurationError, match="no array is given: name its file"):
        resolve_run(files[0], None)


@pytest.mark.parametrize("key", ["collate", "augment"])
def test_code_that_travels_is_looked_at_wherever_the_job_names_it(key: str, tmp_path: Path) -> None:
    named = {"collate": "mine.py:change", "augment": ["mine.py:change"]}[key]
    job = {"model": "digits_cnn", "data": {"source": "digits"}, key: named}
    array = {"name": "lab", "engine": "qemu", "devices": [{"profile": "newport"}]}
    for name, content in (("job", job), ("array", array)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    (tmp_path / "mine.py").write_text("def change(: pass\n", encoding="utf-8")
    with pytest.raises(PluginError, match=rf"job.yaml: {key} 'mine.py:change': cannot be imported: .*line 1"):
        check_plugins(read_job(tmp_path / "job.yaml"), tmp_path / "job.yaml")
    (tmp_path / "mine.py").write_text("import rich\ndef change(batch, *_, **__): return batch\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"mine.py:change: line 1 imports rich, which drives of this array do"):
        prepare_run(resolve_run(tmp_path / "job.yaml", tmp_path / "array.yaml"))
