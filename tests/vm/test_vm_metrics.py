"""A real Prometheus beside a run on virtual machines: the bench `metrics`, in short."""

import os
import shutil

import pytest

from csd_emu.config.array_file import ArrayConfig
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.bench.monitoring.bench_metrics import scrape_run
from csd_lab.testkit.prometheus import PROGRAM
from host.config.job_file import JobConfig
from tests.support.commands import ARRAY
from tests.support.machines import DAEMON_OUTLIVES, REQUIRE_VARIABLE
from tests.vm.conftest import NAME, VmWorkshop

pytestmark = [pytest.mark.vm, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]


@pytest.mark.long
def test_prometheus_answers_what_the_run_record_says(workshop: VmWorkshop) -> None:
    if shutil.which(PROGRAM) is None and os.environ.get(REQUIRE_VARIABLE) != "1":
        pytest.skip("Prometheus is not installed; make setup-dev installs it")
    config = ArrayConfig.model_validate(ARRAY | {"name": NAME, "engine": "qemu"})
    job = JobConfig.model_validate({"model": "digits_cnn", "data": {"source": "digits"}, "rounds": 3, "batch_size": 64})
    answers, wall = scrape_run(config, job, Paths.default(), Silent(), workshop.folder)
    whole = [answer for answer in answers if (answer.first_round, answer.last_round) == (1, 3)]
    assert {(answer.quantity, answer.device) for answer in whole} == {
        *(("records_per_device_second", device) for device in ("csd-00", "csd-01")),
        *((quantity, device) for quantity in ("watts", "joules") for device in ("csd-00", "csd-01", "host")),
        ("joules_per_record", ""),
    }
    assert max(answer.error for answer in answers) < 1e-6
    assert max(wall) < 0.5, "an emulated drive is many times slower in wall time: not to divide is wrong"
    assert workshop.machines() == []
