"""Real drives in an array: over SSH on loopback, beside native ones, with records that lie on them in place."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from sklearn.datasets import load_digits

from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import load_table
from host.app import real_machine
from host.core.device_time import TableModel, batch_counts, pass_seconds
from host.core.records import EventKind, EventRecord, RoundRecord
from tests.support.commands import Done, Workshop
from tests.support.loopback import Loopback, loopback, needs_sshd
from tests.unit.firmware_agent.common.datafiles.test_datafiles import write_idx

pytestmark = needs_sshd


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("ssh")) as server:
        yield server


def digits_at(folder: Path, count: int, side: int = 8) -> Path:
    images, labels = load_digits(return_X_y=True)
    shaped = images.reshape(-1, 8, 8).astype(np.uint8)[:count, :side, :side]
    folder.mkdir()
    return write_idx(folder, shaped, labels[:count].astype(np.int64))


def records_of(summary: dict[str, Any]) -> list[RoundRecord | EventRecord]:
    return read(Path(summary["run_directory"]))


def read(directory: Path) -> list[RoundRecord | EventRecord]:
    lines = (directory / "records.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=RoundRecord | EventRecord) for line in lines]


def mixed(inventory: Path) -> dict[str, Any]:
    groups = [{"profile": "newport", "engine": "native"}, {"engine": "remote", "drives": ["left", "right"]}]
    return {"name": "lab", "inventory": str(inventory), "devices": groups}


@pytest.mark.long
def test_real_drives_train_beside_native_ones(
    server: Loopback, workshop: Workshop, csd_emu: Callable[..., Done], tmp_path: Path
) -> None:
    inventory = server.inventory(["left", "right"])
    data = digits_at(tmp_path / "own", 300)
    text = inventory.read_text().replace("right: {", f"right: {{data: {data}, ")
    text = text.replace("left: {", "left: {host_address: ssh, ")  # it dials through the SSH connection
    inventory.write_text(text)
    workshop.write("array.yaml", mixed(inventory))
    done = csd_emu(*workshop.job_arguments(rounds=2, epochs=1, target=None))
    assert done.code == 2
    assert f"drive left: is not enrolled; run csd-emu deploy {inventory} enrol --drives left" in done.err
    assert "drive right: is not enrolled" in done.err
    assert csd_emu("deploy", "enrol", str(inventory)).code == 0
    done = csd_emu(*workshop.job_arguments(rounds=2, epochs=1, target=None), "--json")
    assert done.code == 0, done.err
    summary = done.json("run")
    assert (summary["engine"], summary["clock"]) == ("native+remote", "modelled+wall")
    records = records_of(summary)
    rounds = [record for record in records if isinstance(record, RoundRecord)]
    assert len(rounds) == 2
    for record in rounds:
        parts = {part.device: part for part in record.devices}
        assert {name: part.clock for name, part in parts.items()} == {
            "csd-00": "modelled", "left": "wall", "right": "wall",
        }  # fmt: skip
        # The two others share the host's records; those of the third never were the host's to deal out.
        assert parts["right"].samples == 300
        assert parts["csd-00"].samples + parts["left"].samples == 1437
    notes = [each.detail for each in records if isinstance(each, EventRecord) and each.what is EventKind.NOTE]
    assert any("different clocks (modelled: csd-00; wall: left, right)" in note for note in notes)
    # In synchronous steps the third draws its own records, beside the others' public ones.
    job: dict[str, Any] = {"rounds": 1, "epochs": 1, "target": None, "mode": "sync", "data": {"source": "digits"}}
    done = csd_emu(*workshop.job_arguments(**job), "--json")
    assert done.code == 0, done.err
    records = records_of(done.json("run"))
    (record,) = [record for record in records if isinstance(record, RoundRecord)]
    samples = {part.device: part.samples for part in record.devices}
    assert (samples["right"], samples["csd-00"] + samples["left"]) == (300, 1437)
    assert any("300 of right" in each.detail for each in records if isinstance(each, EventRecord))
    assert (workshop.agents(), workshop.arrays()) == ([], [])


@pytest.mark.long
def test_a_real_drive_is_measured_and_compared_with_its_emulation(
    server: Loopback, workshop: Workshop, csd_emu: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_machine, "MOST_SPREAD", 1e9)  # this machine may be as busy as it likes
    inventory = server.inventory(["only"], "-f")
    assert csd_emu("deploy", "enrol", str(inventory)).code == 0
    done = csd_emu("fidelity", "only", "--inventory", str(inventory), "--batches", "1,512", "--steps", "9", "--json")
    assert done.code == 0, done.err
    report = done.json("fidelity")
    assert (report["drive"], report["profile"]) == ("only", "newport")
    assert (report["emulated_clock"], report["drive_clock"]) == ("counted", "wall")
    assert [(row["model"], row["batch_size"], row["steps"]) for row in report["rows"]] == [
        ("digits_cnn", 1, 9), ("digits_cnn", 512, 9),
    ]  # fmt: skip
    for row in report["rows"]:
        assert row["ratio"] == pytest.approx(row["drive_seconds"] / row["emulated_seconds"])

    arguments = ("calibrate", "digits_cnn", "--inventory", str(inventory), "--drive", "only", "--batches", "1,512")
    done = csd_emu(*arguments, "--json")
    assert done.code == 0, done.err
    table = done.json("calibrate")
    assert (table["clock"], table["core"], table["drive"], table["image"]) == ("wall", "newport", "only", "")
    # What emulation takes from now on for drives of this profile.
    assert csd_emu(*workshop.job_arguments(rounds=1, target=None)).code == 0
    (directory,) = workshop.runs.iterdir()
    (record,) = [each for each in read(directory) if isinstance(each, RoundRecord)]
    model = TableModel(load_table(Path(table["path"])), get_profile("newport"))
    for part in record.devices:
        assert part.clock == "modelled"
        cost = pass_seconds(model, batch_counts(part.samples, 2, 32))
        assert part.device_seconds.total == pytest.approx(cost.total)


@pytest.mark.long
def test_records_in_place_that_do_not_fit_are_refused_with_both_shapes(
    server: Loopback, workshop: Workshop, csd_emu: Callable[..., Done], tmp_path: Path
) -> None:
    data = digits_at(tmp_path / "small", 50, 6)
    inventory = server.inventory(["up"], "-s", data=str(data))
    workshop.write("array.yaml", mixed(inventory) | {"devices": [{"engine": "remote", "drives": ["up"]}]})
    assert csd_emu("deploy", "enrol", str(inventory)).code == 0
    done = csd_emu(*workshop.job_arguments(rounds=2, target=None))
    assert done.code == 1
    assert "up holds records of image uint8[1, 6, 6], label int64[], the job's are of image uint8[1, 8, 8]" in " ".join(
        done.err.split()
    )


@pytest.mark.long
def test_real_drives_stay_up_come_back_after_a_crash_and_are_given_back(
    server: Loopback, workshop: Workshop, csd_emu: Callable[..., Done]
) -> None:
    inventory = server.inventory(["one"], "-k")
    assert csd_emu("deploy", "enrol", str(inventory)).code == 0
    content = {"name": "lab", "inventory": str(inventory), "devices": [{"engine": "remote", "drives": ["one"]}]}
    workshop.write("array.yaml", content)
    job = workshop.job_arguments(rounds=1, epochs=1, target=None)
    assert csd_emu("up", str(workshop.array), "--job", str(workshop.job)).code == 0
    status = csd_emu("status", "--json").json("status")
    (array,) = status["arrays"]
    assert (array["engine"], array["state"]) == ("remote", "up")
    (drive,) = array["devices"]
    # Its agent crashes, is started by its supervisor, and is another incarnation of itself.
    agent = server.agent_of("-kone")
    agent.kill()
    agent.wait(10)
    done = csd_emu(*job, "--json")
    assert done.code == 0, done.err
    assert done.json("run")["clock"] == "wall"
    assert csd_emu("down", "lab").code == 0
    assert not (server.folder / "drives" / "-kone" / "slot" / "lease").exists()
    assert drive["incarnation"] > 10**9
