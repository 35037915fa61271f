"""Records that were on a virtual machine's flash before the array came up: drawn there, in synchronous steps."""

from typing import Any

import numpy as np
import pytest

from tests.support.commands import ARRAY
from tests.support.machines import DAEMON_OUTLIVES
from tests.vm.conftest import NAME, VmWorkshop

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]
SIZES = {"csd-00": 70, "csd-01": 30}


def test_machines_draw_what_lies_on_their_flash(workshop: VmWorkshop) -> None:
    generator, groups = np.random.default_rng(0), []
    for device, size in SIZES.items():
        path = workshop.folder / f"{device}.npz"
        images = generator.integers(0, 17, (size, 8, 8), np.uint8)
        np.savez(path, images=images, labels=generator.integers(0, 10, size))
        groups.append({"profile": "newport", "data": str(path)})
    array = workshop.write("array.yaml", ARRAY | {"name": NAME, "engine": "qemu", "devices": groups})
    job: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync", "rounds": 2}
    arguments = ("run", workshop.write("job.yaml", job), "--array", array, "--runs", workshop.runs, "--json")
    done = workshop.run(*map(str, arguments), seconds=600)
    assert done.code == 0, done.err
    assert done.json("run")["clock"] == "counted"
    for record in workshop.rounds():
        assert {part["device"]: part["samples"] for part in record["devices"]} == SIZES
    workshop.assert_clean()
