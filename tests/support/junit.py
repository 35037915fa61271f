"""JUnit XML as Jenkins, GitLab and GitHub's reporters read it: which elements there are, and what each must say."""

import re
from xml.etree import ElementTree

# element -> its children, the attributes that it must have, and those that it may have.
ELEMENTS: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": ({"testsuite"}, set(), {"name", "time", "tests", "failures", "errors", "disabled"}),
    "testsuite": (
        {"properties", "testcase", "system-out", "system-err"},
        {"name", "tests"},
        {"failures", "errors", "time", "skipped", "timestamp", "hostname", "id", "package"},
    ),
    "properties": ({"property"}, set(), set()),
    "property": (set(), {"name", "value"}, set()),
    "testcase": (
        {"failure", "error", "skipped", "system-out", "system-err"},
        {"name", "classname"},
        {"time", "file", "line", "assertions", "status"},
    ),
    "failure": (set(), set(), {"message", "type"}),
    "error": (set(), set(), {"message", "type"}),
    "skipped": (set(), set(), {"message", "type"}),
    "system-out": (set(), set(), set()),
    "system-err": (set(), set(), set()),
}
COUNTS = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}


def check_junit(document: bytes) -> ElementTree.Element:
    """Return the root of a valid document."""
    root = ElementTree.fromstring(document)
    assert root.tag == "testsuites"
    _check(root)
    return root


def _check(element: ElementTree.Element) -> None:
    assert element.tag in ELEMENTS, element.tag
    children, needed, allowed = ELEMENTS[element.tag]
    assert needed <= set(element.keys()) <= needed | allowed, (element.tag, element.keys())
    if "time" in element.keys():  # noqa: SIM118 - an element is no mapping
        assert re.fullmatch(r"\d+(\.\d+)?", element.get("time", ""))
    if "timestamp" in element.keys():  # noqa: SIM118
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", element.get("timestamp", ""))
    for count, tag in COUNTS.items():
        if (said := element.get(count)) is not None:
            assert int(said) == sum(1 for _ in element.iter(tag)), (element.tag, count)
    for child in element:
        assert child.tag in children, f"{child.tag} in {element.tag}"
        _check(child)
