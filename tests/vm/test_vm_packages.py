"""Programs of the user's on virtual machines whose image the array file gives more Python packages."""

from typing import Any

import pytest

from csd_emu.config.array_file import ArrayConfig
from tests.integration.test_flower_programs import CLIENT, SERVER
from tests.integration.test_flower_programs import JOB as FLOWERS
from tests.support.commands import ARRAY
from tests.support.machines import DAEMON_OUTLIVES, prepared_qemu
from tests.vm.conftest import NAME, VmWorkshop

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]
ROUND_SECONDS = 600.0
# One image for all tests: what it has beside torch is looked for, fetched and booted once.
PACKAGES = ["annotated-types>=0.6", "flwr>=1.42,<2"]
HOOK = """
from annotated_types import Gt


def train(model, csd):
    optimizer = csd.optimizer()
    for batch in csd.loader:
        optimizer.zero_grad()
        loss = csd.loss(batch)
        loss.backward()
        optimizer.step()
    return {"bound": Gt(3.0).gt}
"""


@pytest.fixture
def packed(workshop: VmWorkshop) -> VmWorkshop:
    """A workshop whose machines have the packages."""
    content: dict[str, Any] = ARRAY | {"name": NAME, "engine": "qemu", "image": {"packages": PACKAGES}}
    workshop.array = workshop.write("array.yaml", content)
    prepared_qemu(ArrayConfig.model_validate(content)).close()
    return workshop


def train(workshop: VmWorkshop, job: dict[str, Any]) -> dict[str, Any]:
    """Run one round on the machines, and return its record."""
    path = workshop.write("job.yaml", job | {"rounds": 1, "epochs": 1})
    done = workshop.run(
        "run", path, "--array", workshop.array, "--runs", workshop.runs, "--json", seconds=ROUND_SECONDS
    )
    assert done.code == 0, done.err
    assert done.json("run")["clock"] == "counted"
    (record,) = workshop.rounds()
    assert record["lost"] == []
    workshop.assert_clean()
    return record


def test_a_hook_imports_a_package_that_the_recipe_has_not(packed: VmWorkshop) -> None:
    packed.write("mine.py", HOOK)
    job = {"model": "digits_cnn", "data": {"source": "digits"}, "client": "mine.py:train"}
    record = train(packed, job)
    assert record["metrics"]["train_bound"] == 3
    # Of the same job without them it is said before anything starts.
    bare = packed.write("bare.yaml", ARRAY | {"name": NAME, "engine": "qemu"})
    done = packed.run("run", packed.folder / "job.yaml", "--array", bare, "--runs", packed.folder / "other")
    assert done.code == 2
    assert "mine.py:train: line 2 imports annotated_types, which drives of this array do not have" in done.err


def test_a_client_app_of_flowers_trains(packed: VmWorkshop) -> None:
    packed.write("server_app.py", SERVER)
    packed.write("client_app.py", CLIENT)
    record = train(packed, FLOWERS | {"client": "client_app.py:app"})
    assert record["metrics"]["train_num-examples"] > 1
    assert record["accuracy"] > 0.3
