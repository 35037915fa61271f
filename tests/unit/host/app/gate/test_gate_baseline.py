"""Baselines: what is written is read, what is damaged is refused, and what differs is named."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles import core_sharing
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.app.gate.gate_baseline import (
    GateBaseline,
    check_clock,
    check_comparable,
    describe_array,
    describe_job,
    list_differences,
    make_baseline,
    read_baseline,
    write_baseline,
)
from host.app.gate.gate_checks import KINDS, NO_CLOCK, ExpectedFigure
from host.cli.schemas import FOLDER
from host.config.job_file import JobConfig
from tests import ROOT

ARRAY = {"name": "lab", "engine": "native", "devices": [{"profile": "newport", "count": 2}]}
JOB = {"model": "digits_cnn", "data": {"source": "digits"}, "learning_rate": 0.1, "seed": 7}
RATE = "records_per_device_second"
FIGURES = {RATE: ExpectedFigure(3166.4, "1/s", "counted", 0.01)}


def array(**changes: Any) -> ArrayConfig:
    return ArrayConfig.model_validate(ARRAY | changes)


def job(**changes: Any) -> JobConfig:
    return JobConfig.model_validate(JOB | changes)


def baseline(**figures: ExpectedFigure) -> GateBaseline:
    return make_baseline(job(), array(), "counted", figures or FIGURES, {"image": "0123"})


@given(st.dictionaries(st.sampled_from(sorted(KINDS)), st.tuples(st.floats(1e-9, 1e12), st.floats(0, 10)), min_size=1))
def test_a_baseline_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, values: Any) -> None:
    path = tmp_path_factory.mktemp("gate") / "base.json"
    figures = {
        name: ExpectedFigure(value, KINDS[name].unit, "counted" if KINDS[name].timed else NO_CLOCK, band)
        for name, (value, band) in values.items()
    }
    written = baseline(**figures)
    write_baseline(path, written)
    assert read_baseline(path) == written
    check_comparable(path, written, job(), array())
    schema = json.loads((FOLDER / "ci-baseline.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(json.loads(path.read_text(encoding="utf-8")))


def test_a_missing_one_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--write-baseline"):
        read_baseline(tmp_path / "base.json")


def damaged(path: Path, change: Any) -> Path:
    content = msgspec.to_builtins(baseline())
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_damaged_one_is_refused_with_the_reason_and_the_remedy(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for change, why in [
        (lambda c: c.pop("clock"), "clock"),
        (lambda c: c.update(extra=1), "extra"),
        (lambda c: c.update(format=2), "format is 2"),
        (lambda c: c["job"].update(seed=8), "hashes"),
        (lambda c: c["array"].update(clock="wall"), "hashes"),
        (lambda c: c.update(figures={}), "no figure"),
        (lambda c: c.update(seed=8), "its seed 8 is not that of its job"),
        (lambda c: c.update(clock="wall"), "unit and clock must be 1/s and wall"),
        (
            lambda c: c["figures"]["records_per_device_second"].update(unit="J"),
            "unit and clock must be 1/s and counted",
        ),
        (lambda c: c["figures"].update(speed=c["figures"]["records_per_device_second"]), "speed is no figure"),
        (lambda c: c["figures"]["records_per_device_second"].update(value=0), "more than 0"),
        (lambda c: c["figures"]["records_per_device_second"].update(value=-3.0), "more than 0"),
        (lambda c: c["figures"]["records_per_device_second"].update(value=1e999), "."),
        (lambda c: c["figures"]["records_per_device_second"].update(band=-0.01), "band 0 or more"),
        (lambda c: c["figures"]["records_per_device_second"].update(value=None), "value"),
    ]:
        with subtests.test(change=change, why=why):
            path = damaged(tmp_path / "base.json", change)
            with pytest.raises(ConfigurationError, match=f"(?s)base.json.*{why}.*--update-baseline"):
                read_baseline(path)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_one_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("gate") / "base.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError):
        read_baseline(path)


@given(st.integers(0, 10_000))
def test_a_torn_one_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("gate") / "base.json"
    write_baseline(path, baseline())
    whole = path.read_bytes().rstrip()
    path.write_bytes(whole[: cut % len(whole)])
    with pytest.raises(ConfigurationError):
        read_baseline(path)


def test_a_figure_under_both_of_its_names_is_refused(tmp_path: Path) -> None:
    path = damaged(tmp_path / "base.json", lambda c: c["figures"].update(images_per_device_second=c["figures"][RATE]))
    with pytest.raises(ConfigurationError, match="holds a figure under its old name and its new one"):
        read_baseline(path)


def test_one_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfit, match=r"base\.json"):
        write_baseline(tmp_path / "missing" / "base.json", baseline())


@pytest.mark.parametrize(
    ("mine", "difference"),
    [
        ((job(rounds=3), array()), "job.rounds: nothing there, 3 here"),
        ((job(seed=8), array()), "job.seed: 7 there, 8 here"),
        ((job(target={"accuracy": 0.5}), array()), "job.target"),
        ((job(model="vgg16"), array()), 'job.model: "digits_cnn" there, "vgg16" here'),
        ((job(), array(devices=[{"profile": "newport", "count": 3}])), "array.devices"),
        ((job(), array(host={"trains": True})), "array.host.trains: nothing there, true here"),
        ((job(), array(engine="qemu")), 'engine: "native" there, "qemu" here'),
        ((job(), array(clock="sampled")), 'array.clock: nothing there, "sampled" here'),
    ],
)
def test_a_baseline_of_something_else_is_refused_and_what_differs_is_named(
    mine: tuple[JobConfig, ArrayConfig], difference: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        check_comparable(Path("base.json"), baseline(), *mine)
    assert difference in str(error.value)
    assert "--update-baseline" in str(error.value)


def test_names_ports_and_where_machines_run_may_differ() -> None:
    host = {"metrics_port": 9100, "port": 5000, "address": "0.0.0.0", "names": ["lab"]}
    other = array(name="other", memory="4 GiB", hypervisors=["qemu:///system"], host=host)
    check_comparable(Path("base.json"), baseline(), job(watchdog="5 min", checkpoint={"every": 0}), other)
    one, four = (array(clock="sampled", samplers=samplers) for samplers in (1, 4))
    check_comparable(Path("base.json"), make_baseline(job(), one, "sampled", {}, {}), job(), four)


def test_data_of_ones_own_are_known_by_their_name_wherever_the_checkout_lies() -> None:
    here, there, other = (
        describe_job(job(data={"source": source}))
        for source in ("/a/data/mine.npz", "/b/c/mine.npz", "/a/data/ours.npz")
    )
    assert here == there != other


def test_a_baseline_of_other_core_model_constants_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = array(core_model="cycles")
    before = make_baseline(job(), mine, "modelled", {}, {})
    check_comparable(Path("base.json"), before, job(), mine)
    monkeypatch.setattr(core_sharing, "SHARING_VERSION", 99)
    with pytest.raises(ConfigurationError, match=r"array\.core_sharing\.version: 2 there, 99 here"):
        check_comparable(Path("base.json"), before, job(), mine)
    assert describe_array(array()) == describe_array(array(core_model="instructions"))


def test_another_clock_is_refused() -> None:
    check_clock(Path("base.json"), baseline(), "counted")
    with pytest.raises(ConfigurationError, match="clock: counted there, wall here"):
        check_clock(Path("base.json"), baseline(), "wall")


TREES = st.recursive(
    st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: st.dictionaries(st.text("ab", min_size=1, max_size=2), inner, max_size=3),
    max_leaves=8,
)
MAPPINGS = st.dictionaries(st.text("ab", min_size=1, max_size=2), TREES, max_size=3)


@given(MAPPINGS, MAPPINGS)
def test_differences_are_listed_if_and_only_if_there_are_any(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert (list_differences(left, right) == []) == (left == right)


def test_the_examples_baseline_is_still_that_of_its_job() -> None:
    """It was made before some of a job's keys existed: one that is as by default breaks nothing."""
    folder = ROOT / "examples" / "ci"
    example = JobConfig.model_validate(yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8")))
    assert list_differences(read_baseline(folder / "baseline.json").job, describe_job(example)) == []
