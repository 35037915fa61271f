"""JUnit files: what common readers expect, whatever is in a message."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit, PluginFailed
from host.app.gate.gate_checks import ExpectedFigure, GateReport, Verdict, explain, judge, list_cases
from host.app.gate.junit import JUnitCase, remove_old, render, saying_errors, write_junit
from host.core.summary import Summary, summarise
from tests.support.junit import check_junit
from tests.support.records import array_rounds

MOMENT = "2026-01-02T03:04:05"
FACTS: dict[str, Any] = {
    "array": "lab", "engine": "qemu", "model": "m", "target_accuracy": None, "reached": True,
    "wall_seconds": 1.0, "run_directory": "r", "seed": 0,
}  # fmt: skip
TEXTS = st.text(st.characters(), max_size=60)
CASES = st.builds(
    JUnitCase,
    name=TEXTS,
    wall_seconds=st.floats(0, 1e6),
    output=TEXTS,
    failure=st.none() | TEXTS,
    error=st.none() | TEXTS,
)


def make_summary(**facts: Any) -> Summary:
    return summarise(array_rounds(2, ["csd-00"]), **FACTS | facts)


@given(TEXTS, st.lists(CASES, max_size=4), st.dictionaries(TEXTS, TEXTS, max_size=3))
def test_any_text_makes_a_valid_document(suite: str, cases: list[JUnitCase], properties: Mapping[str, str]) -> None:
    """Control characters, lone surrogates, markup, and what is no character at all."""
    document = render(suite, cases, properties, MOMENT)
    root = check_junit(document)
    found = list(root.iter("testcase"))
    assert len(found) == len(cases)
    for element, case in zip(found, cases, strict=True):
        assert (element.find("failure") is not None) == (case.failure is not None)
        assert (element.find("error") is not None) == (case.error is not None)


@given(st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc", "Cn"]), max_size=60))
def test_what_xml_can_hold_is_kept(text: str) -> None:
    root = ElementTree.fromstring(render("suite", [JUnitCase("a", failure=text, output=text)], {}, MOMENT))
    (failure,) = root.iter("failure")
    assert (failure.text or "") == text
    assert [output.text for output in root.iter("system-out")] == ([text] if text else [])


def test_counts_are_those_of_the_cases() -> None:
    cases = [JUnitCase("run", 3.5), JUnitCase("a", failure="x"), JUnitCase("b", failure="y"), JUnitCase("c", error="z")]
    root = check_junit(render("csd-emu.lab", cases, {"clock": "counted"}, MOMENT))
    for element in (root, root[0]):
        counts = {name: element.get(name) for name in ("tests", "failures", "errors", "time")}
        assert counts == {"tests": "4", "failures": "2", "errors": "1", "time": "3.500"}


def test_a_failure_says_what_was_expected_measured_and_allowed_on_which_clock_and_what_to_do() -> None:
    compared = judge("records_per_device_second", ExpectedFigure(3166.4, "1/s", "counted", 0.01), 3103.59)
    text = explain(compared, ['image: "a" there, "b" here'])
    for part in ("expected 3166.4 1/s", "measured 3103.59", "-1.984%", "±1 %", "clock: counted", "worse", "image:"):
        assert part in text
    assert "--update-baseline" in text


def test_a_report_becomes_one_case_for_the_run_each_figure_and_the_target() -> None:
    figures = [judge("accuracy", ExpectedFigure(0.9, "share", "none", 0.01), value) for value in (0.9, 0.95)]
    assert [figure.verdict for figure in figures] == [Verdict.WITHIN, Verdict.BETTER]
    for reached in (True, False):
        summary = make_summary(target_accuracy=0.93, reached=reached)
        report = GateReport(False, "base.json", False, figures, [], [], ["csd-01 was lost: it died"], summary)
        cases = list_cases(report)
        assert [case.name for case in cases] == ["run", "accuracy", "accuracy", "target"]
        assert [case.failure is not None for case in cases] == [False, False, True, not reached]
        assert "csd-01 was lost" in cases[0].output
    failing = list_cases(GateReport(False, "b", False, figures, ["csd-01 was lost"], [], [], make_summary()))
    assert len(failing) == 3
    assert failing[0].failure == "csd-01 was lost"


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    write_junit(tmp_path / "reports" / "out.xml", render("s", [], {}, MOMENT))
    check_junit((tmp_path / "reports" / "out.xml").read_bytes())
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentUnfit, match=r"out\.xml"):
        write_junit(tmp_path / "file" / "out.xml", b"")


def test_the_checker_sees_what_readers_would_refuse() -> None:
    good = render("s", [JUnitCase("a")], {}, MOMENT).decode()
    for wrong, right in (
        ('tests="1"', 'tests="2"'),
        (' classname="s"', ""),
        ('time="0.000"', 'time="soon"'),
        ("<testcase", "<case"),
        (MOMENT, "yesterday"),
    ):
        assert wrong in good
        with pytest.raises(AssertionError):
            check_junit(re.sub(re.escape(wrong), right, good).replace("</testcase", "</case").encode())


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt(), ConfigurationError("no such key")])
def test_whatever_ends_a_run_is_an_error_in_the_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "out.xml"
    with pytest.raises(type(error)), saying_errors(path, "csd-emu", {}):
        raise error
    (found,) = check_junit(path.read_bytes()).iter("error")
    assert type(error).__name__ in str(found.get("message"))


def test_code_that_ends_the_program_is_a_failure_and_what_was_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "out.xml"
    with pytest.raises(PluginFailed, match="SystemExit: 0"), saying_errors(path, "csd-emu", {}):
        raise SystemExit(0)
    written = path.read_bytes()
    with pytest.raises(RuntimeError), saying_errors(path, "csd-emu", {}):
        raise RuntimeError
    assert path.read_bytes() == written


def test_an_old_file_goes_and_what_can_be_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.xml").touch()
    remove_old(tmp_path / "out.xml")
    remove_old(tmp_path / "out.xml")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match=r"--junit .*name a file"):
        remove_old(tmp_path)
