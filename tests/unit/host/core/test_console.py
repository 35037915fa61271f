"""Nothing that a drive or a file says steers the terminal on which it is printed."""

import io
import json
import logging
import re
import sys

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from host.app.python_api.round_bar import show_rounds
from host.core import console as consoles
from host.core.console import PlainConsole, PlainFormatter, _show_exception, print_line
from host.core.plain_text import plain, plain_json

# Window title, clipboard, a link, a cleared screen by C1, a line written over, and one that reads backwards.
HOSTILE = (
    "\x1b]0;title\x07 \x1b]52;c;aGk=\x07 \x1b]8;;http://evil.example\x07here\x1b]8;;\x07 \x9b2J \rover \x7f\x08 "
    "\u202edrow\u2066 \u200b\u2028\ud800 \U000e0041"
)
# What rich itself writes: colours, and where Live puts its cursor.
_OWN = re.compile(r"\x1b\[(\d+(;\d+)*)?m|\x1b\[\?25[lh]|\x1b\[\d*[A-K]|\r")


def without_own(printed: str) -> str:
    return _OWN.sub("", printed)


def assert_harmless(printed: str) -> None:
    left = without_own(printed)
    assert not [char for char in left if char != "\n" and (ord(char) < 32 or 0x7F <= ord(char) < 0xA0)], repr(left)
    assert not set(left) & set("\u202e\u2066\u200b\u2028\ud800\U000e0041")


@pytest.mark.parametrize("width", [20, 80])
def test_nothing_is_left_out_of_lines_and_tables_on_a_narrow_terminal(width: int) -> None:
    console = PlainConsole(file=io.StringIO(), width=width)
    table = Table("key", "value")
    table.columns[1].no_wrap = True
    table.add_row("figure", "1234567890 " * 10)
    console.print(table)
    console.print("word " * 60)
    assert isinstance(console.file, io.StringIO)
    *rows, line = console.file.getvalue().splitlines()
    assert any("1234567890 " * 9 in row for row in rows)
    assert line.split() == ["word"] * 60


@given(text=st.text())
@example(HOSTILE)
def test_plain_text_keeps_everything_else_and_steers_nothing(text: str) -> None:
    shown = plain(text)
    assert plain(shown) == shown
    assert_harmless(shown.replace("\t", ""))
    kept = text.replace("\r\n", "\n")
    assert [(a, b) for a, b in zip(kept, shown, strict=True) if a != b and b != "\N{REPLACEMENT CHARACTER}"] == []
    assert [a for a, b in zip(kept, shown, strict=True) if a != b and a.isprintable()] == []


def test_a_name_between_colons_is_no_emoji(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "pd.py:train: line 1 imports pandas"
    for console in (consoles.console, consoles.errors):
        with console.capture() as captured:
            console.print(f"[red]✗[/] {escape(told)}")
            console.print(Table(told, title=told))
        assert captured.get().count(":train:") == 3
    out = io.StringIO()
    monkeypatch.setattr(consoles, "errors", PlainConsole(file=out, force_terminal=True, width=300))
    with consoles.StageProgress() as progress:
        progress.stage(told)
        progress.stage("")
        # The line that stays is the console's; this is of the bar.
        assert told in without_own(out.getvalue()).splitlines()[0]
    terminal = type("Terminal", (io.StringIO,), {"isatty": lambda _: True})
    monkeypatch.setattr(sys, "stderr", shown := terminal())
    with show_rounds(True) as show:
        show({"round": ":train:"})
    assert "round :train:" in shown.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_whatever_way_it_is_printed(terminal: bool) -> None:
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=terminal, width=300, highlight=False)
    console.print(HOSTILE, markup=False)
    console.print(f"[red]drive[/] {escape(HOSTILE)}", soft_wrap=True)
    console.print("[link=http://evil.example]a link[/link]")
    console.rule(HOSTILE)
    table = Table("drive", HOSTILE, title=HOSTILE, caption=HOSTILE)
    table.add_row("csd-00", HOSTILE)
    console.print(table)
    console.print(Panel(table, title=HOSTILE))
    console.log(HOSTILE)
    with Live(table, console=console, auto_refresh=False) as live:
        live.console.print(HOSTILE)
        live.update(Panel(HOSTILE), refresh=True)
    printed = out.getvalue()
    assert_harmless(printed)
    assert "evil.example\x07" not in printed
    assert "]8;" not in without_own(printed).replace("\N{REPLACEMENT CHARACTER}]8;", "")
    assert ("\x1b[31m" in printed) == terminal  # what csd-emu prints in colour is


def test_lines_for_a_pipe_too(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(f"drive {HOSTILE}")
    assert_harmless(capsys.readouterr().out)


def test_the_log_and_what_nobody_has_caught(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError(HOSTILE.replace("\ud800", ""))
    except ValueError as error:
        record = logging.LogRecord("host", logging.WARNING, "x", 1, "refused: %s", (HOSTILE,), sys.exc_info())
        assert_harmless(PlainFormatter().format(record))
        _show_exception(type(error), error, error.__traceback__)
    shown = capsys.readouterr().err
    assert_harmless(shown)
    assert "ValueError" in shown
    assert "test_console.py" in shown


@given(value=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers() | st.none()))
@example({HOSTILE.replace("\ud800", ""): 1})
def test_json_says_the_same_and_steers_nothing(value: dict[str, int | None]) -> None:
    shown = plain_json(msgspec.json.format(msgspec.json.encode(value)))
    assert json.loads(shown) == value
    assert_harmless(shown.decode())
