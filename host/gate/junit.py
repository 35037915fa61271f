"""JUnit XML, as the readers of Jenkins, GitLab and GitHub understand it: one suite, one test case per figure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from firmware_agent.errors import EnvironmentUnfit
from host.files import replace_file

# What no XML 1.0 document can hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Case:
    """One test case: it passed, or has a `failure` (a figure left its band) or an `error` (it could not be judged)."""

    name: str
    wall_seconds: float = 0.0
    output: str = ""
    failure: str | None = None
    error: str | None = None


def render(suite: str, cases: Sequence[Case], properties: Mapping[str, str], timestamp: str) -> bytes:
    """Return the document; characters that XML cannot hold are replaced.

    Args:
        suite: its name, also the class name of the cases.
        cases: in the order to show.
        properties: of the suite.
        timestamp: when it began, ISO 8601 without a zone, in UTC.
    """
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.failure is not None for case in cases)),
        "errors": str(sum(case.error is not None for case in cases)),
        "time": f"{sum(case.wall_seconds for case in cases):.3f}",
    }
    root = ElementTree.Element("testsuites", _clean({"name": "csd-emu", **counts}))
    facts = {"name": suite, **counts, "skipped": "0", "timestamp": timestamp}
    element = ElementTree.SubElement(root, "testsuite", _clean(facts))
    if properties:
        listed = ElementTree.SubElement(element, "properties")
        for name, value in properties.items():
            ElementTree.SubElement(listed, "property", _clean({"name": name, "value": value}))
    for case in cases:
        _add_case(element, suite, case)
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def write_junit(path: Path, document: bytes) -> None:
    """Write the document in one step.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, document)
    except OSError as error:
        raise EnvironmentUnfit(f"{path}: the JUnit file cannot be written ({error.strerror}); give another") from error


def _add_case(suite: ElementTree.Element, classname: str, case: Case) -> None:
    facts = {"name": case.name, "classname": classname, "time": f"{case.wall_seconds:.3f}"}
    element = ElementTree.SubElement(suite, "testcase", _clean(facts))
    for tag, text in (("failure", case.failure), ("error", case.error)):
        if text is not None:
            # Some readers show the attribute alone, others the text alone.
            summary = text.partition("\n")[0]
            ElementTree.SubElement(element, tag, _clean({"message": summary, "type": tag})).text = _cleaned(text)
    if case.output:
        ElementTree.SubElement(element, "system-out").text = _cleaned(case.output)


def _clean(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: _cleaned(value) for name, value in attributes.items()}


def _cleaned(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
