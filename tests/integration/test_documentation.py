"""The documentation: pages made from code are those of the code, links lead somewhere, the tutorial runs as written."""

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from csd_lab.generate import boards, development
from csd_lab.generate.reference.pages import FOLDER, pages
from tests.support.browser import Browser, find_browser
from tests.support.commands import Workshop

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = development.PACKAGES
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Paths of files and folders of the repository, as pages name them.
SOURCE = re.compile(r"(?<![\w/.-])(?:firmware_agent|csd_emu|host|csd_lab|tests)/[a-z0-9_/]+(?:\.py\b|/(?=[`)]))")
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def listed(nav: Any) -> Iterator[str]:
    """Every page of a navigation."""
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else listed(value)


@pytest.mark.parametrize("name", ["array-file.md", "cli.md", "job-file.md"])
def test_a_reference_page_is_that_of_the_code(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "run python -m csd_lab.generate.reference"


def test_directory_guide_and_picture_are_those_of_the_code() -> None:
    for path, text in development.files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python -m csd_lab.generate.development"


def test_the_page_of_boards_is_that_of_what_was_compared() -> None:
    for path, text in boards.files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python -m csd_lab.generate.boards"


def test_the_directory_guide_lists_every_folder() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode != 0:
        pytest.skip("no clone, so nothing says which folders belong to the repository")
    listed = development.describe_folders()
    folders = {path.partition("/")[0] for path in tracked.stdout.splitlines() if "/" in path and path[0] != "."}
    assert {path.partition("/")[0] for path in listed} == folders
    packages = {str(path.parent.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("__init__.py")}
    assert packages <= listed.keys()
    tests = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "tests").glob("*/*.py")}
    assert tests <= listed.keys()
    for folder, text in listed.items():
        assert (ROOT / folder).is_dir()
        assert text, f"{folder} has no docstring"


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.name)
def test_pages_name_files_that_exist(page: Path) -> None:
    for path in SOURCE.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_every_page_is_in_the_navigation() -> None:
    found = list(listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert sorted(found) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.name)
def test_relative_links_lead_to_files(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, _ = target.partition("#")
        if path and ":" not in path:
            found = (page.parent / path).resolve()
            # A page of the site can only link to what is in the site.
            assert found.is_file() if page.is_relative_to(DOCS) else found.exists(), f"{page.name}: {target}"
            assert page.parent == ROOT or found.is_relative_to(DOCS), f"{page.name}: {target} is not in the site"


@pytest.mark.long
def test_the_tutorial_runs_as_it_is_written(workshop: Workshop) -> None:
    """On the native engine; its text promises that every command is run."""
    programs = workshop.folder / "bin"
    programs.mkdir()
    program = programs / "csd-emu"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m host "$@"\n')
    program.chmod(0o755)
    folder = workshop.folder / "empty"
    folder.mkdir()
    environment = workshop.environment | {"PATH": f"{programs}:{os.defpath}", "PYTHONPATH": str(ROOT)}
    blocks = FENCE.findall((DOCS / "tutorial.md").read_text(encoding="utf-8"))
    assert {kind for kind, _, _ in blocks} == {"sh", "python", "yaml"}
    for kind, title, text in blocks:
        if kind == "sh":
            command = ["bash", "-euo", "pipefail", "-c", text]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{text}{done.stdout}{done.stderr}"
        else:
            (folder / title).write_text(text, encoding="utf-8")
    runs = sorted((folder / "runs").iterdir())
    assert len(runs) == 3
    assert all((run / "report.html").is_file() for run in runs)
    workshop.assert_clean()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_builds_without_a_warning(site: Path) -> None:
    for name in listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]):
        assert (site / name.replace(".md", ".html")).is_file()
    python = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert "host.policies.aggregation.Strategy" in python
    assert "compute_seconds" in python


@pytest.mark.long
@pytest.mark.parametrize("dark", [False, True])
def test_a_reader_asks_nobody_else_and_has_light_and_dark(site: Path, dark: bool) -> None:
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, Browser(find_browser()) as browser:
        threading.Thread(target=server.serve_forever).start()
        origin = f"http://127.0.0.1:{server.server_address[1]}/"
        try:
            for page in ("index.html", "reference/job-file.html"):
                tab = browser.open(origin + page, 390, dark)
                tab.wait_for("document.readyState === 'complete'")
                assert tab.evaluate("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
                assert tab.evaluate("document.documentElement.scrollWidth") <= 390
                assert [url for url in tab.requests() if not url.startswith((origin, "data:"))] == []
                assert tab.complaints() == []
                tab.close()
        finally:
            server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
