"""The job file's communication: what is refused, what is meant by a word alone, and where overlap can be."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.overlap.overlapped_step import SLICE_SECONDS
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.profiles import get_profile
from csd_emu.util.config_files import parse_config
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Array
from host.app.prepare import prepare_run
from host.config.communication_section import CommunicationSection
from host.config.job_file import JobConfig, check_mode
from host.config.resolve import JobChanges, resolve_run
from host.core.device_time import TableModel
from host.fleet.checkpoint import job_sha256
from host.policies.transfer.link_conditions import ASSUMED_SLICE_SECONDS
from host.policies.transfer.setting_grid import default_setting
from host.policies.transfer.transfer_tuner import make_tuner
from host.training.transfer_policy import choose_communication
from tests.support.fakes import FakeEvaluator

MODEL_BYTES = 1 << 21
USUAL = TransferSettings("priority", 3 << 10, 7 << 10)


class LargeModel(FakeEvaluator):
    def initial_weights(self) -> dict[str, Array]:
        return {"w": np.zeros(MODEL_BYTES // 4, np.float32)}


def job(communication: Any = None, mode: str = "sync") -> JobConfig:
    content: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": mode}
    return parse_config(content | ({} if communication is None else {"communication": communication}), JobConfig, "j")


@pytest.mark.parametrize("word", ["fifo", "priority", "search", "autobyte"])
def test_a_word_alone_is_a_schedule(word: str) -> None:
    assert job(word).communication == job({"schedule": word}).communication
    assert job(word).communication.overlap == "auto"


def test_without_the_key_nothing_is_changed() -> None:
    assert job().communication == CommunicationSection()
    assert job().communication.sending(MODEL_BYTES, USUAL) == TransferSettings()


def test_sizes_that_cannot_be_are_refused_and_named(subtests: pytest.Subtests) -> None:
    for key in ["slice", "credit"]:
        for size in ["0 B", "-1 KiB", "0.5 B", "9 GiB", "nan B"]:
            with (
                subtests.test(size=size, key=key),
                pytest.raises(ConfigurationError, match=rf"j: communication.*{key}|j: communication\.{key}"),
            ):
                job({"schedule": "priority", key: size})


@pytest.mark.parametrize("schedule", ["fifo", "search", "autobyte"])
@pytest.mark.parametrize("key", ["slice", "credit"])
def test_a_schedule_that_has_no_such_size_refuses_it(schedule: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{key} is of schedule: priority; {schedule} .*leave it out"):
        job({"schedule": schedule, key: "1 MiB"})


@pytest.mark.parametrize("wrong", ["fastest", {"schedule": "lifo"}, {"slices": "1 KiB"}, {"overlap": "maybe"}, 5, []])
def test_what_is_unknown_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="communication"):
        job(wrong)


@pytest.mark.parametrize("key", ["slice", "credit"])
def test_a_size_larger_than_the_model_is_refused_and_one_that_is_given_holds(key: str) -> None:
    section = job({"schedule": "priority", key: f"{MODEL_BYTES + 1} B"}).communication
    with pytest.raises(ConfigurationError, match=rf"communication\.{key}: .* more than the {MODEL_BYTES}"):
        section.sending(MODEL_BYTES, USUAL)
    given = job({"schedule": "priority", key: f"{MODEL_BYTES} B"}).communication.sending(MODEL_BYTES, USUAL)
    assert getattr(given, f"{key}_bytes") == MODEL_BYTES
    assert job("priority").communication.sending(MODEL_BYTES, USUAL) == USUAL


@given(st.integers(1, MODEL_BYTES))
def test_beside_a_slice_that_is_given_as_much_is_under_way_as_usual(slice_bytes: int) -> None:
    sending = job({"schedule": "priority", "slice": f"{slice_bytes} B"}).communication.sending(MODEL_BYTES, USUAL)
    beside = USUAL.credit_bytes - USUAL.slice_bytes
    assert sending == replace(USUAL, slice_bytes=slice_bytes, credit_bytes=min(MODEL_BYTES, slice_bytes + beside))


@pytest.mark.parametrize(("bandwidth", "drives"), [("10 MB/s", 1), ("10 MB/s", 4), ("2 GB/s", 1)])
def test_what_a_job_leaves_out_follows_from_the_model_and_what_a_drive_has_of_the_link(
    bandwidth: str, drives: int
) -> None:
    array = ArrayConfig.model_validate(
        {"name": "lab", "engine": "native", "clock": "wall", "link": {"bandwidth": bandwidth, "latency": "1 ms"}}
        | {"devices": [{"profile": "newport", "count": drives}]}
    )
    rate = min(500e6, {"10 MB/s": 10e6, "2 GB/s": 2e9}[bandwidth] / drives)
    own = get_profile("newport").link_latency_seconds.value
    link = SharedLink(rate, 1e-3 + own, ASSUMED_SLICE_SECONDS)
    really = choose_communication(array, job({"schedule": "priority", "overlap": True}), {}, LargeModel())
    assert really.tuner.sending(1) == default_setting(MODEL_BYTES, link)
    composed = choose_communication(array, job({"schedule": "priority", "overlap": False}), {}, LargeModel())
    assert composed.tuner.sending(1) == default_setting(MODEL_BYTES, replace(link, slice_seconds=SLICE_SECONDS.value))


def test_it_is_a_key_of_synchronous_jobs_and_survives_being_written_down() -> None:
    with pytest.raises(ConfigurationError, match="communication is for mode: sync"):
        check_mode(job("priority", "federated"), "j")
    written = job({"schedule": "priority", "slice": "10001 B", "overlap": True})
    again = yaml.safe_load(yaml.safe_dump(written.model_dump(mode="json")))
    assert parse_config(again, JobConfig, "j") == written


@pytest.mark.parametrize("schedule", ["fifo", "priority", "search"])
def test_a_schedule_that_predicts_nothing_refuses_a_predictor(schedule: str) -> None:
    with pytest.raises(ConfigurationError, match=f"predictor is of schedule: autobyte; {schedule} .*leave it out"):
        job({"schedule": schedule, "predictor": "network"})
    with pytest.raises(ConfigurationError, match="predictor"):
        job({"schedule": "autobyte", "predictor": "oracle"})


def test_the_job_says_who_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("host.policies.transfer.autobyte.find_predictor", asked.append)
    array = ArrayConfig.model_validate(
        {"name": "lab", "devices": [{"profile": "newport", "count": 1}]} | ARRAYS["wall"]
    )
    for predictor in ({}, {"predictor": "network"}):
        section = job({"schedule": "autobyte", "overlap": True} | predictor)
        choose_communication(array, section, {}, FakeEvaluator())
    assert asked == ["model", "network"]


def test_a_checkpoint_rests_on_the_predictor_if_it_is_another_one() -> None:
    array = ArrayConfig.model_validate({"name": "lab", "devices": [{"profile": "newport", "count": 1}]})
    usual, said, network = (
        job({"schedule": "autobyte"} | each) for each in ({}, {"predictor": "model"}, {"predictor": "network"})
    )
    assert job_sha256(array, usual, None, []) == job_sha256(array, said, None, [])
    assert job_sha256(array, usual, None, []) != job_sha256(array, network, None, [])
    written = usual.model_dump(mode="json")["communication"]
    assert written.pop("predictor") == "model"


def test_packages_of_the_image_are_of_a_run() -> None:
    content = {"name": "lab", "devices": [{"profile": "newport", "count": 1}]}
    images: list[dict[str, Any]] = [{}, {"image": {"packages": []}}, {"image": {"packages": ["einops"]}}]
    hashes = [job_sha256(ArrayConfig.model_validate(content | image), job(), None, []) for image in images]
    assert hashes[0] == hashes[1] != hashes[2]


def test_checkpoints_of_jobs_without_the_key_stay_good() -> None:
    array = ArrayConfig.model_validate({"name": "lab", "devices": [{"profile": "newport", "count": 1}]})
    hashes = [job_sha256(array, each, None, []) for each in (job(), job("fifo"), job("priority"))]
    assert hashes[0] == hashes[1] != hashes[2]
    # As it was made before there was the key.
    newer = {"communication": True, "on_failure": True, "strategy": {"update_norm"}, "name": True, "track": True}
    ways = {"classes_per_drive", "quantity", "column", "function", "options"}
    newer |= {"loss": True, "client": True, "metrics": True, "data": {"input": True, "partition": ways}}
    newer |= dict.fromkeys(
        ("optimizer", "schedule", "clip_norm", "precision", "initial_weights", "freeze", "collate", "augment"), True
    )
    left_out: Any = dict.fromkeys(("rounds", "target", "checkpoint", "watchdog", "planner", "host_io"), True) | newer
    old = job().model_dump(mode="json", exclude=left_out)
    old["sync"]["patience"] = old["sync"].pop("straggler_factor")
    del old["sync"]["max_host_share"], old["sync"]["tuning"]["objective"]
    later = {"core_model", "samplers", "calibrate", "image"}
    devices = array.model_dump(mode="json", exclude={"hypervisors", "spread", "memory", "host", *later})
    host = array.host.model_dump(mode="json", exclude={"address", "port", "metrics_port", "names", "power_cap"})
    assert hashlib.sha256(msgspec.json.encode([devices, host, old, None, []], order="sorted")).hexdigest() == hashes[0]


def test_a_run_that_saves_joules_is_another_run() -> None:
    array = ArrayConfig.model_validate({"name": "lab", "devices": [{"profile": "newport", "count": 1}]})
    content = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync"}
    saving = content | {"sync": {"tuning": {"objective": "energy"}}}
    jobs = [parse_config(each, JobConfig, "j") for each in (content, saving)]
    assert len({job_sha256(array, each, None, []) for each in jobs}) == 2
    with pytest.raises(ConfigurationError, match="objective"):
        parse_config(content | {"sync": {"tuning": {"objective": "watts"}}}, JobConfig, "j")


ARRAYS: dict[str, dict[str, Any]] = {
    "qemu": {"engine": "qemu"},
    "wall": {"engine": "native", "clock": "wall"},
    "modelled": {"engine": "native"},
}


@pytest.mark.parametrize("kind", list(ARRAYS))
def test_overlap_is_real_on_the_clock_wall_and_composed_on_the_others(kind: str) -> None:
    array = ArrayConfig.model_validate({"name": "lab", "devices": [{"profile": "newport", "count": 2}]} | ARRAYS[kind])
    models: dict[str, Any] = {"csd-00": TableModel, "csd-01": TableModel} if kind == "modelled" else {}

    def chosen(communication: Any) -> tuple[bool, bool]:
        found = choose_communication(array, job(communication), models, FakeEvaluator())
        return found.overlap, found.composed

    assert chosen("fifo") == (False, False)
    assert chosen("priority") == (False, True)
    assert chosen({"schedule": "priority", "overlap": False}) == (False, False)
    assert chosen({"overlap": True}) == (kind == "wall", True)
    if kind == "modelled":
        del models["csd-01"]
        with pytest.raises(ConfigurationError, match=r"csd-00 are counted or modelled, and those of csd-01"):
            chosen({"overlap": True})


@pytest.mark.parametrize("schedule", ["search", "autobyte"])
@pytest.mark.parametrize("kind", list(ARRAYS))
def test_tuners_are_refused_where_no_slice_crosses_while_drives_compute(kind: str, schedule: str) -> None:
    array = ArrayConfig.model_validate({"name": "lab", "devices": [{"profile": "newport", "count": 2}]} | ARRAYS[kind])
    models: dict[str, Any] = {"csd-00": TableModel, "csd-01": TableModel} if kind == "modelled" else {}
    with pytest.raises(ConfigurationError, match=rf"{schedule} learns from slices .* overlap: false none does"):
        choose_communication(array, job({"schedule": schedule, "overlap": False}), models, FakeEvaluator())
    for communication in (schedule, {"schedule": schedule, "overlap": True}):
        found = choose_communication(array, job(communication), models, FakeEvaluator())
        assert (found.overlap, found.composed) == (kind == "wall" and communication != schedule, True)
        assert found.tuner.sending(1).schedule == "priority"


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    file, array = tmp_path / "job.yaml", tmp_path / "array.yaml"
    array.write_text("{name: lab, engine: native, clock: wall, devices: [{profile: newport, count: 2}]}")
    text = "{model: digits_cnn, data: {source: digits}, mode: %s, communication: {schedule: priority, slice: 2 kB}}"
    file.write_text(text % "sync")
    assert prepare_run(resolve_run(file, array)).communication.tuner.sending(1).slice_bytes == 2000
    priority, fifo = JobChanges(schedule="priority"), JobChanges(schedule="fifo")
    assert prepare_run(resolve_run(file, array, changes=priority)).communication.tuner.sending(1).slice_bytes == 2000
    assert prepare_run(resolve_run(file, array, changes=fifo)).communication.tuner.sending(1) == TransferSettings()
    file.write_text("{model: digits_cnn, data: {source: digits}}")
    with pytest.raises(ConfigurationError, match=r"--comm: communication is for mode: sync"):
        prepare_run(resolve_run(file, array, changes=priority))


def test_fixed_schedules_stay_as_they_are() -> None:
    sending = TransferSettings("priority", 5, 7)
    assert make_tuner("priority", sending, 0).sending(10**6) == sending
