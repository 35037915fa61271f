"""JUnit XML, as the readers of Jenkins, GitLab and GitHub understand it: one suite, one test case per figure."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from csd_emu.util.xml_elements import element
from firmware_agent.common.errors import ConfigurationError, CsdError, PluginFailed
from host.core.owned_files import write_whole

# What no XML 1.0 document can hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class JUnitCase:
    """One test case: it passed, or has a `failure` (a figure left its band) or an `error` (it could not be judged)."""

    name: str
    wall_seconds: float = 0.0
    output: str = ""
    failure: str | None = None
    error: str | None = None


def render(suite: str, cases: Sequence[JUnitCase], properties: Mapping[str, str], timestamp: str) -> bytes:
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
    facts = {"name": suite, **counts, "skipped": "0", "timestamp": timestamp}
    listed = [element("property", name=name, value=value) for name, value in properties.items()]
    inside = [*([element("properties", *listed)] if listed else []), *(_case_element(suite, case) for case in cases)]
    root = element("testsuites", element("testsuite", *inside, **facts), name="csd-emu", **counts)
    for each in root.iter():
        each.attrib = {name: _clean(value) for name, value in each.attrib.items()}
        each.text = _clean(each.text or "")
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def write_junit(path: Path, document: bytes) -> None:
    """Write the document in one step.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    write_whole(path, document, "give another", "the JUnit file", folder=True)


def remove_old(path: Path) -> None:
    """Remove the JUnit file of another run: whatever happens now, it must not be taken for this one's.

    Raises:
        ConfigurationError: `path` can be no file.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--junit {path}: cannot be written ({error.strerror}); name a file") from error


@contextlib.contextmanager
def saying_errors(path: Path | None, suite: str, properties: Mapping[str, str]) -> Iterator[None]:
    """Say whatever ends the block in the JUnit file, too, unless it is there: its absence is no success.

    Raises:
        PluginFailed: code of the user's ended the program, which might look as if all were well.
    """
    try:
        try:
            yield
        except SystemExit as error:
            raise PluginFailed(
                f"code of the job's has ended the program (SystemExit: {error.code}); let it raise an error instead"
            ) from error
    except BaseException as error:
        if path is not None and not path.exists():
            told = str(error) if isinstance(error, CsdError) else repr(error)
            cases = [JUnitCase("run", error=f"{type(error).__name__}: {told}")]
            write_junit(path, render(suite, cases, properties, now()))
        raise


def now() -> str:
    """Return the time as `render` takes it."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds")


def _case_element(classname: str, case: JUnitCase) -> ElementTree.Element:
    verdicts = {tag: text for tag, text in (("failure", case.failure), ("error", case.error)) if text is not None}
    return element(
        "testcase",
        # Some readers show the attribute alone, others the text alone.
        *(element(tag, text, message=text.partition("\n")[0], type=tag) for tag, text in verdicts.items()),
        *([element("system-out", case.output)] if case.output else []),
        name=case.name,
        classname=classname,
        time=f"{case.wall_seconds:.3f}",
    )


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
