"""Hooks, options and the fixture, as pytest loads them; everything else is imported when a test asks for an array."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from host.app.pytest_plugin.array_pool import ArrayPool
    from host.app.pytest_plugin.csd_array import CsdArray

REQUIRE_VARIABLE = "CSD_REQUIRE_VM"
_MARK = (
    "csd(devices=2, engine='qemu', profile='newport', array=None, **keys): which drives the fixture csd_array has; "
    "array is an array file, keys are others of its top level (csd-emu docs ci)"
)
_lab: pytest.StashKey[ArrayPool] = pytest.StashKey()
_array: pytest.StashKey[CsdArray] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and their ini keys."""
    group = parser.getgroup("csd-emu", "emulated computational storage drives")
    group.addoption("--csd-engine", choices=["qemu", "native"], help="in place of what marks and array files say")
    group.addoption("--csd-clock", choices=["auto", "modelled", "wall", "sampled"], help="likewise")
    group.addoption(
        "--csd-artifacts",
        metavar="DIR",
        help="keep run directories, consoles and metrics of tests below DIR",
    )
    group.addoption(
        "--csd-keep", choices=["failed", "all", "none"], default="failed", help="of which tests (default: failed)"
    )
    group.addoption(
        "--csd-require", action="store_true", help="where drives cannot be started, fail instead of skipping the test"
    )
    parser.addini("csd_engine", "the engine where neither mark nor array file says one", default="")
    parser.addini("csd_artifacts", "as --csd-artifacts, below the root folder", default="")
    parser.addini("csd_require", "as --csd-require", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, so that --strict-markers lets it pass."""
    config.addinivalue_line("markers", _MARK)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse --csd-clock sampled where QEMU is missing, before any test runs."""
    if session.config.getoption("csd_clock") == "sampled":
        from csd_emu.util.qemu_tools import find_qemu
        from firmware_agent.common.errors import EnvironmentUnfit

        try:
            find_qemu()
        except EnvironmentUnfit as error:
            raise pytest.UsageError(
                f"--csd-clock sampled counts steps on a virtual machine, and that is not possible here: {error}; "
                "without one --csd-engine native --csd-clock modelled is what is left"
            ) from error


@pytest.fixture
def csd_array(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CsdArray]:
    """Give the test an array of drives, which comes up with its first job and may stay up for the next test."""
    from firmware_agent.common.errors import EnvironmentUnfit
    from host.app.pytest_plugin.array_pool import ArrayPool

    config, node = request.config, request.node
    if _lab not in config.stash:
        config.stash[_lab] = ArrayPool.of(config, tmp_path_factory)
    lab = config.stash[_lab]
    try:
        array = lab.open(read_marks(node, config), node.path.parent)
    except EnvironmentUnfit as error:
        if config.getoption("csd_require") or config.getini("csd_require") or os.environ.get(REQUIRE_VARIABLE) == "1":
            raise
        pytest.skip(f"no drives can be started here: {error}")
    node.stash[_array] = array
    try:
        yield array
    finally:
        lab.release(array, node.nodeid, failed=array.failed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach to a failing test what its drives said: they may be gone when someone reads the report."""
    report = yield
    if (array := item.stash.get(_array, None)) is not None and report.failed and report.when != "teardown":
        array.failed = True
        report.sections += array.describe()
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what is still up, also after Ctrl-C."""
    if (lab := session.config.stash.get(_lab, None)) is not None:
        lab.close()


def read_marks(node: pytest.Item, config: pytest.Config) -> dict[str, Any]:
    """Return the keys of an array file that a test asks for, and ``array``, a path, if it names a file.

    A mark of the test goes before one of its class, and that before one of its module.
    """
    asked: dict[str, Any] = {}
    for mark in node.iter_markers("csd"):
        if mark.args:
            raise pytest.UsageError(f"{node.nodeid}: the mark csd takes names, as in csd(devices=3)")
        asked = dict(mark.kwargs) | asked
    if clock := config.getoption("csd_clock"):
        asked["clock"] = clock
    return merge(asked, str(config.getini("csd_engine")), config.getoption("csd_engine"))


def merge(asked: Mapping[str, Any], usual_engine: str, engine: str | None) -> dict[str, Any]:
    """Return the keys with devices spelt out, and the engine that goes before the others.

    Args:
        asked: by marks.
        usual_engine: where neither mark nor file says one; may be empty.
        engine: of the command line, which goes before all others; None if there is none.
    """
    from csd_emu.config.engine_names import group_of

    keys = dict(asked)
    devices, profile = keys.pop("devices", None), keys.pop("profile", None)
    if isinstance(devices, int) or profile is not None or (devices is None and "array" not in keys):
        if not isinstance(devices, int | None):
            raise pytest.UsageError("the mark csd takes profile= with a number of devices, not with groups of them")
        devices = group_of(devices, profile)
    if devices is not None:
        keys["devices"] = devices
    if engine is not None:
        keys["engine"] = engine
    elif usual_engine and "array" not in keys:
        keys.setdefault("engine", usual_engine)
    return keys
