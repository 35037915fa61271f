"""What the images are made of: nothing is taken by a name alone that somebody else can move."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests import ROOT

DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
LOCKS = ROOT / "images" / "docker"
BUILD = ["editables", "setuptools", "wheel"]  # see scripts/lock-host-packages


def settings() -> dict[str, str]:
    lines = (ROOT / ".env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return content


def locked(name: str) -> dict[str, str]:
    """Return name -> version of a lock file; each has one hash, and nothing else is in the file."""
    text = (LOCKS / name).read_text(encoding="utf-8")
    lines = [line for line in text.replace(" \\\n", "").splitlines() if not line.startswith("#")]
    found = [re.fullmatch(r"([a-z0-9.-]+)==(\S+) +--hash=sha256:[0-9a-f]{64}", line) for line in lines]
    assert all(found), lines
    return {match[1]: match[2] for match in found if match}


def test_images_of_others_are_pinned_by_digest_and_the_same_everywhere() -> None:
    base = settings()["CSD_DEBIAN"]
    assert DIGEST.search(base)
    assert DIGEST.search(settings()["GRAFANA_VERSION"])
    dockerfile = (LOCKS / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^ARG DEBIAN=(.*)", dockerfile, re.MULTILINE) == [base]
    assert {match for match in re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE) if match[0] == "$"} == {"${DEBIAN}"}
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"CSD_DEBIAN:-([^}]*)", text)) == {base}
    assert re.findall(r"GRAFANA_VERSION:-([^}]*)", text) == [settings()["GRAFANA_VERSION"]]


def test_the_locks_hold_what_pyproject_asks_for() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = declared["project"]["optional-dependencies"]
    wanted = [*declared["project"]["dependencies"], *extras["agent"], *extras["host"], *extras["qemu"]]
    packages, build = locked("torch.lock") | locked("requirements.lock"), locked("build.lock")
    for have, asked in ((packages, wanted), (build, [*declared["build-system"]["requires"], *BUILD])):
        for requirement in map(Requirement, asked):
            applies = requirement.marker is None or requirement.marker.evaluate({"platform_machine": "x86_64"})
            if requirement.name != "csd-emu" and applies:
                assert requirement.specifier.contains(have[requirement.name]), requirement
    assert list(locked("torch.lock")) == ["torch"]
    assert locked("torch.lock")["torch"].endswith("+cpu")


def test_the_image_installs_nothing_but_the_locks() -> None:
    dockerfile = (LOCKS / "Dockerfile").read_text(encoding="utf-8")
    assert "CSD_LOCKS=build " in dockerfile
    assert "pip install" not in dockerfile
    setup = (ROOT / "scripts" / "setup-python").read_text(encoding="utf-8")
    own = setup[setup.index("install_locked() {") :].partition("\n}")[0]
    assert own.count("--require-hashes") == own.count("--requirement") == 2
    assert own.count("--no-deps") == 3


ACTION = ROOT / "action.yml"


@pytest.mark.parametrize(
    "path", [ACTION, *sorted((ROOT / "examples").rglob("github-actions.yml"))], ids=lambda path: path.parent.name
)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    uses = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
    assert uses
    for action, comment in uses:
        assert re.fullmatch(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" +# v\d+\.\d+\.\d+", comment), action


def test_the_action_is_composite_and_uses_the_inputs_that_it_has() -> None:
    text = ACTION.read_text(encoding="utf-8")
    action = yaml.safe_load(text)
    assert action["runs"]["using"] == "composite"
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(action["inputs"])
    assert all(each["description"] for each in action["inputs"].values())
    identities = {step["id"] for step in action["runs"]["steps"] if "id" in step}
    assert set(re.findall(r"steps\.([\w-]+)\.", text)) <= identities
    for step in action["runs"]["steps"]:
        assert ("uses" in step) != (step.get("shell") == "bash" and "run" in step)
        assert "${{" not in step.get("run", "")  # what is put into a script is run by it


def test_drives_have_no_way_out_and_no_rights() -> None:
    stack = compose()
    assert stack["networks"]["drives"] == {"internal": True}
    assert stack["services"]["drives"]["networks"] == ["drives"]
    for name, service in stack["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        assert not any("docker.sock" in str(volume) for volume in service["volumes"]), name


def test_every_file_that_the_threat_model_names_is_there() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*|docker-compose\.yml)`", text)
    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_row_of_the_threat_model_has_a_check_and_a_test() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = text.partition("\n| who | holds |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(rows) > 15
    for row in rows:
        check, test = row.strip("| ").split(" | ")[-2:]
        assert "`" in check, row
        assert re.search(r"`(tests/|make |csd-emu bench)", test), row
