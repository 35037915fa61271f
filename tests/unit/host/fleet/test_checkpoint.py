import dataclasses
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles import Sourced, core_sharing, get_profile
from firmware_agent.common.errors import CheckpointError, EnvironmentUnfit
from firmware_agent.common.slices import Array
from host.config.job_file import JobConfig
from host.core.states.training_state import TrainingState
from host.fleet import checkpoint as checkpoint_module
from host.fleet.checkpoint import FORMAT, Checkpoint, Header, job_sha256, load_checkpoint, save_checkpoint
from tests.support.strategies import arrays

ARRAY = {"name": "lab", "engine": "native", "devices": [{"profile": "newport", "count": 2}]}
JOB_FILE = {"model": "digits_cnn", "data": {"source": "digits"}}


def checkpoint(round_number: int = 3, size: int = 6, value: float = 1.0) -> Checkpoint:
    weights: dict[str, Array] = {"w": np.full(size, value, np.float32), "seen": np.asarray(7)}
    state = TrainingState(round_number, 0.1 + 0.2, 1 / 3, weights, {"m/w": np.full(size, 0.25)})
    return Checkpoint(state, 12.5)


def same(one: Checkpoint, other: Checkpoint | None) -> bool:
    """Whether both say the same to the bit; the byte order in memory may differ."""

    def tensor(array: Array) -> tuple[str, tuple[int, ...], bytes]:
        little = array.astype(array.dtype.newbyteorder("<"))
        return little.dtype.newbyteorder("<").str, array.shape, little.tobytes()

    def content(c: Checkpoint) -> list[Any]:
        parts = (c.state.weights, c.state.strategy)
        tensors = [{name: tensor(array) for name, array in part.items()} for part in parts]
        return [c.state.round, c.state.accuracy, c.state.array_seconds, c.wall_seconds, tensors]

    return other is not None and content(one) == content(other)


@given(weights=arrays(), strategy=arrays(), seconds=st.floats(0, 1e9), accuracy=st.floats(0, 1))
def test_what_was_written_comes_back_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory,
    weights: dict[str, Array],
    strategy: dict[str, Array],
    seconds: float,
    accuracy: float,
) -> None:
    path = tmp_path_factory.mktemp("checkpoint") / "checkpoint.safetensors"
    written = Checkpoint(TrainingState(5, accuracy, seconds, weights, strategy), seconds)
    save_checkpoint(path, written, "job")
    assert same(written, load_checkpoint(path, "job"))
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_there_may_be_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "none", "job") is None


def test_it_is_a_safetensors_file_that_others_can_read(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", checkpoint(), "job")
    assert set(load_file(tmp_path / "c")) == {"weights/w", "weights/seen", "strategy/m/w"}


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, checkpoint(), "job")
    whole = path.read_bytes()
    for length in {0, 1, 7, 8, 9, 50, len(whole) // 2, len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"c: is cut short or damaged .*restore the file"):
            load_checkpoint(path, "job")


@given(data=st.data())
def test_any_flipped_bit_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("checkpoint") / "c"
    save_checkpoint(path, checkpoint(), "job")
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        found = load_checkpoint(path, "job")
    except CheckpointError:
        return
    # What is left: a bit that changed nothing of the content, such as white space in the header.
    assert same(checkpoint(), found)


def test_a_checkpoint_of_another_job_is_refused_with_what_may_change(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", checkpoint(), "job")
    with pytest.raises(CheckpointError, match=r"of another job than lies beside it.*only rounds, target"):
        load_checkpoint(tmp_path / "c", "other")


def rewritten(path: Path, **changes: Any) -> None:
    """Write the file again with another header."""
    with safe_open(path, "np") as file:
        fields = msgspec.json.decode(file.metadata()["checkpoint"])
    text = msgspec.json.encode(fields | changes).decode()
    path.write_bytes(save(load_file(path), {"checkpoint": text}))


def test_a_newer_format_says_so_even_if_its_fields_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, checkpoint(), "job")
    rewritten(path, format=FORMAT + 1, job_sha256=None)
    with pytest.raises(CheckpointError, match=rf"has format {FORMAT + 1}, this csd-emu reads {FORMAT}; upgrade"):
        load_checkpoint(path, "job")


@pytest.mark.parametrize("changes", [{"round": 4}, {"array_seconds": 0.5}, {"round": "x"}, {"format": 0}])
def test_a_header_that_was_edited_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, checkpoint(), "job")
    rewritten(path, **changes)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path, "job")


def test_a_safetensors_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(save({"w": np.zeros(3)}))
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(tmp_path / "c", "job")


@pytest.fixture
def small_files() -> Iterator[int]:
    """Files of this process may hold at most a megabyte: what the kernel says then, it also says of a full quota."""
    limit, before = 1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path: Path, small_files: int) -> None:
    path = tmp_path / "run" / "c"
    path.parent.mkdir()
    save_checkpoint(path, checkpoint(2), "job")
    with pytest.raises(EnvironmentUnfit) as caught:
        save_checkpoint(path, checkpoint(3, size=small_files), "job")
    assert caught.value.exit_code == 2
    for words in (f"{path}: the checkpoint of round 3", os.strerror(errno.EFBIG), "12.6 MB", f"--resume {path.parent}"):
        assert words in str(caught.value)
    assert [file.name for file in path.parent.iterdir()] == ["c"]
    assert same(checkpoint(2), load_checkpoint(path, "job"))


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_fails_late_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    save_checkpoint(tmp_path / "c", checkpoint(2), "job")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((os, "fsync", full) if step == "fsync" else (os, "replace", full)))
    with pytest.raises(EnvironmentUnfit, match="No space left on device"):
        save_checkpoint(tmp_path / "c", checkpoint(3), "job")
    assert [file.name for file in tmp_path.iterdir()] == ["c"]
    assert same(checkpoint(2), load_checkpoint(tmp_path / "c", "job"))


def sha(array: dict[str, Any] | None = None, job: dict[str, Any] | None = None, source: str | None = None) -> str:
    config = ArrayConfig.model_validate(ARRAY | (array or {}))
    return job_sha256(config, JobConfig.model_validate(JOB_FILE | (job or {})), source, {"newport": 1.0})


def test_what_moves_the_trajectory_makes_another_job(subtests: pytest.Subtests) -> None:
    for array, job, source in [
        ({"devices": [{"profile": "newport", "count": 3}]}, None, None),
        ({"devices": [{"profile": "generic-a53", "count": 2}]}, None, None),
        ({"engine": "qemu"}, None, None),
        ({"link": {"bandwidth": "1 MB/s"}}, None, None),
        (None, {"seed": 1}, None),
        (None, {"learning_rate": 0.1}, None),
        (None, {"strategy": "fedadam"}, None),
        (None, {"strategy": {"name": "fedprox", "mu": 0.02}}, None),
        (None, {"participation": 0.5}, None),
        (None, {"straggler": {"deadline": "1 s"}}, None),
        (None, None, "def build(): ..."),
    ]:
        with subtests.test(array=array, job=job, source=source):
            assert sha(array, job, source) != sha()


@pytest.mark.parametrize(
    ("array", "job"),
    [
        ({"host": {"port": 5000, "metrics_port": 5001, "names": ["lab"], "power_cap": "1 kW"}}, None),
        ({"memory": "3 GiB"}, None),
        (None, {"rounds": 99, "target": {"accuracy": 0.9}, "watchdog": "1 s", "checkpoint": {"every": 7}}),
    ],
)
def test_what_does_not_may_change_before_a_resume(array: Any, job: Any) -> None:
    assert sha(array, job) == sha()


def test_the_figures_are_part_of_the_job() -> None:
    array, job = ArrayConfig.model_validate(ARRAY), JobConfig.model_validate(JOB_FILE)
    assert job_sha256(array, job, None, {"newport": 1.0}) != job_sha256(array, job, None, {"newport": 1.1})


@pytest.mark.parametrize("core_model", ["instructions", "cycles"])
def test_a_bandwidth_of_dram_counts_with_cycles_alone(core_model: str) -> None:
    profile = get_profile("newport")
    other = dataclasses.replace(profile, dram_bytes_per_second=Sourced(1e9, "another"))
    array = ArrayConfig.model_validate(ARRAY | {"core_model": core_model})
    hashes = {
        job_sha256(
            array, JobConfig.model_validate(JOB_FILE), None, [{"newport": dataclasses.asdict(each)}, {"csd-00": each}]
        )
        for each in (profile, other, dataclasses.replace(profile, dram_bytes_per_second=None))
    }
    assert len(hashes) == (1 if core_model == "instructions" else 3)


@pytest.mark.parametrize("core_model", ["instructions", "cycles"])
def test_a_core_moves_no_second_but_by_its_table(core_model: str) -> None:
    profile = get_profile("raspberry-pi-3-b-plus")
    latency = {"dram_nanoseconds": Sourced(90, "drawn")}
    cores = [profile.core, {}, latency, latency | {"l2_kibibytes": Sourced(256, "drawn")}]
    array = ArrayConfig.model_validate(ARRAY | {"core_model": core_model})
    hashes = {
        job_sha256(
            array, JobConfig.model_validate(JOB_FILE), None, [{"pi": dataclasses.asdict(each)}, {"csd-00": each}]
        )
        for each in (dataclasses.replace(profile, core=core) for core in cores)
    }
    assert len(hashes) == 1


def test_a_band_moves_no_second() -> None:
    profile = get_profile("newport")
    exact = dataclasses.replace(profile, clock_hertz=dataclasses.replace(profile.clock_hertz, band=None))
    array, job = ArrayConfig.model_validate(ARRAY), JobConfig.model_validate(JOB_FILE)
    assert job_sha256(array, job, None, [profile]) == job_sha256(array, job, None, [exact])


@pytest.mark.parametrize("core_model", ["instructions", "cycles"])
def test_the_law_that_cores_follow_counts_with_cycles_alone(core_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array, job = ArrayConfig.model_validate(ARRAY | {"core_model": core_model}), JobConfig.model_validate(JOB_FILE)
    before = job_sha256(array, job, None, [])
    monkeypatch.setattr(core_sharing, "SHARING_VERSION", core_sharing.SHARING_VERSION + 1)
    assert (job_sha256(array, job, None, []) == before) == (core_model == "instructions")


def test_the_header_names_every_field_of_a_state() -> None:
    tensors = {"weights", "strategy", "service"}
    fields = {field for field in TrainingState.__dataclass_fields__ if field not in tensors}
    assert fields <= set(Header.__struct_fields__)
    assert checkpoint_module.FORMAT == 1
