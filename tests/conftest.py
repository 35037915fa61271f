"""What all tests share. No fixture here takes real time."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from csd_emu.paths import HOME_VARIABLE, Paths
from host.certificates import Authority, HostKeys

# Nets and arrays are tiny here: threads that share them would only wait for each other, and for the other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine must not make a law of arithmetic fail, so no example has a deadline. What every change must pass draws
# the same examples every time, so that a change is never refused for what another one broke; `make test-all` draws
# new ones each time, and more.
settings.register_profile("csd-emu", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=300)
settings.load_profile("csd-emu")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what stays together when several processes share the tests (`pytest -n`).

    A file does: its tests share fixtures. So do all tests on virtual machines, which share template, daemon and names;
    they take longest and come first, so that nobody waits for them in the end.
    """
    items.sort(key=lambda item: item.get_closest_marker("vm") is None)
    for item in items:
        group = "virtual machines" if item.get_closest_marker("vm") else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))


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
