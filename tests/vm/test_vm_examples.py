"""Examples of what a drive accepts, on virtual machines: every instruction of a program of the user's is counted."""

import shutil
from pathlib import Path

import pytest
import yaml

from csd_lab.bench.drive.bench_drive import EXAMPLES, FLOWER
from tests import ROOT
from tests.support.machines import DAEMON_OUTLIVES
from tests.vm.conftest import VmWorkshop

pytestmark = [pytest.mark.vm, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]
EACH_ROUND = 600.0


def check(name: str, workshop: VmWorkshop) -> None:
    """Run two rounds of an example on two machines."""
    folder = Path(shutil.copytree(ROOT / "examples" / name, workshop.folder / name))
    job = yaml.safe_load((folder / "job.yaml").read_text()) | {"rounds": 2}
    job |= {"sync": {"round_steps": 6}} if job.get("mode") == "sync" else {"epochs": 1}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    arguments = ("run", folder / "job.yaml", "--array", workshop.array, "--runs", workshop.runs, "--json")
    done = workshop.run(*map(str, arguments), seconds=EACH_ROUND)
    assert done.code == 0, done.err
    assert done.json("run")["clock"] == "counted"
    for record in workshop.rounds():
        assert record["lost"] == []
        assert all(sum(part["stopwatch_seconds"].values()) > 0 for part in record["devices"])
    workshop.assert_clean()


def test_scaffold_by_hand_is_counted(workshop: VmWorkshop) -> None:
    check("scaffold", workshop)
    one, two = (record["devices"][0]["stopwatch_seconds"] for record in workshop.rounds())
    assert {phase for phase, seconds in one.items() if seconds > 0} == {"forward", "backward", "update", "encode"}
    assert sum(two.values()) == pytest.approx(sum(one.values()), rel=0.02)  # the same work in both rounds


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*EXAMPLES, FLOWER} - {"scaffold"}))
def test_an_example_trains(name: str, workshop: VmWorkshop) -> None:
    check(name, workshop)
