from pathlib import Path

import pytest
import torch
from torch import nn

from firmware_agent.common.errors import ModelError
from firmware_agent.common.models import build_model, resolve_model
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.user_code.source_files import MAX_SOURCE_BYTES

MY_NET = """
from torch import nn

def build(hidden=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Linear(hidden, 10))

def fails():
    raise RuntimeError("no such weights")

def text():
    return "a net"

constant = 5
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_net.py").write_text(MY_NET)
    return tmp_path


def test_arguments_reach_the_builder() -> None:
    model = build_model(resolve_model("digits_cnn", {"num_classes": 3}, Path()))
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 3)


def test_a_users_file_is_found_beside_the_job_and_travels_as_text(folder: Path) -> None:
    spec = resolve_model("my_net.py:build", {"hidden": 6}, folder)
    (folder / "my_net.py").unlink()
    model = build_model(ShippedCode(spec.name, spec.source, dict(spec.arguments)))
    assert isinstance(model, nn.Sequential)
    assert model[1].out_features == 6


def test_anything_importable_will_do() -> None:
    model = build_model(resolve_model("torch.nn:Linear", {"in_features": 2, "out_features": 3}, Path()))
    assert isinstance(model, nn.Linear)


def test_the_callers_seed_decides_the_weights() -> None:
    weights = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        weights.append(build_model(ShippedCode("digits_cnn")).state_dict()["0.weight"])
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.slow
def test_a_model_that_cannot_be_built_is_one_clear_error(folder: Path, subtests: pytest.Subtests) -> None:
    for name, arguments, match in [
        ("digits_cn", {}, r"'digits_cn' is not built in; did you mean 'digits_cnn'\?.*my_file\.py:function"),
        ("perceptron", {}, "'perceptron' is not built in; built in: digits_cnn"),
        ("other.py:build", {}, r"cannot read .*other\.py .*give a path from the job file's folder"),
        ("my_net.py:fails", {}, "building it with {} failed: RuntimeError.*no such weights"),
        ("my_net.py:build", {"hiden": 1}, "building it with .*hiden"),
        ("my_net.py:text", {}, "returned str, not a torch.nn.Module"),
        ("my_net.py:constant", {}, "constant is not callable"),
        ("my_net.py:missing", {}, "cannot be imported.*missing"),
        ("no.such.module:build", {}, "cannot be imported.*no is in no installed package"),
        ("torch.nn:Linaer", {}, "cannot be imported"),
        (":build", {}, "cannot be imported"),
        ("my_net.py:", {}, "cannot be imported|not callable"),
    ]:
        with subtests.test(name=name, arguments=arguments, match=match):
            with pytest.raises(ModelError, match=match) as caught:
                build_model(resolve_model(name, arguments, folder))
            assert caught.value.exit_code == 2
            assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize("source", ["import nothing_like_this", "def build(:", "raise SystemError('x')", "exit(0)"])
def test_a_file_that_cannot_be_imported_is_one_clear_error(folder: Path, source: str) -> None:
    (folder / "my_net.py").write_text(source)
    with pytest.raises(ModelError, match=r"my_net\.py:build.*cannot be imported"):
        build_model(resolve_model("my_net.py:build", {}, folder))


def test_a_file_that_is_no_text_or_too_large_is_refused(folder: Path) -> None:
    (folder / "my_net.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="cannot read"):
        resolve_model("my_net.py:build", {}, folder)
    (folder / "my_net.py").write_text("#" * (MAX_SOURCE_BYTES + 1))
    with pytest.raises(ModelError, match="of a file that is small"):
        resolve_model("my_net.py:build", {}, folder)
