"""The live page in a real browser: it fits, can be read and used by everyone, and follows what happens."""

import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from csd_lab.testkit.browser import Browser, Tab
from host.core.failures import Failure
from host.core.records import EventKind
from tests.integration.test_native_run import free_port
from tests.support.browser import find_browser, layouts
from tests.support.commands import ARRAY, Workshop, wait_until
from tests.support.live import LiveRun
from tests.support.markup import HOSTILE, check_harmless
from tests.support.records import array_rounds, service_rounds, with_bands
from tests.support.sync_records import SyncRun

PAINTED = True  # charts

NAMES = [f"csd-{number:02d}" for number in range(6)]
MANY = [f"csd-{number:04d}" for number in range(1000)]
DRAWN = "performance.getEntriesByName('drawn').length"
# Polls follow each other after a second; a busy machine needs longer.
POLL_SECONDS = 20.0

# Texts whose contrast with what is behind them is below WCAG AA, of gradients with any of their colours.
FAINT = """(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const channel = (value) => (value /= 255) <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
  const ratio = (a, b) => (Math.max(light(a), light(b)) + .05) / (Math.min(light(a), light(b)) + .05);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      const stops = style.backgroundImage.match(/rgba?\\([^)]*\\)/g);
      if (stops) return stops.map(parse);
      const own = parse(style.backgroundColor);
      if (own.length === 3 || own[3] === 1) return [own];
    }
    return [[255, 255, 255]];
  };
  const faint = [];
  let seen = 0;
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const box = element.getBoundingClientRect();
    if (!own || !box.width || element.closest('.hidden, .skip, noscript, defs, script')) continue;
    const style = getComputedStyle(element);
    const svg = element.namespaceURI.endsWith('svg');
    const [size, bold] = [parseFloat(style.fontSize), Number(style.fontWeight) >= 700];
    const ink = parse(svg ? style.fill : style.color);
    const worst = Math.min(...behind(element).map((ground) => ratio(ink, ground)));
    seen += 1;
    const enough = size >= 24 || (bold && size >= 18.66) ? 3 : 4.5;
    if (worst < enough) faint.push([element.textContent.trim().slice(0, 40), element.id, ink, worst]);
  }
  return { seen, faint };
})()"""


# Choose in a form element, as a user would.
CHOOSE = """((id, value) => {
  const element = document.querySelector(id);
  element.value = value;
  element.dispatchEvent(new Event('input', {bubbles: true}));
})"""
# What moves, the bar of a progress included.
MOVING = """[...document.querySelectorAll('*')].flatMap((element) =>
  [null, '::-webkit-progress-value'].flatMap((part) =>
    getComputedStyle(element, part).transitionDuration.split(',').filter(parseFloat).map(() => element.outerHTML)))"""


# Facts of a card whose label and value are wider than their place.
OVERFLOWING = """[...document.querySelectorAll('.drive dl div')].filter((fact) =>
  fact.scrollWidth > fact.clientWidth).map((fact) => fact.textContent)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(find_browser()) as browser:
        yield browser


@pytest.fixture
def run() -> Iterator[LiveRun]:
    """A federated run of a few drives, one of which is lost, one late."""
    with LiveRun(NAMES) as run:
        run.begin()
        run.add(*map(with_bands, array_rounds(4, NAMES)))
        run.tell(NAMES[1], EventKind.INJECTED, "kill")
        run.lose(NAMES[1])
        yield run


def opened(browser: Browser, address: str, width: int = 1280, dark: bool = False) -> Tab:
    tab = browser.open(address, width, dark)
    tab.wait_for(DRAWN)
    return tab


def check_guests(tab: Tab, address: str) -> None:
    """Nothing was asked of anyone else, and nothing complained of."""
    assert tab.complaints() == []
    assert {url for url in tab.requests() if not url.startswith((address, "data:"))} == set()


@pytest.mark.parametrize(("width", "dark"), layouts(400, 768, 1280, 1920, dark=(400, 1920)))
def test_the_page_fits_is_complete_and_can_be_read(browser: Browser, run: LiveRun, width: int, dark: bool) -> None:
    tab = opened(browser, run.address, width, dark)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    check_guests(tab, run.address)
    text = tab.evaluate("document.body.innerText")
    units = "records / device s", "records / array s"
    for expected in (*units, "lab", "counted", "wall", "Cost of emulation", "target"):
        assert expected in text
    for figure in ("in all [0-9.]+ J", "of the array", "mean of a drive, last round", "link and waiting included"):
        assert re.search(rf"{figure} \([0-9.]+", text)
    assert tab.evaluate(OVERFLOWING) == []
    assert tab.evaluate("document.querySelectorAll('.plot.js-plotly-plot').length") == 7
    contrast = tab.evaluate(FAINT)
    assert contrast["seen"] > 150
    assert contrast["faint"] == []
    tab.close()


def test_names_and_events_full_of_markup_are_only_words(browser: Browser) -> None:
    """Plotly takes some HTML for markup: a clock of a drive's own could put a link on the page."""
    with LiveRun(HOSTILE, array=HOSTILE[0], model=HOSTILE[1]) as run:
        run.begin(clock=HOSTILE[2])
        for record in array_rounds(4, HOSTILE, clock=HOSTILE[2]):
            devices = [structs.replace(device, clock=HOSTILE[2]) for device in record.devices]
            run.add(structs.replace(record, devices=devices))
        for hostile in HOSTILE:
            run.tell(hostile, EventKind.REFUSED, hostile)
            run.tell("csd-99", EventKind.NOTE, hostile)
        run.lose(HOSTILE[1])
        tab = opened(browser, run.address)
        tab.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
        check_harmless(tab, run.address)
        shown = tab.evaluate("[...document.querySelectorAll('#plot-gantt text')].map((each) => each.textContent)")
        assert HOSTILE[0] in shown
        assert f"array seconds ({HOSTILE[2]})" in [each for each in shown if "array" in each]
        tab.close()


@pytest.mark.long
@pytest.mark.parametrize(("width", "dark"), layouts(400, dark=(1920,)))
def test_a_thousand_drives_fit_too(browser: Browser, width: int, dark: bool) -> None:
    with LiveRun(MANY) as run:
        run.begin()
        run.add(*array_rounds(2, MANY))
        run.lose(MANY[500])
        tab = opened(browser, run.address, width, dark)
        assert tab.evaluate("document.querySelectorAll('.cells li').length") == 1000
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.evaluate("document.querySelector('.cells .lost').textContent") == "✕"
        assert "csd-0500: lost" in tab.evaluate("document.querySelector('.cells .lost').getAttribute('aria-label')")
        assert tab.evaluate(FAINT)["faint"] == []
        check_guests(tab, run.address)
        tab.close()


def test_a_synchronous_run_shows_steps_slowdowns_and_batches(browser: Browser) -> None:
    sync = SyncRun(drives=4, steps=100)
    with LiveRun([*sync.names, "host"], "sync") as run:
        run.begin()
        run.add(*sync.make())
        tab = opened(browser, run.address)
        text = tab.evaluate("document.body.innerText")
        for expected in ("100 steps", "\N{MULTIPLICATION SIGN}1.0", "steps 97 to 100", "host"):
            assert expected in text
        assert tab.evaluate("document.querySelector('#plot-batches').data.length") == 4
        tab.close()


def test_drives_that_begin_to_serve_a_host_say_so(browser: Browser) -> None:
    with LiveRun(NAMES) as run:
        run.begin()
        tab = opened(browser, run.address)
        assert "host IOPS" not in tab.evaluate("document.body.innerText")
        run.add(*service_rounds(2, NAMES))
        tab.wait_for("document.querySelector('.drive dl').innerText.includes('host p99')", POLL_SECONDS)
        text = tab.evaluate("document.querySelector('.drive dl').innerText")
        for expected in ("host IOPS", "20,000", "3 ms", "host queue depth", "2.4"):
            assert expected in text
        assert tab.evaluate(OVERFLOWING) == []
        check_guests(tab, run.address)
        tab.close()


@pytest.mark.long
def test_a_lost_drive_is_seen_and_said_and_so_is_its_return(browser: Browser, run: LiveRun) -> None:
    tab = opened(browser, run.address)
    announced = "document.querySelector('#announce').textContent"
    assert tab.evaluate(announced) == "", "what was there before is no news"
    run.lose("csd-03")
    tab.wait_for("document.title.startsWith('(2 lost)')", POLL_SECONDS)
    assert "csd-01, csd-03" in tab.evaluate("document.querySelector('#lost').innerText")
    card = "[...document.querySelectorAll('.drive')].find((card) => card.querySelector('h3').textContent === 'csd-03')"
    assert tab.evaluate(f"{card}.className") == "drive lost"
    assert "lost" in tab.evaluate(f"{card}.querySelector('.state').textContent")
    tab.wait_for(f"{announced} === 'csd-03 lost'", POLL_SECONDS)
    run.tell("csd-03", EventKind.REJOINED)
    tab.wait_for(f"{announced} === 'csd-03 back'", POLL_SECONDS)
    assert tab.evaluate(f"{card}.className") == "drive training"
    run.history.end()
    tab.wait_for("document.querySelector('#phase').textContent === 'finished'", POLL_SECONDS)
    tab.close()


@pytest.mark.long
def test_curves_follow_the_rounds(browser: Browser, run: LiveRun) -> None:
    tab = opened(browser, run.address)
    points = "document.querySelector('#plot-accuracy').data[0].x.length"
    assert tab.evaluate(points) == 4
    later = array_rounds(6, NAMES)[4:]
    run.add(*later)
    tab.wait_for(f"{points} === 6", POLL_SECONDS)
    label = tab.evaluate("document.querySelector('#plot-accuracy').getAttribute('aria-label')")
    assert f"accuracy {later[-1].accuracy:.3f}" in label
    tab.evaluate("document.querySelector('#figure-accuracy details').open = true")
    tab.wait_for("document.querySelectorAll('#figure-accuracy tbody tr').length === 6")
    tab.close()


def test_a_host_that_is_gone_is_said_to_be(browser: Browser) -> None:
    with LiveRun(NAMES) as run:
        run.begin()
        tab = opened_without_rounds(browser, run.address)
    tab.wait_for("!document.querySelector('#banner').hidden", POLL_SECONDS)
    assert "does not answer" in tab.evaluate("document.querySelector('#banner').innerText")
    tab.close()


def opened_without_rounds(browser: Browser, address: str) -> Tab:
    tab = browser.open(address, 1280, dark=False)
    tab.wait_for("document.querySelectorAll('.drive').length === 6")
    return tab


def focus(tab: Tab) -> str:
    """Describe what has the focus."""
    return str(
        tab.evaluate(
            "(() => { const e = document.activeElement; return e.id || e.className || e.textContent.trim(); })()"
        )
    )


def test_the_keyboard_reaches_everything_and_gets_out_again(browser: Browser, run: LiveRun) -> None:
    tab = opened(browser, run.address)
    tab.press("Tab")
    assert focus(tab) == "skip"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().left") >= 0, "the skip link is not shown"
    tab.press("Enter")
    assert focus(tab) == "main"
    tab.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    wanted = tab.evaluate(
        "[...document.querySelectorAll('a[href], button, input, select, summary, [tabindex=\"0\"]')]"
        ".filter((e) => e.getClientRects().length && !e.closest('details:not([open]) > :not(summary)')).length"
    )
    tab.evaluate("document.querySelector('.skip').focus()")
    seen = []
    for _ in range(wanted):
        style = (
            "(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle + s.outlineWidth; })()"
        )
        assert tab.evaluate(style) == "solid2px", f"the focus is not visible on {focus(tab)}"
        seen.append(tab.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
        tab.press("Tab")
    assert len(set(seen)) == wanted
    assert seen == sorted(seen), "the focus jumps about"
    tab.close()


@pytest.mark.long
def test_cells_are_one_stop_and_arrows_move_among_them(browser: Browser) -> None:
    with LiveRun(MANY) as run:
        run.begin()
        run.add(*array_rounds(1, MANY))
        tab = opened(browser, run.address)
        assert tab.evaluate("document.querySelectorAll('.cells [tabindex=\"0\"]').length") == 1
        tab.evaluate("document.querySelector('#view').focus()")
        tab.press("Tab")
        label = "document.activeElement.getAttribute('aria-label').split(':')[0]"
        assert tab.evaluate(label) == "csd-0000"
        for key, expected in (
            ("ArrowRight", "csd-0001"),
            ("End", "csd-0999"),
            ("ArrowRight", "csd-0999"),
            ("Home", "csd-0000"),
        ):
            tab.press(key)
            assert tab.evaluate(label) == expected
        tab.press("ArrowDown")
        assert tab.evaluate(label) not in ("csd-0000", "csd-0001")
        told = tab.evaluate("document.querySelector('.told').innerText")
        assert tab.evaluate(label) in told
        assert "counted" in told
        tab.press("Tab")
        assert not tab.evaluate("document.activeElement.closest('.cells')"), "the cells are a trap"
        tab.close()


@pytest.mark.long
def test_drives_are_found_by_name_and_state(browser: Browser) -> None:
    with LiveRun(MANY) as run:
        run.begin()
        run.add(*array_rounds(1, MANY))
        for name in MANY[7:10]:
            run.lose(name)
        tab = opened(browser, run.address)
        tab.evaluate("document.querySelector('#find').focus()")
        tab.call("Input.insertText", {"text": "csd-099"})
        assert tab.evaluate("document.querySelectorAll('.cells li').length") == 10
        assert "10 of 1,000 drives match" in tab.evaluate("document.querySelector('#grid-note').innerText")
        tab.evaluate(CHOOSE + "('#find', '')")
        tab.evaluate(CHOOSE + "('#state', 'lost')")
        assert tab.evaluate("document.querySelectorAll('.cells li').length") == 3
        tab.evaluate(CHOOSE + "('#view', 'table')")
        rows = "[...document.querySelectorAll('#grid tbody th')].map((cell) => cell.textContent).join()"
        assert tab.evaluate(rows) == "csd-0007,csd-0008,csd-0009"
        tab.close()


@pytest.mark.long
def test_a_screen_reader_finds_landmarks_names_and_values(browser: Browser, run: LiveRun) -> None:
    tab = opened(browser, run.address)
    nodes = [node for node in tab.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
    found = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes]
    roles = {role for role, _ in found}
    assert {"main", "banner", "contentinfo", "search", "list", "listitem", "table", "figure", "status"} <= roles
    headings = [name for role, name in found if role == "heading"]
    assert headings[:3] == ["lab", "Progress", "Drives"]
    assert set(NAMES) <= set(headings)
    images = [name for role, name in found if role == "image"]
    assert len(images) == 7
    assert all("no data" not in name for name in images)
    assert any(name.startswith("Accuracy and loss") and "accuracy 0." in name for name in images)
    for role, name in found:
        if role in ("button", "link", "combobox", "searchbox", "textbox", "image", "region", "progressbar"):
            assert name, f"a {role} without a name"
    tab.close()


@pytest.mark.long
def test_the_theme_can_be_chosen_and_is_remembered(browser: Browser, run: LiveRun) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    tab = opened(browser, run.address, dark=False)
    light = tab.evaluate(ground)
    for _ in range(2):  # light, then dark
        tab.evaluate("document.querySelector('#theme').focus()")
        tab.press("Enter")
    assert tab.evaluate("document.querySelector('#theme').textContent") == "Theme: dark"
    dark = tab.evaluate(ground)
    assert dark != light
    tab.close()
    again = opened(browser, run.address, dark=False)
    assert again.evaluate(ground) == dark
    assert again.evaluate(FAINT)["faint"] == []
    again.evaluate("localStorage.clear()")
    again.close()


@pytest.mark.long
def test_who_wants_no_motion_gets_none(browser: Browser, run: LiveRun) -> None:
    tab = opened(browser, run.address)
    tab.set_media(dark=False, reduced_motion=True)
    assert tab.evaluate(MOVING) == []
    tab.close()


def test_no_name_can_act_in_the_page(browser: Browser) -> None:
    hostile = "<img src=http://example.invalid/x onerror=document.title='hit'><script>document.title='hit'</script>"
    with LiveRun([hostile, "csd-01"], array=hostile) as run:
        run.begin()
        run.add(*array_rounds(2, [hostile, "csd-01"]))
        run.tell(hostile, EventKind.FAILED, hostile)
        run.history.set_failures(
            [
                Failure(
                    kind="model", device=hostile, round=1, step=None, error=hostile, traceback=f"Traceback\n{hostile}"
                )
            ]
        )
        tab = opened(browser, run.address, 400)
        assert hostile in tab.evaluate("document.body.innerText")
        assert tab.evaluate("document.querySelectorAll('img').length") == 0
        banner = tab.evaluate("document.querySelector('#failures').innerText")
        assert "This run has failed" in banner
        assert f"the model failed on {hostile} in round 1: {hostile}" in banner
        assert tab.evaluate("document.querySelector('#failures pre').textContent") == f"Traceback\n{hostile}"
        assert tab.evaluate("document.title") != "hit"
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
        check_guests(tab, run.address)
        tab.close()


@pytest.mark.long
def test_the_page_of_a_real_run_shows_a_drive_that_is_killed(browser: Browser, workshop: Workshop) -> None:
    port = free_port()
    workshop.write(
        "array.yaml", ARRAY | {"devices": [{"profile": "newport", "count": 2}], "host": {"metrics_port": port}}
    )
    process = workshop.start(*workshop.job_arguments(rounds=2, epochs=1, target={"accuracy": 1.0}), "--stay")
    try:
        wait_until(lambda: len(workshop.rounds()) == 2)
        address = f"http://127.0.0.1:{port}/"
        tab = opened(browser, address)
        tab.wait_for("document.querySelector('#phase').textContent === 'finished'", POLL_SECONDS)
        state: dict[str, Any] = json.loads(tab.evaluate("fetch('/api/state').then((answer) => answer.text())"))
        assert (state["run"]["clock"], state["totals"]["round"]) == ("modelled", 2)
        assert str(workshop.run_directory()) in tab.evaluate("document.querySelector('#facts').innerText")
        killed = workshop.run("inject", "lab", "csd-01", "kill")
        assert killed.code == 0, killed.err
        tab.wait_for("document.title.startsWith('(1 lost)')", POLL_SECONDS)
        assert "csd-01" in tab.evaluate("document.querySelector('#lost').innerText")
        check_guests(tab, address)
        tab.close()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    workshop.assert_clean()
