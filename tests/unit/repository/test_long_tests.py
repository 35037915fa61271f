"""Which long tests a change must pass (tests/long.py)."""

import random
import time
from fnmatch import fnmatchcase
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import conftest, long

FILES = st.sets(st.integers(0, 99).map(lambda n: f"tests/{'vm' if n % 3 == 0 else 'unit'}/test_{n}.py"), max_size=40)


@given(FILES, st.randoms(use_true_random=False))
def test_three_turns_run_each_file_once_whatever_order_they_are_found_in(files: set[str], mixed: random.Random) -> None:
    seconds = {file: mixed.uniform(1, 500) for file in files if mixed.random() < 0.8}
    found = mixed.sample(sorted(files), len(files))
    turns = [long.choose(found, seconds, turn, ()).files for turn in range(long.THIRDS)]
    assert sorted(file for turn in turns for file in turn) == sorted(files)
    for turn in range(long.THIRDS):
        assert long.choose(sorted(files), seconds, turn, ()).files == turns[turn]


@given(FILES, st.randoms(use_true_random=False))
def test_no_third_is_longer_than_another_by_more_than_one_file_of_each_kind(
    files: set[str], mixed: random.Random
) -> None:
    seconds = {file: mixed.uniform(1, 500) for file in files}
    for own in (True, False):
        kind = {file for file in files if file.startswith(long.VIRTUAL_MACHINES) is own}
        sums = [sum(seconds[file] for file in third if file in kind) for third in long.split(sorted(files), seconds)]
        assert max(sums) - min(sums) <= max((seconds[file] for file in kind), default=0.0) + 1e-6


def test_what_changed_is_tested_whatever_the_turn_and_the_third_of_it_first() -> None:
    files = ["tests/integration/test_servers.py", "tests/integration/test_servers_cut.py", "tests/vm/test_image.py"]
    for turn in range(long.THIRDS):
        choice = long.choose(files, {}, turn, ["host/training/multi_server/worker/worker_link.py"])
        assert choice.changed == set(files[:2])
        assert choice.changed <= set(choice.files)
        own = set(long.split(sorted(files), {})[turn])
        ranks = [0 if file in own & choice.changed else 1 if file in choice.changed else 2 for file in choice.files]
        assert ranks == sorted(ranks)


def test_a_changed_test_is_run_and_the_longest_beginning_counts() -> None:
    assert long.concerns("tests/vm/test_image.py", "tests/vm/test_image.py")
    assert not long.concerns("tests/vm/test_image.py", "tests/vm/test_vm_run.py")
    assert long.concerns("host/monitoring/page/page_app.py", "tests/integration/test_live_page.py")
    assert not long.concerns("host/monitoring/page/page_app.py", "tests/integration/test_native_run.py")
    assert long.concerns("host/app/run_job.py", "tests/integration/test_native_run.py")


def test_every_package_has_long_tests_and_every_name_a_file() -> None:
    packages = {
        f"{path.relative_to(long.ROOT).as_posix()}/"
        for top in (
            *("csd_emu", "csd_lab", "firmware_agent", "host/app", "host/config", "host/monitoring", "host/policies"),
            "host/training",
        )
        for path in (long.ROOT / top).iterdir()
        if (path / "__init__.py").exists()
    }
    unnamed = {each for each in packages if each not in long.OF_PACKAGES} - {
        # What runs under commands of others, or is only data and tables.
        *("csd_emu/config/", "csd_emu/profiles/", "csd_emu/util/", "firmware_agent/common/"),
    }
    assert unnamed == set()
    stems = [path.stem for path in (long.ROOT / "tests").rglob("test_*.py")]
    for beginning, names in long.OF_PACKAGES.items():
        assert (long.ROOT / beginning).exists(), beginning
        for name in names:
            assert any(fnmatchcase(stem, name) for stem in stems), name


def test_every_recorded_file_is_there_and_has_long_tests() -> None:
    for file in long.SECONDS:
        assert "long" in (long.ROOT / file).read_text(encoding="utf-8"), file


def test_one_without_a_figure_is_said() -> None:
    choice = long.choose(["tests/unit/test_new.py"], {}, 0, ["tests/unit/test_new.py"])
    assert "without a figure in tests/long.py: tests/unit/test_new.py" in choice.describe()


def test_what_has_not_begun_in_time_is_left_out_and_said() -> None:
    def item(deadline: float | None) -> SimpleNamespace:
        option = SimpleNamespace(long_deadline=deadline, long_minutes=20.0)
        return SimpleNamespace(nodeid="tests/vm/test_image.py::test_it", config=SimpleNamespace(option=option))

    conftest.pytest_runtest_setup(item(None))  # type: ignore[arg-type]
    conftest.pytest_runtest_setup(item(time.time() + 3600))  # type: ignore[arg-type]
    with pytest.raises(pytest.skip.Exception, match=r"20 minutes of long tests are over: tests/vm/test_image\.py"):
        conftest.pytest_runtest_setup(item(time.time() - 1))  # type: ignore[arg-type]


def test_what_may_take_minutes_has_more_time_unless_it_says_how_much(subtests: pytest.Subtests) -> None:
    cases: list[tuple[tuple[str, ...], int | None, int | None]] = [
        ((), None, None),
        (("long",), None, 1800),
        (("vm", "compose"), None, 3600),
        (("vm",), 9, 9),
    ]
    for names, own, seconds in cases:
        with subtests.test(names=names, own=own):
            markers = {name: pytest.mark.usefixtures() for name in names}
            if own is not None:
                markers["timeout"] = pytest.mark.timeout(own)
            item = SimpleNamespace(
                get_closest_marker=markers.get,
                add_marker=lambda marker, markers=markers: markers.update(timeout=marker),
            )
            conftest.allow_time(item)  # type: ignore[arg-type]
            found = markers.get("timeout")
            assert (found and found.args[0]) == seconds
