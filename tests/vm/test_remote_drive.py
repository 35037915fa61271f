"""A real drive in an array, as far as a plain ARM machine is one: installed, enrolled and lent over SSH alone."""

from pathlib import Path

import msgspec
import pytest
import yaml

from csd_emu.util.paths import Paths
from host.core.records import EventRecord, RoundRecord
from tests.support.commands import ARRAY, Workshop, temporary_workshop
from tests.targets import target

pytestmark = [pytest.mark.vm, pytest.mark.long]
# Emulated, and on a machine that others use: the installation alone takes minutes.
SECONDS = 1800.0


@pytest.mark.parametrize("kind", ["bookworm", "sysv", "bare"])
def test_a_plain_machine_trains_beside_a_native_drive(kind: str) -> None:
    with target(kind) as drive, temporary_workshop(Workshop) as workshop:
        # Bundles take minutes to make: they are those of this user.
        workshop.home.mkdir()
        (workshop.home / "cache").symlink_to(Paths.default().cache)
        inventory = workshop.folder / "drives.yaml"
        inventory.write_text(yaml.safe_dump({"name": "targets", "drives": {drive.name: drive.inventory_entry()}}))
        for verb in ("install", "enrol"):
            done = workshop.run("deploy", verb, str(inventory), "--timeout", "25 min", seconds=SECONDS)
            assert done.code == 0, done.out + done.err
        groups = [{"profile": "newport", "engine": "native"}, {"engine": "remote", "drives": [drive.name]}]
        content = {"name": "lab", "inventory": str(inventory), "host": {"address": "0.0.0.0"}, "devices": groups}
        workshop.write("array.yaml", {key: value for key, value in ARRAY.items() if key == "name"} | content)
        arguments = workshop.job_arguments(rounds=1, epochs=1, target=None)
        done = workshop.run(*arguments, "--json", seconds=SECONDS)
        assert done.code == 0, done.err
        summary = done.json("run")
        assert (summary["engine"], summary["clock"]) == ("native+remote", "modelled+wall")
        lines = (Path(summary["run_directory"]) / "records.jsonl").read_bytes().splitlines()
        records = [msgspec.json.decode(line, type=RoundRecord | EventRecord) for line in lines]
        (record,) = [each for each in records if isinstance(each, RoundRecord)]
        assert {part.device: part.clock for part in record.devices} == {"csd-00": "modelled", drive.name: "wall"}
        assert record.lost == []
