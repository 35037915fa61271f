"""Records that a drive holds in place: what the host accepts of them, and deals out beside them."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from csd_emu.config.array_file import ArrayConfig, Device
from firmware_agent.common.atomic_files import shared_mode
from firmware_agent.common.errors import ConfigurationError, DataError, ProtocolError
from firmware_agent.common.frames.frame_fields import TensorSpec
from firmware_agent.common.frames.session_frames import Hello, Holding
from firmware_agent.common.shard import open_shard
from firmware_agent.local_dataset import describe, open_holding
from host.app.prepare import RunRequest, prepare_in_place, prepare_run
from host.config.job_file import DataSection, read_job
from host.config.resolve import resolve_run
from host.core.datasets import Dataset, check_source, load_dataset
from host.fleet.admission import ExpectedDevice
from host.fleet.certificates import HostKeys
from host.fleet.fleet import Fleet
from host.fleet.shards import WantedRecords, deal_out, write_shards
from tests.support.fakes import Aborted, FakeCall, hello
from tests.unit.firmware_agent.common.datafiles.test_datafiles import noise, write_folder, write_idx


def holds(shape: tuple[int, ...] = (1, 8, 8), dtype: str = "|u1", classes: int = 10) -> Holding:
    return Holding("npz", [TensorSpec("image", dtype, shape), TensorSpec("label", "<i8", ())], classes)


WANTED = WantedRecords({"image": "uint8[1, 8, 8]", "label": "int64[]"}, 10)
FITS = holds()


def told(device: str = "csd-00", holding: Holding | None = FITS, **changes: Any) -> Hello:
    return msgspec.structs.replace(hello(device), holding=holding, **changes)


@pytest.mark.parametrize(
    ("holding", "message"),
    [
        (
            holds((3, 8, 8)),
            r"holds records of image uint8\[3, 8, 8\], label .*, the job's are of image uint8\[1, 8, 8\]",
        ),
        (holds(dtype="<f4"), r"image float32\[1, 8, 8\], .* the job's are of image uint8\[1, 8, 8\]"),
        (Holding("npz", [TensorSpec("x", "<f4", (6,))], 0), r"holds records of x float32\[6\], the job's are of image"),
        (holds(classes=11), "holds 11 classes, the job's data have 10"),
        (None, "was to train on records in place and has a shard"),
    ],
)
def test_records_that_do_not_fit_are_named(holding: Holding | None, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        WANTED.check("csd-00", holding)


def test_fewer_classes_are_a_drive_that_has_not_seen_all() -> None:
    WANTED.check("csd-00", holds(classes=3))


def test_ragged_records_may_be_padded_to_other_lengths() -> None:
    fields = {"x": np.ones((4, 9, 2), np.float32), "x.length": np.arange(1, 5)}
    wanted, lengths = WantedRecords.of(Dataset("some", fields, fields, 1.0)), TensorSpec("x.length", "<i8", ())
    wanted.check("csd-00", Holding("npz", [TensorSpec("x", "<f4", (5, 2)), lengths], 0))
    for shape in ((5, 3), (5,), ()):
        with pytest.raises(ProtocolError, match=r"the job's are of x float32\[\*, 2\], x\.length int64\[\]"):
            wanted.check("csd-00", Holding("npz", [TensorSpec("x", "<f4", shape), lengths], 0))
    with pytest.raises(ProtocolError, match=r"x float32\[9, 2\], the job's"):
        wanted.check("csd-00", Holding("npz", [TensorSpec("x", "<f4", (9, 2))], 0))


def test_what_is_wanted_is_what_the_jobs_own_records_have() -> None:
    assert WantedRecords.of(load_dataset("digits", 0)) == WANTED


@pytest.fixture
def fleet(host_keys: HostKeys) -> Fleet:
    return Fleet({name: ExpectedDevice(1, "", WANTED) for name in ("csd-00", "csd-01")}, host_keys, 0)


async def refusal(fleet: Fleet, greeting: Hello) -> str:
    """Have a drive say hello; return why it was refused, or nothing."""
    call = FakeCall(greeting.device, greeting)
    task = asyncio.ensure_future(fleet._serve(None, cast(Any, call)))
    await asyncio.wait({task}, timeout=0.05)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Aborted):
        await task
    return call.refusal


async def test_what_a_drive_held_first_it_has_to_go_on_holding(fleet: Fleet) -> None:
    assert await refusal(fleet, told()) == ""
    other = told(incarnation=2, manifest_sha256="b" * 64)
    assert "csd-00 holds other records than before" in await refusal(fleet, other)
    assert await refusal(fleet, told(incarnation=2)) == ""


async def test_drives_have_to_agree_on_the_names_of_classes(fleet: Fleet) -> None:
    assert await refusal(fleet, told(holding=msgspec.structs.replace(FITS, class_names=["cat", "dog"]))) == ""
    second = told("csd-01", msgspec.structs.replace(FITS, class_names=["dog"]))
    assert "csd-01's classes are dog, those of csd-00 are cat, dog; give all drives" in await refusal(fleet, second)


def test_drives_with_records_of_their_own_are_dealt_none(tmp_path: Path) -> None:
    kind: dict[str, Any] = {"profile": "newport", "engine": "native"}
    nodes = [Device(name=f"csd-{n}", number=n, data="/own" if n == 1 else None, **kind) for n in range(3)]
    data = DataSection.model_validate({"source": "digits", "private": 1.0})
    dataset = load_dataset("digits", 0)
    dealt = deal_out(dataset, data, nodes, 0)
    assert [len(part) > 0 for part in dealt.private] == [True, False, True]
    assert sum(map(len, dealt.private)) == len(dataset.labels)
    records = write_shards(nodes, data, 0, tmp_path, dataset)
    assert [record.path.exists() for record in records] == [True, False, True]
    assert (records[1].samples, records[1].manifest_sha256) == (0, "")
    all_own = [node.model_copy(update={"data": "/own"}) for node in nodes]
    assert [len(part) for part in deal_out(dataset, data, all_own, 0).private] == [0, 0, 0]


def test_the_flash_of_a_virtual_machine_has_what_lies_at_its_path_and_says_the_same_of_it(tmp_path: Path) -> None:
    images, labels = noise()
    data = write_folder(tmp_path / "own", images, labels, ["ant", "bee", "cat", "dog"])
    node = Device(name="csd-00", number=0, profile="newport", engine="qemu", data=str(data))
    section = DataSection.model_validate({"source": "digits"})
    (record,) = write_shards([node], section, 0, tmp_path / "devices", load_dataset("digits", 0))
    assert (record.samples, record.manifest_sha256) == (0, "")
    flash, there = open_shard(record.path), open_holding(data)
    assert describe(flash.manifest) == there.holding
    every = np.arange(len(labels))
    for name, column in there.fields.items():
        np.testing.assert_array_equal(flash.fields[name], column[every])
    with pytest.raises(DataError, match="is not there"):
        write_shards([node.model_copy(update={"data": "/x.npz"})], section, 0, tmp_path, load_dataset("digits", 0))


def prepared(tmp_path: Path, more: str = "", drives: str = "{profile: newport}, ") -> RunRequest:
    (tmp_path / "array.yaml").write_text(
        f"name: lab\nengine: native\ndevices: [{drives}{{profile: newport, data: /own}}]\n"
    )
    (tmp_path / "job.yaml").write_text(f"model: digits_cnn\ndata: {{source: digits}}\nmode: sync\n{more}")
    return prepare_run(resolve_run(tmp_path / "job.yaml", tmp_path / "array.yaml"))


def test_a_synchronous_job_is_planned_anew_for_what_drives_say(tmp_path: Path) -> None:
    request = prepared(tmp_path)
    assert request.sync is not None
    assert request.sync.private_sizes == (0, 1437)  # as many as there are of the job's own, until it has said
    assert any("until then 1437 of csd-01 are assumed" in note for note in request.notes)
    told = prepare_in_place(request, {"csd-01": (70, "a" * 64)})
    assert told.sync is not None
    assert (told.sync.private_sizes, told.sync.public_size, told.sync.sizes) == ((0, 70), 1437, (1437, 70))
    assert told.sync.in_place == {"csd-01": "a" * 64}
    assert told.sha256 == request.sha256  # whoever resumes does not know the records before
    assert any("the host knows the number: 70 of csd-01" in note for note in told.notes)
    assert any("csd-01: train on their own records alone" in note for note in told.notes)
    assert not any("assumed" in note for note in told.notes)
    assert prepare_in_place(request, {}) is request


def test_a_federated_job_knows_what_drives_say(tmp_path: Path) -> None:
    told = {"csd-01": (70, "a" * 64)}
    prepared(tmp_path)
    (tmp_path / "job.yaml").write_text("model: digits_cnn\ndata: {source: digits}\n")
    request = prepare_in_place(prepare_run(resolve_run(tmp_path / "job.yaml", tmp_path / "array.yaml")), told)
    assert request.records.in_place == {"csd-01": "a" * 64}


def test_an_array_with_nothing_but_records_in_place_has_no_public_ones(tmp_path: Path) -> None:
    request = prepare_in_place(prepared(tmp_path, drives=""), {"csd-00": (70, "a" * 64)})
    assert request.sync is not None
    assert (request.sync.public_size, request.sync.sizes) == (0, (70,))
    assert request.sync.steps == 10 * -(-70 // 32)


def test_a_planner_that_could_give_public_records_to_a_drive_without_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"those in place are all that csd-01 can take; set data.private: 1"):
        prepared(tmp_path, "planner: {}\n")


def test_several_servers_cannot_deal_out_what_one_of_them_alone_knows_of(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / "servers.yaml").write_text("name: hall\nservers: [{name: r, count: 2, array: array.yaml}]\n")
    with pytest.raises(ConfigurationError, match=r"r-0-01, r-1-01: of records in place only the drive's own"):
        prepare_run(resolve_run(tmp_path / "job.yaml", None, servers=(tmp_path / "servers.yaml", "r-0")))


def test_a_cut_says_what_the_host_learns_of_records_in_place(tmp_path: Path) -> None:
    request = prepared(tmp_path, "placement: '6'\n")
    assert any("csd-01: of each record that lies there in place the host learns its class" in n for n in request.notes)


def test_clocks_that_differ_are_said(tmp_path: Path) -> None:
    groups = "[{profile: newport, count: 2}, {profile: newport, engine: native}]"
    (tmp_path / "array.yaml").write_text(f"name: lab\nclock: wall\ndevices: {groups}\n")
    (tmp_path / "job.yaml").write_text("model: digits_cnn\ndata: {source: digits}\n")
    (note,) = prepare_run(resolve_run(tmp_path / "job.yaml", tmp_path / "array.yaml")).notes
    assert note.startswith("its drives have different clocks (counted: csd-00, csd-01; wall: csd-02)")


def test_a_source_may_be_a_path_from_the_jobs_folder(tmp_path: Path) -> None:
    images, labels = noise(30, (1, 8, 8))
    (tmp_path / "own").mkdir()
    write_idx(tmp_path / "own", images[:, 0], labels)
    (tmp_path / "job.yaml").write_text("model: digits_cnn\ndata: {source: ./own}\n")
    source = read_job(tmp_path / "job.yaml").data.source
    assert source == str(tmp_path / "own")
    dataset = load_dataset(source, 3)
    assert (dataset.fields["image"].shape, dataset.held_out["image"].shape) == ((24, 1, 8, 8), (6, 1, 8, 8))
    assert (dataset.input_scale, dataset.classes) == (1 / 255, 3)
    assert np.bincount(dataset.held_out["label"]).tolist() == [2, 2, 2]
    seen = np.concatenate([dataset.fields["image"], dataset.held_out["image"]]).reshape(30, -1)
    np.testing.assert_array_equal(np.unique(seen, axis=0), np.unique(images.reshape(30, -1), axis=0))
    np.testing.assert_array_equal(load_dataset(source, 3).held_out["image"], dataset.held_out["image"])


def test_what_the_makers_held_out_is_held_out(tmp_path: Path) -> None:
    images, labels = noise(6)
    for part, count in (("train", 6), ("test", 3)):
        write_folder(tmp_path / "x" / part, images[:count], labels[:count], ["a", "b", "c", "d"])
    dataset = load_dataset(str(tmp_path / "x"), 0)
    assert (len(dataset.labels), len(dataset.held_out["label"]), dataset.classes) == (6, 3, 4)


def test_a_source_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.source: ./missing is not there"):
        check_source("./missing", "data.source")
    with pytest.raises(DataError, match=r"or a path with a / in it, of a \.csv"):
        check_source("xyzzy", "data.source")
    np.savez(tmp_path / "x.npz", images=noise(2)[0], labels=np.array([0, 1]))
    with pytest.raises(DataError, match="2 records are too few to hold a fifth of each class out"):
        load_dataset(str(tmp_path / "x.npz"), 0)
    config = {"name": "lab", "engine": "native", "devices": [{"profile": "newport", "data": "/own"}]}
    assert ArrayConfig.model_validate(config).list_devices()[0].data == "/own"


def test_qemus_user_passes_the_folder_of_devices_and_enters_none(tmp_path: Path) -> None:
    nodes = [Device(name="csd-00", number=0, profile="newport")]
    folder = tmp_path / "devices"
    write_shards(nodes, DataSection.model_validate({"source": "digits"}), 0, folder, load_dataset("digits", 0))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "csd-00")] == [shared_mode(), 0o700]
