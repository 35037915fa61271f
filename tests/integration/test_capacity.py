"""The capacity plan: its tables are those of the code, its files are those that were simulated."""

import re
from collections.abc import Callable

import pytest
import yaml

from csd_emu.config.servers_file import ServersConfig
from csd_lab.simulate.capacity import ARRAY, MODELS, PAGE, SERVERS, filled, job_of, servers_of, simulate_servers
from tests.support.commands import Done, Workshop

FENCE = re.compile(r"^```yaml title=\"([^\"]+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_has_the_tables_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page), "run python -m csd_lab.simulate.capacity"
    assert filled(page.replace("| mobilenet_v2 |", "| mobilenet |")) == page


def test_the_page_shows_the_files_and_the_command_that_its_figures_are_of(
    workshop: Workshop, csd_emu: Callable[..., Done]
) -> None:
    files = dict(FENCE.findall(PAGE.read_text(encoding="utf-8")))
    shown = {name: yaml.safe_load(text) for name, text in files.items()}
    assert shown["array.yaml"] == ARRAY
    assert ServersConfig.model_validate(shown["servers.yaml"]) == ServersConfig.model_validate(servers_of(SERVERS[-1]))
    assert shown["job.yaml"] == job_of("mobilenet_v2")
    for name, text in files.items():
        workshop.write(name, text)
    job, servers = workshop.folder / "job.yaml", workshop.folder / "servers.yaml"
    done = csd_emu("simulate", job, "--servers", servers, "--steps", "10", "--json")
    assert done.code == 0, done
    (run,) = done.json("simulate-servers")["runs"]
    figures = simulate_servers("mobilenet_v2", SERVERS[-1])
    assert run["records_per_second"] == figures.records_per_second
    assert run["steps"][0]["array_seconds"] == figures.steps[0].array_seconds


@pytest.mark.parametrize("model", MODELS)
def test_the_figures_are_of_batches_that_calibration_covers(model: str) -> None:
    assert all(each.covered for each in simulate_servers(model, 2).classes)
