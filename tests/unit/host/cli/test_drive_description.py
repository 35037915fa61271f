"""What drives offer in SNIA's terms: every figure of the profile once, every task of the agent, nothing made up."""

import inspect
import re
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from csd_emu.profiles import PROFILES
from csd_emu.util.paths import Paths
from firmware_agent.agent import Agent
from firmware_agent.common.errors import ConfigurationError
from host.cli.drive_description import FUNCTIONS, DescribeReport, describe_array, describe_profile
from host.cli.main import app
from host.cli.schemas import find_output

DRIVES = [name for name, profile in PROFILES.items() if profile.kind == "drive"]
ARRAY = """
name: lab
engine: qemu
memory: 3 GiB
devices:
  - {profile: newport, count: 2}
  - {profile: solana, count: 1}
  - {profile: newport, count: 1, engine: native, name: own}
"""


def of(name: str, tmp_path: Path) -> DescribeReport:
    return describe_profile(name, Paths(tmp_path, tmp_path, tmp_path))


@pytest.mark.parametrize("name", DRIVES)
def test_each_figure_of_a_profile_is_there_once_with_its_source(name: str, tmp_path: Path) -> None:
    (drives,) = of(name, tmp_path).drives
    told = [figure for resource in drives.resources for figure in resource.figures]
    assert sorted(told, key=lambda each: each.figure) == sorted(PROFILES[name].entries(), key=lambda each: each.figure)
    assert all(figure.source for figure in told)


def test_its_functions_are_what_the_agent_serves() -> None:
    handled = set(re.findall(r"case ([\w() |]+):", inspect.getsource(Agent._handle)))
    served = {name.rstrip("()") for case in handled if case != "_" for name in case.split(" | ")}
    assert {kind.__name__ for kind in FUNCTIONS} == served - {"Job", "Slice", "Tensors"}  # its configuration, its data


def test_drives_of_an_array_that_are_alike_stand_together(tmp_path: Path) -> None:
    path = tmp_path / "array.yaml"
    path.write_text(ARRAY)
    report = describe_array(path)
    assert [(each.drives, each.profile, each.engine) for each in report.drives] == [
        (["csd-00", "csd-01"], "newport", "qemu"),
        (["csd-02"], "solana", "qemu"),
        (["own-00"], "newport", "native"),
    ]
    memory = [
        [figure.value for each in drives.resources if each.term == "FDM" for figure in each.figures][-1]
        for drives in report.drives
    ]
    assert memory == [3 * 2**30, 3 * 2**30, PROFILES["newport"].dram_bytes_per_second.value]  # type: ignore[union-attr]


def test_each_term_of_the_architecture_is_used(tmp_path: Path) -> None:
    (drives,) = of("newport", tmp_path).drives
    terms = {each.term for each in drives.resources}
    assert {"CSx", "CSE", "CSEE", "CSF", "FDM", "AFDM", "storage", "discovery", "usage"} <= terms
    page = (Path(__file__).parents[4] / "docs" / "standards.md").read_text(encoding="utf-8")
    assert not {term for term in terms if f"| {term}" not in page}


def test_the_command_prints_a_table_or_the_published_structure() -> None:
    table = CliRunner().invoke(app, ["describe", "--profile", "newport"])
    assert "CSEE" in table.output
    told = CliRunner().invoke(app, ["describe", "--profile", "newport", "--json"])
    report = msgspec.json.decode(told.output, type=find_output("describe"))
    assert msgspec.json.decode(told.output) == msgspec.to_builtins(report)


@pytest.mark.parametrize("arguments", [[], ["array.yaml", "--profile", "newport"], ["--profile", "xeon-4108"]])
def test_what_cannot_be_described_is_refused(arguments: list[str]) -> None:
    error = CliRunner().invoke(app, ["describe", *arguments]).exception
    assert isinstance(error, ConfigurationError)
    assert error.exit_code == 2
