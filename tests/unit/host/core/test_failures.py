"""Failures of the user's code: each is shown once, all are counted, and the job says whether the run goes on."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import (
    DeviceCodeFailed,
    DeviceLost,
    ModelError,
    ModelFailed,
    PluginFailed,
    UserCodeFailed,
)
from host.core.console import print_failure, print_user_traceback
from host.core.failures import MOST_FAILURES, OTHER, Failure, Failures, describe_failures, failed_run
from host.core.plain_text import plain

TRACEBACK = 'Traceback (most recent call last):\n  File "nets.py", line {}, in forward\n    fail()\nRuntimeError: {}'


def device_error(line: int, message: str = "my bug") -> DeviceCodeFailed:
    told = f"csd-00: Train failed in the device: RuntimeError: {message}"
    return DeviceCodeFailed(told, "model", f"RuntimeError: {message}", TRACEBACK.format(line, message))


class Told:
    """A collector, and what it showed."""

    def __init__(self, goes_on: bool = True) -> None:
        self.shown: list[Failure] = []
        self.counts: list[int] = []
        self.failures = Failures(goes_on, self.shown.append, self._count)

    def _count(self, failures: Sequence[Failure]) -> None:
        self.counts.append(sum(failure.count for failure in failures))


@given(st.lists(st.tuples(st.integers(0, 50), st.text(max_size=3), st.sampled_from(["csd-00", "csd-01"]))))
def test_each_place_in_the_code_is_shown_once_and_every_failure_is_counted(
    raised: list[tuple[int, str, str]],
) -> None:
    told = Told()
    for line, message, device in raised:
        told.failures.take(device_error(line, message), device)
    found = told.failures.list()
    assert sum(failure.count for failure in found) == len(raised)
    assert told.counts == list(range(1, len(raised) + 1))
    places = list(dict.fromkeys(line for line, _, _ in raised))
    assert len(told.shown) == len(found) == min(len(places), MOST_FAILURES + (len(places) > MOST_FAILURES))
    for failure, line in zip(found, places[:MOST_FAILURES], strict=False):
        assert f"line {line}," in failure.traceback
    assert (found[-1].kind == OTHER if found else False) == (len(places) > MOST_FAILURES)
    told.failures.check()


@given(st.integers(1, 5))
def test_the_first_failure_ends_a_run_that_shall_stop(count: int) -> None:
    told = Told(goes_on=False)
    told.failures.check()
    errors = [device_error(line) for line in range(count)]
    for error in errors:
        told.failures.take(error, "csd-00", step=7)
    with pytest.raises(UserCodeFailed) as found:
        told.failures.check()
    assert found.value is errors[0]
    told.failures.take(found.value, "host")  # whoever hears of the run's end counts nothing twice
    assert sum(failure.count for failure in told.failures.list()) == count
    assert told.shown[0].headline == "the model failed on csd-00 in round 1, step 7: RuntimeError: my bug"


def test_what_fails_on_the_host_says_where_in_the_code() -> None:
    told = Told()
    told.failures.round = 3
    try:
        exec(compile("aggregate([])", "mine.py", "exec"))
    except NameError as cause:
        error = PluginFailed("strategy 'mine.py:Mine': aggregate failed", "strategy")
        error.__cause__ = cause
        told.failures.take(error, "host")
    (first,) = told.shown
    assert first.headline == "the strategy failed on host in round 3: NameError: name 'aggregate' is not defined"
    assert '  File "mine.py", line 1, in <module>' in first.traceback
    told.failures.take(ModelFailed("metric 'bias': evaluation on the host failed", "metric bias"), "host")
    assert told.shown[-1].headline.startswith("the metric bias failed on host in round 3: metric 'bias'")
    wrong = PluginFailed("strategy 'mine.py:Mine': aggregate must return the tensors w, not NoneType", "strategy")
    told.failures.take(wrong, "host")
    assert told.shown[-1].traceback == ""
    assert "must return the tensors" in told.shown[-1].error


@given(st.text(max_size=200))
def test_nothing_in_a_drives_words_commands_a_terminal(words: str) -> None:
    told = Told()
    told.failures.take(DeviceCodeFailed("x", "model", words, "Traceback\n\x1b[2J\r" + words), "csd-00")
    for text in (told.shown[0].error, told.shown[0].traceback):
        assert plain(text) == text
        assert "\x1b" not in text


def test_a_resumed_run_goes_on_counting_and_shows_nothing_again() -> None:
    before, after = Told(), Told()
    before.failures.take(device_error(3), "csd-00")
    after.failures.restore(before.failures.list())
    after.failures.take(device_error(3), "csd-01")
    assert after.shown == []
    assert [failure.count for failure in after.failures.list()] == [2]


def test_a_sentence_says_how_often_and_what_was_first() -> None:
    told = Told()
    told.failures.take(device_error(3), "csd-00")
    assert describe_failures(told.failures.list()) == ("the model failed on csd-00 in round 1: RuntimeError: my bug")
    told.failures.take(device_error(3), "csd-00")
    told.failures.take(ModelFailed("evaluation failed"), "host")
    assert describe_failures(told.failures.list()).endswith("my bug (2 times in all); 1 other failure")
    error = failed_run(told.failures.list(), "runs/1")
    assert str(error).endswith("RuntimeError: my bug")
    assert "run directory: runs/1" in str(error)
    assert error.exit_code == 1


@pytest.mark.parametrize("command_ends", [False, True])
def test_the_terminal_gets_the_users_lines_and_no_command(
    capsys: pytest.CaptureFixture[str], command_ends: bool
) -> None:
    """Also of a command that ends with it, such as one that calibrates."""
    error = device_error(3, "my \x1b[2Jbug [red]not markup[/]")
    if command_ends:
        print_user_traceback(error)
    else:
        told = Told()
        told.failures.take(error, "csd-00")
        print_failure(told.shown[0])
    said = capsys.readouterr().err
    assert '  File "nets.py", line 3, in forward\n' in said
    assert "[red]not markup[/]" in said
    assert "\x1b" not in said


def test_an_error_that_is_not_the_users_prints_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (DeviceLost("csd-00: silent"), ModelError("model 'x' is not built in"), UserCodeFailed("no cause")):
        error.__context__ = OSError("disk")
        print_user_traceback(error)
    assert capsys.readouterr().err == ""
