"""What all tests share. No fixture here takes real time."""

import os
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from csd_emu.util.paths import HOME_VARIABLE, Paths
from host.fleet.certificates import Authority, HostKeys
from tests import long
from tests.support.examples import QUICK_EXAMPLES

# A shell has its background jobs ignore Ctrl-C, and what they start as well; tests that interrupt commands would fail.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nets and arrays are tiny here: threads that share them would only wait for each other, and for the other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine must not make a law of arithmetic fail, so no example has a deadline. What every change must pass draws
# the same examples every time, so that a change is never refused for what another one broke; `make test-all` draws
# new ones each time, and six times as many. `make unit`, which is run all day, draws few.
settings.register_profile("csd-emu", deadline=None, print_blob=True, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=300)
settings.register_profile("quick", settings.get_profile("csd-emu"), max_examples=QUICK_EXAMPLES)
settings.load_profile("csd-emu")


# Of the unit tests, those that nobody should wait for in the end.
LONGEST = tuple(
    f"test_{name}.py"
    for name in (
        *("cut_training", "cutting", "gradient_direction", "overlap_cut", "report_page", "step_spans"),
        *("servers_planning", "servers_training", "zoo"),
    )
)


def group_of(nodeid: str) -> str:
    """Return what a test stays together with when several processes share the tests (`pytest -n`).

    With its file, whose fixtures it may share; on virtual machines with all such tests, which share a template, the
    daemon and names.
    """
    if nodeid.startswith("tests/vm/") or "[qemu" in nodeid:
        return "virtual machines"
    return nodeid.partition("::")[0]


CHOICE = "long tests"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("long tests", "see tests/long.py")
    group.addoption("--third", action="store_true", help="of the long tests only a third, and those of what changed")
    group.addoption("--changed-since", metavar="COMMIT", help="what changed is all since COMMIT")
    group.addoption("--long-minutes", type=float, metavar="N", help="of those, leave out what has not begun by then")


DECIDED = ("long_turn", "long_changed", "long_deadline")


def pytest_configure(config: pytest.Config) -> None:
    """Decide once, for all processes that share the tests."""
    if not config.option.third:
        return
    if hasattr(config, "workerinput"):
        for name in DECIDED:
            setattr(config.option, name, config.workerinput[name])
        return
    minutes = config.option.long_minutes
    config.option.long_turn = long.turn_of_commit()
    config.option.long_changed = long.changed_paths(config.option.changed_since)
    config.option.long_deadline = None if minutes is None else time.time() + 60 * minutes


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process that shares the tests what was decided."""
    if node.config.option.third:
        node.workerinput |= {name: getattr(node.config.option, name) for name in DECIDED}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out the long tests for which there is no time any more."""
    deadline = getattr(item.config.option, "long_deadline", None)
    if deadline is not None and time.time() > deadline:
        file = item.nodeid.partition("::")[0]
        pytest.skip(f"left out, {item.config.option.long_minutes:g} minutes of long tests are over: {file}")


def choose_third(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the third, in its order."""
    of_items = {item: item.nodeid.partition("::")[0] for item in items}
    files = [
        file
        for item, file in of_items.items()
        if item.get_closest_marker("long") and not item.get_closest_marker("compose")
    ]
    choice = long.choose(files, long.SECONDS, config.option.long_turn, config.option.long_changed)
    kept = [item for item in items if item.get_closest_marker("long") and of_items[item] in choice.files]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = sorted(kept, key=lambda item: choice.files.index(of_items[item]))
    if hasattr(config, "workerinput"):
        config.workeroutput[CHOICE] = choice.describe()  # type: ignore[attr-defined]
    else:
        config.option.long_choice = choice.describe()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Learn from a process that shared the tests what it chose: all choose the same."""
    node.config.option.long_choice = getattr(node, "workeroutput", {}).get(CHOICE, "")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which long tests were chosen, and what each file took, as tests/long.py has it."""
    if said := getattr(terminalreporter.config.option, "long_choice", ""):
        seconds: dict[str, float] = defaultdict(float)
        for report in (each for kind in terminalreporter.stats.values() for each in kind):
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
        for file, spent in sorted(seconds.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f'    "{file}": {spent:.0f},')
        terminalreporter.write_line(said)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put what takes longest first, so that nobody waits for it in the end."""
    if config.option.third:
        choose_third(config, items)
    for item in items:
        allow_time(item)
        if item.get_closest_marker("vm") and group_of(item.nodeid) != "virtual machines":
            raise pytest.UsageError(f"{item.nodeid}: tests marked vm lie in tests/vm, or have a parameter qemu")
    items.sort(key=_place)


# Seconds after which a test with such a marker is ended; all others have those of pyproject.toml.
TIMEOUTS = {"compose": 3600, "vm": 1800, "long": 1800}


def allow_time(item: pytest.Item) -> None:
    """Give a test the time of its slowest marker, unless it names its own."""
    seconds = [limit for marker, limit in TIMEOUTS.items() if item.get_closest_marker(marker)]
    if seconds and not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(max(seconds)))


def _place(item: pytest.Item) -> int:
    if item.get_closest_marker("vm"):
        return 0
    if not item.nodeid.startswith("tests/unit/"):
        return 1
    return 2 if item.path.name in LONGEST else 3


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out the groups one by one, in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
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
