"""A traceback of the user's code: their lines stand in it, all else is folded, and nothing makes it large."""

import traceback
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import firmware_agent
from firmware_agent.common.errors import DeviceFailed, ModelError
from firmware_agent.common.folded_traceback import (
    MAX_MESSAGE_BYTES,
    MAX_TRACEBACK_BYTES,
    bounded,
    describe_error,
    format_user_traceback,
    names_user_code,
    remember_source,
    user_line,
)

OURS = str(Path(firmware_agent.__file__).parent / "made_up.py")
THEIRS = "nets.py"
CALL = "def call(inner):\n    return inner()\n"


def caller(filename: str) -> Callable[[Callable[[], object]], object]:
    """Return a function that calls another from a line of this file."""
    module = types.ModuleType("made_up")
    exec(compile(CALL, filename, "exec"), module.__dict__)
    return module.call  # type: ignore[no-any-return]


def caught(error: BaseException, files: list[str]) -> BaseException:
    """Return an error with a frame in each of these files, the outermost first."""

    def fail() -> object:
        raise error

    inner: Callable[[], object] = fail
    for file in reversed(files):
        inner = (lambda call, into: lambda: call(into))(caller(file), inner)
    try:
        inner()
    except BaseException as found:
        frame = found.__traceback__
        kept = []
        while frame is not None:  # those of this test file are no part of it
            if frame.tb_frame.f_code.co_filename in files:
                kept.append(frame)
            frame = frame.tb_next
        above = None
        for each in reversed(kept):
            above = types.TracebackType(above, each.tb_frame, each.tb_lasti, each.tb_lineno)
        return found.with_traceback(above)
    raise AssertionError


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_their_frames_are_shown_with_their_lines_and_ours_are_counted(theirs: list[bool]) -> None:
    remember_source(THEIRS, CALL)
    text = format_user_traceback(caught(ValueError("my bug"), [THEIRS if each else OURS for each in theirs]))
    lines = text.splitlines()
    shown = [line for line in lines if line.startswith(f'  File "{THEIRS}", line 2, in call')]
    folded = sum(int(line.split()[1]) for line in lines if line.startswith("  ... "))
    repeated = sum(int(line.split()[3]) for line in lines if line.startswith("  [Previous line repeated"))
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: my bug"
    if any(theirs):
        assert len(shown) + repeated == sum(theirs)
        assert folded == len(theirs) - sum(theirs)
        assert lines.count("    return inner()") == len(shown)
        assert OURS not in text
    else:  # what was done last says how it came to that
        assert folded == len(theirs) - 1
        assert text.count(OURS) == 1
    error = caught(ValueError(), [THEIRS if each else OURS for each in theirs])
    assert names_user_code(error) == any(theirs)
    place = user_line(traceback.extract_tb(error.__traceback__))
    assert place == (f" ({Path(THEIRS).name}, line 2)" if any(theirs) else "")


@given(st.text(st.characters(), max_size=40), st.integers(0, 1 << 20), st.integers(0, 300), st.integers(0, 6))
def test_it_is_bounded_utf8_and_ends_with_the_message(word: str, repeats: int, frames: int, causes: int) -> None:
    error = caught(RuntimeError("begin " + (word or "x") * (repeats // max(1, len(word)))), [THEIRS] * frames)
    for number in range(causes):
        outer = caught(KeyError(str(number)), [f"file_{number}.py"] * 5)
        outer.__cause__, error = error, outer
    text = format_user_traceback(error)
    assert len(text.encode()) <= MAX_TRACEBACK_BYTES
    assert len(describe_error(error).encode()) <= MAX_MESSAGE_BYTES
    assert describe_error(error).split(":")[0] == type(error).__name__
    if not causes:
        assert "RuntimeError: begin " in text


def test_a_megabyte_in_the_message_leaves_the_place_where_it_was_raised() -> None:
    text = format_user_traceback(caught(ValueError("long " * (1 << 18)), [OURS, THEIRS]))
    assert f'  File "{THEIRS}", line 2, in call' in text
    assert "ValueError: long long" in text
    assert len(text) <= MAX_MESSAGE_BYTES + 200


def test_endless_recursion_is_bounded_too() -> None:
    module = types.ModuleType("deep")
    source = "def deep(n):\n    return other(n)\ndef other(n):\n    return deep(n + 1)\n"
    exec(compile(source, THEIRS, "exec"), vars(module))
    with pytest.raises(RecursionError) as found:
        module.deep(0)
    text = format_user_traceback(found.value)
    assert len(text.encode()) <= MAX_TRACEBACK_BYTES
    assert text.splitlines()[-1].startswith("RecursionError: maximum recursion depth exceeded")


def test_an_error_of_ours_shows_what_it_was_raised_for() -> None:
    error = ModelError("model 'nets.py:build': building it failed")
    error.__cause__ = caught(ZeroDivisionError("division by zero"), [THEIRS])
    text = format_user_traceback(error)
    assert text.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert describe_error(error) == "model 'nets.py:build': building it failed"
    assert format_user_traceback(DeviceFailed("no cgroup")) == ""
    assert not names_user_code(DeviceFailed("no cgroup"))


def test_a_syntax_error_shows_the_line_that_is_none() -> None:
    with pytest.raises(SyntaxError) as found:
        compile("def build():\n    return (1,\n", THEIRS, "exec")
    text = format_user_traceback(found.value)
    assert f'File "{THEIRS}", line 2' in text
    assert names_user_code(found.value)


def test_an_error_that_cannot_say_what_it_is_is_named() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    error = caught(Mute(), [THEIRS])
    assert describe_error(error) == "Mute: <its message cannot be shown>"
    assert format_user_traceback(error).splitlines()[-1].endswith("Mute: <exception str() failed>")


@given(st.text(st.characters()), st.integers(3, 100))
def test_a_bounded_text_is_its_own_beginning(text: str, most: int) -> None:
    short = bounded(text, most)
    assert len(short.encode()) <= most
    whole = text.encode("utf-8", "replace").decode()
    assert short == whole or (short.endswith("...") and whole.startswith(short[:-3]))
