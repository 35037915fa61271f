"""The report of a real run, opened in a real browser, narrow and wide, light and dark."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from host.core.records import EventKind, EventRecord
from host.monitoring.report.report_page import write_report
from tests.support.browser import Browser, Tab, find_browser, layouts
from tests.support.commands import ARRAY, Workshop, temporary_workshop
from tests.support.markup import HOSTILE, check_harmless
from tests.support.records import array_rounds, write_run
from tests.support.sync_records import Disturbed, SyncRun

PAINTED = True  # charts

# Of each chart that is shown its texts, with size and place in the page's pixels.
TEXTS = """(scale => [...document.querySelectorAll('svg')].filter(svg => svg.getBoundingClientRect().width)
  .map(svg => ({name: svg.getAttribute('aria-labelledby'), box: svg.getBoundingClientRect().toJSON(),
    texts: [...svg.querySelectorAll('text')].map(text =>
      ({text: text.textContent, size: parseFloat(getComputedStyle(text).fontSize) * scale(text.getScreenCTM()),
        box: text.getBoundingClientRect().toJSON()}))})))(matrix => Math.hypot(matrix.a, matrix.b))"""
COLOUR = "getComputedStyle(document.querySelector('{}')).{}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(find_browser()) as browser:
        yield browser


@pytest.fixture(scope="module")
def report() -> Iterator[Path]:
    """The report that a run on the native engine writes by itself."""
    with temporary_workshop(Workshop) as workshop:
        workshop.write("array.yaml", ARRAY | {"devices": [{"profile": "newport", "count": 3}]})
        done = workshop.run_here(*workshop.job_arguments(rounds=4, target={"accuracy": 1.0}), "--json")
        assert done.code == 1, done.err
        assert done.err == ""
        yield workshop.run_directory() / "report.html"


@pytest.fixture(scope="module", params=[4, 36])
def sync_report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a synchronous run on so many drives."""
    drives, folder = request.param, tmp_path_factory.mktemp("sync")
    spells = [Disturbed(f"csd-{number:02d}", 20 + 15 * number, 40, 60 + 20 * number) for number in range(1, drives, 3)]
    write_run(folder, SyncRun(drives, 400, 100, spells).make(), drives, job={"mode": "sync"})
    return written_report(folder)


@pytest.fixture(scope="module")
def big_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run on 36 drives."""
    folder = tmp_path_factory.mktemp("big")
    names = [f"csd-{number:02d}" for number in range(36)]
    write_run(folder, array_rounds(30, names), 36)
    return written_report(folder)


def written_report(folder: Path) -> Path:
    return Path(write_report(folder).report)


@pytest.mark.parametrize(("width", "dark"), layouts(400, 1440, 1920, dark=(400, 1920)))
def test_the_page_stands_alone_fits_and_can_be_read(browser: Browser, report: Path, width: int, dark: bool) -> None:
    tab = browser.open(report.as_uri(), width, dark)
    assert tab.complaints() == []
    assert [url for url in tab.requests() if not url.startswith("data:")] == [report.as_uri()]
    text = tab.evaluate("document.body.innerText")
    for expected in ("Against the baseline", "records per device second", "csd-02", "power.idle_watts", "missed"):
        assert expected in text
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        tab.evaluate("[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width).length") == 7
    )
    check_charts(tab)
    ink, page = (brightness(tab.evaluate(COLOUR.format("body", name))) for name in ("color", "backgroundColor"))
    assert ink - page > 150 if dark else page - ink > 150


def test_names_and_events_full_of_markup_are_only_words(browser: Browser, tmp_path: Path) -> None:
    events = [EventRecord(hostile, EventKind.REFUSED, hostile, 1.0, 0.5) for hostile in HOSTILE]
    names = [f"csd-{number:02d}" for number in range(len(HOSTILE))]
    write_run(tmp_path, [*events, *array_rounds(4, HOSTILE, clock=HOSTILE[2])], len(names))
    facts = {name: {hostile: hostile for hostile in HOSTILE} for name in names}
    versions = json.loads((tmp_path / "versions.json").read_text())
    (tmp_path / "versions.json").write_text(json.dumps(versions | {"devices": facts}))
    report = written_report(tmp_path)
    tab = browser.open(report.as_uri(), 1280, False)
    tab.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    check_harmless(tab, report.as_uri())
    tab.close()


def check_charts(tab: Tab) -> None:
    """Texts lie inside their chart, over no other text, and are large enough to read."""
    for chart in tab.evaluate(TEXTS):
        outer, texts = chart["box"], [text for text in chart["texts"] if text["text"].strip()]
        assert len(texts) > 5, chart["name"]
        for text in texts:
            box = text["box"]
            assert outer["left"] - 2 <= box["left"] < box["right"] <= outer["right"] + 2, (chart["name"], text)
            assert outer["top"] - 2 <= box["top"] < box["bottom"] <= outer["bottom"] + 2, (chart["name"], text)
            assert text["size"] >= 9, (chart["name"], text)
        for number, one in enumerate(texts):
            for other in texts[number + 1 :]:
                assert not overlap(one["box"], other["box"]), (chart["name"], one["text"], other["text"])


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two boxes share more than their edges; lines of text have some air around them."""
    across = min(one["right"], other["right"]) - max(one["left"], other["left"])
    down = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
    return bool(across > 1 and down > 4)


def brightness(colour: str) -> float:
    parts = colour[colour.index("(") + 1 : -1].split(",")
    return sum(float(part) for part in parts[:3]) / 3


@pytest.mark.parametrize("width", [400, 1440])
def test_a_big_array_fits_too(browser: Browser, big_report: Path, width: int) -> None:
    tab = browser.open(big_report.as_uri(), width, dark=False)
    assert tab.complaints() == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    check_charts(tab)


@pytest.mark.parametrize(("width", "dark"), layouts(400, 1440, 1920, dark=(400,)))
def test_a_synchronous_run_fits_too(browser: Browser, sync_report: Path, width: int, dark: bool) -> None:
    tab = browser.open(sync_report.as_uri(), width, dark)
    assert tab.complaints() == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert "Synchronous steps" in tab.evaluate("document.body.innerText")
    check_charts(tab)


def test_nothing_in_a_run_directory_can_act_in_the_page(browser: Browser, tmp_path: Path) -> None:
    act = "document.title='hit'"
    hostile = f"<img src=http://example.invalid/x onerror={act}></style></svg><script>{act}</script>"
    write_run(tmp_path, array_rounds(2, [hostile, "csd-01"]), array={"name": hostile})
    page = written_report(tmp_path)
    tab = browser.open(page.as_uri(), 1440, dark=False)
    assert tab.complaints() == []
    assert [url for url in tab.requests() if not url.startswith("data:")] == [page.as_uri()]
    assert "hit'" in tab.evaluate("document.title")
    assert tab.evaluate("document.querySelectorAll('script, img').length") == 0
    assert hostile in tab.evaluate("document.body.innerText")


def test_the_browser_sees_what_it_is_to_see(browser: Browser, tmp_path: Path) -> None:
    """A page that breaks the rules is noticed: a request, an error, a wide element."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<meta name=viewport content='width=device-width'><div style='width:3000px'>x</div>"
        "<img src='http://example.invalid/x.png'><script>console.error('oh'); undefined_function()</script>"
    )
    tab = browser.open(page.as_uri(), 400, dark=False)
    assert any("example.invalid" in url for url in tab.requests())
    assert any("oh" in text for text in tab.complaints())
    assert any("undefined_function" in text for text in tab.complaints())
    assert tab.evaluate("document.documentElement.scrollWidth") > 400
