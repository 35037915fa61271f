"""What all tests share. No fixture here takes real time."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from csd_emu.paths import HOME_VARIABLE, Paths
from host.certificates import Authority, HostKeys

# Nets and arrays are tiny here: threads that share them would only wait for each other, and for the other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine must not make a law of arithmetic fail, so no example has a deadline. What every change must pass draws
# the same examples every time, so that a change is never refused for what another one broke; `make test-all` draws
# new ones each time, and six times as many.
settings.register_profile("csd-emu", deadline=None, print_blob=True, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=300)
settings.load_profile("csd-emu")


# Of the unit tests, those that nobody should wait for in the end.
LONGEST = tuple(
    f"tests/unit/test_{name}.py" for name in ("cutting", "report_page", "report_steps", "zoo", "cut_training")
)


def group_of(nodeid: str) -> str:
    """Return what a test stays together with when several processes share the tests (`pytest -n`).

    With its file, whose fixtures it may share; on virtual machines with all such tests, which share a template, the
    daemon and names.
    """
    if nodeid.startswith("tests/vm/") or "[qemu" in nodeid:
        return "virtual machines"
    return nodeid.partition("::")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes longest first, so that nobody waits for it in the end."""
    for item in items:
        if item.get_closest_marker("vm") and group_of(item.nodeid) != "virtual machines":
            raise pytest.UsageError(f"{item.nodeid}: tests marked vm lie in tests/vm, or have a parameter qemu")
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    if item.get_closest_marker("vm"):
        return 0
    if not item.nodeid.startswith("tests/unit/"):
        return 1
    return 2 if item.nodeid.startswith(LONGEST) else 3


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out the groups one by one, in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """All of csd-emu's folders, below this test's own folder."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return Paths.default()


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority("lab")


@pytest.fixture(scope="session")
def host_keys(authority: Authority) -> HostKeys:
    return HostKeys(authority.ca_pem, authority.issue_host())
