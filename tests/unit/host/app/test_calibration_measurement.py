from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationKey, CalibrationStore, CalibrationTable
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_emu.util.record_shape import parse_shape
from firmware_agent.common.errors import (
    CalibrationError,
    ConfigurationError,
    DataError,
    DeviceFailed,
    EnvironmentUnfit,
    ModelError,
)
from firmware_agent.common.frames.frame_fields import MEASURES_LAYERS, PhaseSeconds
from firmware_agent.common.frames.measure_frames import Measure, Measured
from firmware_agent.common.frames.session_frames import Failed, Job
from firmware_agent.common.models import ZOO
from firmware_agent.common.shipped_code import ShippedCode
from host.app import calibration_measurement
from host.app.calibration_measurement import calibrate, machine_request, measure_table
from host.app.calibration_report import VerifiedRow, keep_table, make_report
from host.config.calibration_request import CalibrationRequest, MeasuredJob, make_request, read_request, read_spec
from host.config.job_file import DataSection
from host.core.datasets import check_source, load_dataset
from host.core.model_facts import ModelFacts, inspect_model
from host.core.table_plan import MAX_STEPS, MEASURE_SECONDS
from host.fleet.device_session import DeviceSession
from tests.support.calibration import layer_times
from tests.support.fakes import FACTS, JOB, Answer, FakeDrive, hello
from tests.support.outputs import checked

IMAGE = "0123456789abcdef"
SHAPE = (1, 8, 8)
NET = """
from torch import nn

def build(width: int = 4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 6))

def grid():
    return nn.Conv2d(1, 3, 3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def request(*batches: int, steps: int | None = None) -> CalibrationRequest:
    return make_request(ShippedCode("digits_cnn"), SHAPE, batches, steps, seed=7)


def read(
    model: str = "digits_cnn", classes: int | None = None, arguments: Sequence[str] = (), **changes: object
) -> CalibrationRequest:
    texts = {"shape": None, "batches": "1,2", "steps": None, "memory": None, "seed": 0}
    return read_request(read_spec(model, classes, arguments), **(texts | changes))  # type: ignore[arg-type]


async def measured(drive: FakeDrive, wanted: CalibrationRequest) -> list[Measure]:
    """The tasks that a drive gets when a table is measured on it."""
    drive.pump()
    await measure_table(drive.session, wanted, IMAGE, Silent())
    return [frame for frame in drive.frames if isinstance(frame, Measure)]


async def test_a_table_holds_what_the_drive_measured_and_what_it_is_of() -> None:
    drive = FakeDrive(clock="counted")
    drive.pump()
    table = await measure_table(drive.session, request(4, 1, 2, steps=3), IMAGE, Silent())
    assert [(row.batch_size, len(row.steps), row.seconds.total) for row in table.rows] == [
        (1, 3, 2),
        (2, 3, 3),
        (4, 3, 5),
    ]
    assert table.key == CalibrationKey.of(ShippedCode("digits_cnn"), SHAPE)
    assert (table.clock, table.image, table.seed, table.core) == ("counted", IMAGE, 7, "reference")
    assert (table.classes, table.parameters) == (10, 38282)
    assert {name: getattr(table.versions, name) for name in FACTS} == FACTS
    assert table.encode_seconds == (0.25,) * 3
    assert (table.memory_source, table.rows[0].peak_memory_bytes) == ("VmHWM", 10**8 + 3)
    assert table.step_seconds(100).total == pytest.approx(101)
    assert all(row.of == table.row_mark for row in table.rows)


async def test_a_measured_table_can_be_kept(tmp_path: Path) -> None:
    drive = FakeDrive(clock="counted")
    drive.pump()
    table = await measure_table(drive.session, request(1, 2), IMAGE, Silent())
    store = CalibrationStore(tmp_path / "own", tmp_path / "none")
    store.save(table)
    assert store.find(ShippedCode("digits_cnn"), SHAPE) == table


async def test_the_drive_builds_the_model_that_was_asked_for() -> None:
    drive = FakeDrive()
    await measured(
        drive, make_request(ShippedCode("squeezenet", None, {"num_classes": 5}), (3, 32, 32), (1, 2), seed=9)
    )
    (job,) = [frame for frame in drive.frames if isinstance(frame, Job)]
    assert (job.model, job.arguments, job.seed, job.input_scale) == ("squeezenet", {"num_classes": 5}, 9, 1 / 255)


async def test_short_steps_are_warmed_up_at_their_own_batch_long_ones_at_the_smallest() -> None:
    tasks = await measured(FakeDrive(), request(1, 2, 64))
    assert [task.warm_up_batch_size for task in tasks] == [None, None, 1]
    assert [task.warm_up_steps for task in tasks] == [5, 5, 1]
    assert all((task.steps, task.device_seconds) == (MAX_STEPS, MEASURE_SECONDS) for task in tasks)
    assert not any(task.restore for task in tasks)


class Layered(FakeDrive):
    """Has an agent that can measure layers, and says so."""

    def __init__(self, forward: float = 0.25) -> None:
        super().__init__(clock="counted")
        facts = {**FACTS, MEASURES_LAYERS: "yes"}
        self.session = DeviceSession(msgspec.structs.replace(hello(clock="counted"), facts=facts), self)
        self.forward = forward

    def measure(self, task: Measure) -> Iterator[Answer]:
        (measured,) = super().measure(task)
        assert isinstance(measured, Measured)
        if task.layers:
            times = layer_times(["0", "2"], measured.step_seconds[0], [(self.forward, 1), (1 - self.forward, 2)])
            measured = msgspec.structs.replace(measured, layers=times)
        yield measured


async def layered_table(drive: FakeDrive, layers: bool = True) -> CalibrationTable:
    drive.pump()
    return await measure_table(drive.session, replace(request(1, 2, 4), layers=layers), IMAGE, Silent())


async def test_layers_are_in_the_table_if_the_drive_can_measure_them(tmp_path: Path) -> None:
    table = await layered_table(Layered())
    store = CalibrationStore(tmp_path)
    store.save(table)
    assert store.find(ShippedCode("digits_cnn"), SHAPE) == table
    layers = table.layer_seconds(3)
    assert layers is not None
    assert layers[0].forward_seconds == pytest.approx(table.step_seconds(3).forward / 4)
    report = make_report(table, Path("x.json"), [], 1.0)
    assert [row.layers for row in report.rows] == [row.layers for row in table.rows]
    checked("calibrate", msgspec.json.encode(report).decode())


@pytest.mark.parametrize(("drive", "layers"), [(FakeDrive, True), (Layered, False)])
async def test_layers_are_not_asked_of_an_agent_of_before_nor_unasked(drive: type[FakeDrive], layers: bool) -> None:
    asked = drive(clock="counted") if drive is FakeDrive else drive()
    table = await layered_table(asked, layers)
    assert table.layer_seconds(2) is None
    assert not any(frame.layers for frame in asked.frames if isinstance(frame, Measure))
    assert [row.layers for row in make_report(table, Path("x.json"), [], 1.0).rows] == [None] * 3


async def test_layers_are_not_asked_of_a_job_that_cannot_use_them() -> None:
    drive = Layered()
    drive.pump()
    frame = msgspec.structs.replace(JOB, input_fields=["image"])
    job = MeasuredJob(frame, DataSection(source="digits"), "", layers=False)
    await measure_table(drive.session, replace(request(1, 2), layers=True, job=job), IMAGE, Silent())
    assert not any(frame.layers for frame in drive.frames if isinstance(frame, Measure))


async def test_layers_that_do_not_make_up_their_step_are_not_kept(tmp_path: Path) -> None:
    class Wrong(Layered):
        def measure(self, task: Measure) -> Iterator[Answer]:
            for measured in super().measure(task):
                assert isinstance(measured, Measured)
                yield msgspec.structs.replace(measured, step_seconds=[PhaseSeconds(9.0, 9.0, 9.0)] * measured.steps)

    with pytest.raises(CalibrationError, match=r"row 1 \(batch 1\): its layers take .* they must add up"):
        CalibrationStore(tmp_path / "own").save(await layered_table(Wrong()))
    assert not (tmp_path / "own").exists()


async def test_steps_that_are_asked_for_are_taken_whatever_time_they_need() -> None:
    tasks = await measured(FakeDrive(), request(1, 64, steps=2))
    assert [task.steps for task in tasks] == [2, 2]
    assert all(task.device_seconds == 3600 for task in tasks)


async def test_a_batch_that_fails_in_the_drive_is_an_error() -> None:
    class Small(FakeDrive):
        def measure(self, task: Measure) -> Iterator[Answer]:
            yield Failed("Measure", "out of memory")

    with pytest.raises(DeviceFailed, match="out of memory"):
        await measured(Small(), request(1, 2))


async def test_the_report_shows_both_cores_and_what_was_measured_again() -> None:
    drive = FakeDrive(clock="counted")
    drive.pump()
    table = await measure_table(drive.session, request(1, 2, 4), IMAGE, Silent())
    for off, confirmed in ((0.019, True), (-0.019, True), (0.021, False), (-0.021, False)):
        again = VerifiedRow(2, 3.0, 3.0 * (1 + off), off)
        report = make_report(table, Path("x.json"), [again], 1.0)
        assert report.confirmed is confirmed
    assert make_report(table, Path("x.json"), [], 1.0).confirmed
    for row in report.rows:
        assert row.profile_seconds == get_profile("newport").device_seconds(row.reference_seconds)
    assert [row.error_estimate for row in report.rows] == [table.error_estimate()[batch] for batch in (1, 2, 4)]
    checked("calibrate", msgspec.json.encode(report).decode())


async def test_a_table_of_a_profiles_core_is_of_its_digest_and_shows_that_profile() -> None:
    core = get_profile("rk3399-little").core_parameters
    wanted = replace(request(1, 2), cycles=True, profile="rk3399-little")
    assert (wanted.core, wanted.key.core) == (core, f"core.{core.digest}")
    drive = FakeDrive(clock="counted")
    drive.pump()
    table = await measure_table(drive.session, wanted, IMAGE, Silent())
    assert table.key == wanted.key != request(1, 2).key
    report = make_report(table, Path("x.json"), [], 1.0, "", "rk3399-little")
    assert (report.profile, report.core) == ("rk3399-little", f"core.{core.digest}")
    for row in report.rows:
        assert row.profile_seconds == get_profile("rk3399-little").device_seconds(row.reference_seconds)
    assert replace(wanted, profile="generic-a53").key == request(1, 2).key  # the reference core itself


def test_a_profiles_core_without_cycles_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--profile: .*leave out --no-cycles, --verify"):
        replace(request(1, 2), cycles=False, profile="newport")


@pytest.mark.parametrize(
    ("profile", "told"), [("xeon-4108", "is a host"), ("newprot", "is not known"), ("rk3399-little", "no compiler")]
)
def test_nothing_is_started_for_a_core_that_cannot_be_modelled(
    profile: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> None:
        raise EnvironmentUnfit("there is no compiler")

    monkeypatch.setattr(CyclePlugin, "build", build)
    monkeypatch.setattr(calibration_measurement, "run_on_machines", lambda *_: "started")
    wanted = replace(request(1, 2), cycles=True, profile=profile)
    with pytest.raises((ConfigurationError, EnvironmentUnfit), match=told):
        calibrate(wanted, Paths.default(), Silent())
    assert calibrate(replace(wanted, profile=None), Paths.default(), Silent()) == "started"


@pytest.mark.parametrize("name", ["digits_cnn", "squeezenet", "mobilenet_v2"])
def test_what_is_known_of_a_built_in_model_without_training_it(name: str) -> None:
    facts = inspect_model(ShippedCode(name), ZOO[name].input_shape)
    assert facts.classes == ZOO[name].classes
    assert facts.parameters > 30_000
    assert facts.activations > 5_000


def test_memory_grows_with_the_model_and_the_batch() -> None:
    facts = ModelFacts(10, 10**6, 10**6)
    assert facts.memory_bytes(1) > 4 * 4 * 10**6
    assert facts.memory_bytes(2) > facts.memory_bytes(1)
    assert ModelFacts(10, 2 * 10**6, 10**6).memory_bytes(1) > facts.memory_bytes(1)


def test_a_machine_has_one_of_a_few_sizes_or_the_one_asked_for() -> None:
    assert request(1, 2).machine_bytes == 2 << 30
    vgg16 = CalibrationRequest(ShippedCode("vgg16"), ModelFacts(1000, 138_357_544, 28_701_160), (3, 224, 224), (1, 8))
    assert vgg16.machine_bytes == 8 << 30
    with pytest.raises(ConfigurationError, match=r"'vgg16' at batch 512 seems to need .*take smaller batches"):
        assert replace(vgg16, batches=(1, 512)).machine_bytes
    array = machine_request(read(memory="3 GiB")).config
    assert (array.memory, array.engine, len(array.list_devices())) == (3 << 30, "qemu", 1)


def test_a_users_model_is_asked_for_its_classes(folder: Path) -> None:
    wanted = read("net.py:build", shape="1x8x8", arguments=["width=8"])
    assert wanted.facts.classes == 6
    assert wanted.facts.parameters == 64 * 8 + 8 + 8 * 6 + 6
    assert wanted.key.source_sha256 is not None
    assert dict(wanted.key.arguments) == {"width": 8}


@pytest.mark.slow
def test_a_wrong_command_line_is_one_clear_error(folder: Path, subtests: pytest.Subtests) -> None:
    for changes, error, match in [
        ({"batches": "4"}, ConfigurationError, "--batches 4: a table needs two or more different batch sizes"),
        ({"batches": "2,2,4"}, ConfigurationError, "--batches 2,2,4"),
        ({"batches": "0,1"}, ConfigurationError, "each between 1 and 65536"),
        ({"batches": "1,65537"}, ConfigurationError, "each between 1 and 65536"),
        ({"batches": "1,two"}, ConfigurationError, "write batch sizes with commas"),
        ({"batches": ""}, ConfigurationError, "write batch sizes with commas"),
        ({"batches": "1,²"}, ConfigurationError, "write batch sizes with commas"),
        ({"shape": "3x224"}, ConfigurationError, "'3x224' is no shape of images; .*3x224x224"),
        ({"shape": "3x0x8"}, ConfigurationError, "no shape of images"),
        ({"shape": "1x12x12"}, ModelError, "'digits_cnn' does not take images of 1x12x12"),
        ({"arguments": ["width"]}, ConfigurationError, "--argument 'width': write NAME=VALUE"),
        ({"arguments": ["a b=1"]}, ConfigurationError, "write NAME=VALUE"),
        ({"arguments": ["width=[1]"]}, ConfigurationError, "write NAME=VALUE"),
        ({"arguments": ["width={"]}, ConfigurationError, "write NAME=VALUE"),
        ({"arguments": ["width=3"]}, ModelError, "building it with .*width"),
        ({"memory": "8"}, ConfigurationError, "--memory: '8' has no unit"),
        ({"memory": "32 GiB"}, ConfigurationError, "between 1 GiB and 16 GiB"),
        ({"model": "net.py:build"}, ConfigurationError, "not built in; name the shape of its images: --input"),
        ({"model": "net.py:grid", "shape": "1x8x8"}, ModelError, "not one row of logits each"),
        (
            {"batches": "1,65536", "arguments": ["num_classes=1000000"]},
            ConfigurationError,
            "seems to need .*take smaller",
        ),
    ]:
        with subtests.test(changes=changes, error=error, match=match):
            with pytest.raises(error, match=match) as caught:
                read(**changes)  # type: ignore[arg-type]
            assert caught.value.exit_code == 2


def test_synthetic_images_have_the_shape_asked_for_and_depend_on_the_seed_alone() -> None:
    one, same, other = (load_dataset("synthetic:3x5x6:4", seed) for seed in (1, 1, 2))
    assert one.fields["image"].shape[1:] == one.held_out["image"].shape[1:] == (3, 5, 6)
    assert one.fields["image"].dtype == np.uint8
    assert len(one.fields["image"]) == len(one.fields["label"]) >= 16
    assert set(one.fields["label"]) | set(one.held_out["label"]) <= set(range(4))
    assert np.array_equal(one.fields["image"], same.fields["image"])
    assert not np.array_equal(one.fields["image"], other.fields["image"])


@pytest.mark.parametrize(
    "source", ["synthetic:", "synthetic:3x5:4", "synthetic:3x5x6", "synthetic:3x5x6:0", "synthetic:1x1x1:x"]
)
def test_a_synthetic_source_that_cannot_be_read_is_named(source: str) -> None:
    with pytest.raises(DataError, match=rf"job\.yaml: data\.source: '{source}'.* for example synthetic:3x224x224:1000"):
        check_source(source, "job.yaml: data.source")


def test_a_shape_is_read_as_it_is_written() -> None:
    assert parse_shape("3x224x224") == (3, 224, 224)


def test_a_table_that_cannot_be_kept_is_told_before_it_is_measured(tmp_path: Path) -> None:
    def measure(*_: object) -> CalibrationTable:
        raise AssertionError

    (tmp_path / "file").touch()
    request = make_request(ShippedCode("digits_cnn"), SHAPE, (1, 2))
    paths = Paths(tmp_path, tmp_path / "file", tmp_path)  # its own tables cannot be kept either
    for output in (tmp_path, tmp_path / "file" / "table.json", None):
        with pytest.raises(EnvironmentUnfit, match=r"cannot be written .*; name another file with --output"):
            keep_table(measure, request, output, paths, Silent())
