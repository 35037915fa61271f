"""Keys of training in any form: two places of one key, the paths and hashes of jobs, and what drives are told."""

from pathlib import Path
from typing import Any

import pytest

from csd_emu.config.array_file import ArrayConfig
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.frames.session_frames import Code
from firmware_agent.common.losses.objective import ObjectiveSpec
from firmware_agent.common.shipped_code import ShippedCode
from host.config.job_file import JobConfig, check_mode, parse_job, read_job
from host.config.resolve import check_plugins, load_plugins
from host.fleet.checkpoint import job_sha256
from host.training.round_exchange import job_frame

CONTENT: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}}
OPTIONS = {"betas": [0.8, 0.9], "weight_decay": 0.1}
OBJECTIVE = ObjectiveSpec(ShippedCode("cross_entropy"), ("image",), 1 / 16)
OWN = "import torch\n\nclass Own(torch.optim.SGD):\n    pass\n"


def job(**keys: Any) -> JobConfig:
    return parse_job(CONTENT | keys, "job.yaml", Path("folder"))[0]


@pytest.mark.parametrize("value", ["Adam", {"name": "Adam"}, {"name": "Adam", **OPTIONS}])
def test_a_name_alone_and_a_mapping_are_read_and_written_back(value: Any) -> None:
    read = job(optimizer=value)
    assert read.chosen_optimiser.name == "Adam"
    assert read.chosen_optimiser.arguments == (OPTIONS if isinstance(value, dict) and len(value) > 1 else {})
    assert JobConfig.model_validate(read.model_dump(mode="json")) == read


def test_the_keys_of_sync_are_the_same_ones() -> None:
    sync = {"optimiser": {"name": "Adam", "arguments": OPTIONS}, "clip_norm": 2.0, "precision": "float64"}
    one = job(mode="sync", sync=sync)
    other = job(mode="sync", optimizer={"name": "Adam", **OPTIONS}, clip_norm=2.0, precision="float64")
    for each in (one, other):
        assert (each.chosen_optimiser.name, each.chosen_optimiser.arguments) == ("Adam", OPTIONS)
        assert (each.chosen_clip_norm, each.chosen_precision) == (2.0, "float64")
    usual = job()
    assert (usual.chosen_optimiser.name, usual.chosen_clip_norm, usual.chosen_precision) == ("SGD", None, "float32")


@pytest.mark.parametrize(
    ("keys", "sync"),
    [
        ({"optimizer": "SGD"}, {"optimiser": {"name": "Adam"}}),
        ({"clip_norm": 1.0}, {"clip_norm": 1.0}),
        ({"precision": "float32"}, {"precision": "float64"}),
    ],
)
def test_one_key_in_two_places_is_refused(keys: dict[str, Any], sync: dict[str, Any]) -> None:
    key, former = next(iter(keys)), f"sync.{next(iter(sync))}"
    with pytest.raises(ConfigurationError, match=f"{key} and {former} are the same key; leave {former} out"):
        job(mode="sync", sync=sync, **keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"optimizer": {"name": "Adam", "betas": {"a": 1}}},
        {"optimizer": ["Adam"]},
        {"optimizer": ""},
        {"clip_norm": 0},
        {"clip_norm": float("nan")},
        {"precision": "float16"},
        {"freeze": "*"},
        {"freeze": [""]},
        {"initial_weights": ""},
        {"schedule": {"name": "cosine", "floor": 2.0}},
        {"schedule": {"name": "step"}},
    ],
)
def test_values_of_another_form_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(keys))):
        job(**keys)


@pytest.mark.parametrize(
    ("word", "key"),
    [("optimiser", "optimizer"), ("lr_scheduler", "schedule"), ("max_grad_norm", "clip_norm"), ("frozen", "freeze")],
)
def test_what_others_call_them_is_hinted_at(word: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        job(**{word: "x"})


@pytest.mark.parametrize("mode", ["federated", "sync"])
def test_both_modes_have_the_keys(mode: str) -> None:
    keys = {"optimizer": "Adam", "schedule": "cosine", "clip_norm": 1.0, "precision": "float64", "freeze": ["0.*"]}
    check_mode(job(mode=mode, **keys), "job.yaml")


@pytest.mark.parametrize(
    ("keys", "momentum"),
    [
        ({"momentum": 0.5}, 0.5),
        ({"optimizer": {"name": "sgd", "momentum": 0.25}}, 0.25),
        ({"optimizer": {"name": "SGD", "nesterov": True}}, 0.9),
        ({"optimizer": "Adam"}, 0.0),
    ],
)
def test_strategies_are_told_of_the_momentum_that_drives_have(keys: dict[str, Any], momentum: float) -> None:
    assert job(**keys).drive_momentum == momentum


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({}, None),
        ({"optimizer": "SGD"}, None),
        ({"optimizer": "sgd"}, None),
        ({"optimizer": {"name": "SGD", "nesterov": True}}, Code("SGD", None, {"momentum": 0.9, "nesterov": True})),
        ({"optimizer": {"name": "Adam", **OPTIONS}}, Code("Adam", None, dict(OPTIONS))),
    ],
)
def test_drives_are_told_of_an_optimiser_where_they_have_one(keys: dict[str, Any], code: Code | None) -> None:
    keys = keys | {"clip_norm": 1.0, "freeze": ["0.*"], "precision": "float64"}
    frame = job_frame(job(**keys), ShippedCode("digits_cnn"), OBJECTIVE)
    assert (frame.optimiser, frame.clip_norm, frame.freeze, frame.precision) == (code, 1.0, ["0.*"], "float64")
    frame = job_frame(job(mode="sync", **keys), ShippedCode("digits_cnn"), OBJECTIVE)
    assert (frame.optimiser, frame.clip_norm, frame.freeze, frame.precision) == (None, None, ["0.*"], "float64")


def test_weights_are_looked_for_beside_the_job_file_and_their_path_is_no_part_of_the_hash(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("model: digits_cnn\ndata: {source: digits}\ninitial_weights: sub/w.pt\n")
    read = read_job(tmp_path / "job.yaml")
    assert read.initial_weights == str(tmp_path / "sub" / "w.pt")
    array = ArrayConfig.model_validate({"name": "lab", "devices": [{"profile": "newport", "count": 1}]})
    moved = read.model_copy(update={"initial_weights": "/elsewhere.pt"})
    assert job_sha256(array, read, None, []) == job_sha256(array, moved, None, [])


def test_each_of_them_makes_another_run() -> None:
    array = ArrayConfig.model_validate({"name": "lab", "devices": [{"profile": "newport", "count": 1}]})
    keys: list[dict[str, Any]] = [{}, {"optimizer": "Adam"}, {"optimizer": {"name": "Adam", "eps": 0.1}}]
    keys += [{"schedule": "cosine"}, {"clip_norm": 1.0}, {"precision": "float64"}, {"freeze": ["0.*"]}]
    assert len({job_sha256(array, job(**each), None, []) for each in keys}) == len(keys)


def test_a_class_of_ones_own_is_a_plug_in_under_either_key(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own.py").write_text(OWN)
    path = tmp_path / "job.yaml"
    for keys in (
        {"optimizer": {"name": "sub/own.py:Own", "weight_decay": 0.1}},
        {"mode": "sync", "optimizer": {"name": "sub/own.py:Own", "weight_decay": 0.1}},
        {"mode": "sync", "sync": {"optimiser": {"name": "sub/own.py:Own", "arguments": {"weight_decay": 0.1}}}},
    ):
        read, _ = parse_job(CONTENT | keys, str(path), tmp_path)
        check_plugins(read, path)
        plugins = load_plugins(read, path)
        assert plugins.optimizer is not None
        assert plugins.optimizer.source == OWN
        assert dict(plugins.optimizer.options) == {"weight_decay": 0.1}
        portable = plugins.portable(read)
        assert (portable.chosen_optimiser.name, portable.own_optimizer) == ("own.py:Own", portable.optimizer)
        assert plugins.facts == [["optimizer", plugins.optimizer.code_sha256]]
    assert load_plugins(job(optimizer="Adam"), path).optimizer is None
