"""What only a build in containers would show: files that the images are made of, and one base image for all."""

import re
import tomllib
from fnmatch import fnmatch

import pytest

from tests import ROOT

DOCKERFILE = ROOT / "images/docker/Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8")
STAGES = re.findall(r"^FROM (\S+) AS (\S+)$", TEXT, re.MULTILINE)


def copied() -> list[str]:
    lines = re.findall(r"^COPY (?!--from)(.+)$", TEXT, re.MULTILINE)
    return sorted({source for line in lines for source in line.split()[:-1]})


def test_what_is_copied_is_there_and_in_the_context(subtests: pytest.Subtests) -> None:
    for source in copied():
        with subtests.test(source=source):
            # A pattern such as wheel[s] stands for what may be missing.
            assert "[" in source or any(ROOT.glob(source))
            allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
            top = source.split("/")[0]
            assert any(fnmatch(entry, top) for entry in allowed)


def test_what_a_wheel_takes_in_is_there_where_the_environment_is_made() -> None:
    """An editable installation looks for it, too; the folders may be empty."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        targets = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]
    (made,) = re.findall(r"mkdir -p (csd_emu .+?) \\$", TEXT, re.MULTILINE)
    wanted = {*targets["wheel"]["packages"], *targets["wheel"]["force-include"]}
    assert set(made.split()) == wanted


def test_every_stage_stands_after_those_that_it_needs() -> None:
    """The classic builder knows only the stages above, and stops at its target."""
    known: set[str] = {"${DEBIAN}"}
    for part, (base, name) in zip(re.split(r"^FROM .*$", TEXT, flags=re.MULTILINE)[1:], STAGES, strict=True):
        assert {base, *re.findall(r"--from=(\S+)", part)} <= known
        known.add(name)


def test_no_step_needs_buildkit() -> None:
    assert "syntax=" not in TEXT
    assert not re.search(r"RUN --mount|COPY --(chmod|link|parents)|<<", TEXT)


def test_the_services_are_stages_that_do_not_run_as_root() -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    targets = re.findall(r"target: (\w+)", compose)
    assert sorted(targets) == ["drives", "host", "prometheus"]
    bodies = dict(zip([name for _, name in STAGES], re.split(r"^FROM .*$", TEXT, flags=re.MULTILINE)[1:], strict=True))
    for target in targets:
        assert re.findall(r"^USER (\S+)$", bodies[target], re.MULTILINE)[-1:] == ["csd-emu"]


def test_every_place_names_the_same_base_image() -> None:
    tag = re.findall(r"^ARG DEBIAN=(\S+)$", TEXT, re.MULTILINE)
    elsewhere = re.findall(r"CSD_DEBIAN(?::-|=)([^\s}\"]+)", (ROOT / "docker-compose.yml").read_text())
    elsewhere += re.findall(r"^CSD_DEBIAN=(\S+)$", (ROOT / ".env").read_text(), re.MULTILINE)
    assert len(elsewhere) >= 2
    assert {*tag, *elsewhere} == {tag[0]}
