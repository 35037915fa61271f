"""The live page over HTTP: what it answers, to whom, and with which headers."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection
from typing import Any

import msgspec
import pytest

from host.core.records import EventKind, EventRecord
from host.monitoring.exporter import Exporter
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.page.assets import PLOTLY, find_plotly, list_files
from host.monitoring.page.page_app import PageApp
from host.monitoring.page.page_state import VERSION, PageState
from host.monitoring.page.run_history import History
from host.monitoring.run_listener import show_round
from tests.support.metrics import DEVICES, defined, starting
from tests.support.records import array_rounds
from tests.unit.host.monitoring.page.test_run_history import plan


@dataclass(frozen=True)
class Answer:
    """What the server has answered, read to its end."""

    status: int
    headers: Message
    body: bytes


class Run:
    """A run that is served, and told what happens."""

    def __init__(self) -> None:
        self.metrics: MetricsState = defined()
        self.history = History(plan(DEVICES))
        self.app = PageApp(self.history, self.metrics.devices)
        self.exporter = Exporter(self.metrics, None, page=self.app)

    def tell(self, device: str, what: EventKind, detail: str = "") -> None:
        for follower in (self.metrics, self.history):
            follower.add_event(EventRecord(device, what, detail))

    def begin(self) -> None:
        for device in DEVICES:
            self.tell(device, EventKind.JOINED)
        self.metrics.begin(starting())
        self.history.begin(starting())

    def add_rounds(self, count: int) -> None:
        for record in array_rounds(count, DEVICES):
            show_round((self.metrics, self.history), record)

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        host, _, port = self.exporter.page_address.removeprefix("http://").strip("/").partition(":")
        connection = HTTPConnection(host, int(port), timeout=10)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def state(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.get("/api/state").body)
        return value


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    with run.exporter:
        yield run


def test_the_state_has_its_published_shape_before_during_and_after_training(run: Run) -> None:
    for happen in (lambda: None, run.begin, lambda: run.add_rounds(3), run.history.end):
        happen()
        text = run.get("/api/state").body
        state = msgspec.json.decode(text, type=PageState)
        assert json.loads(msgspec.json.encode(state)) == json.loads(text), (
            "there are keys that the schema does not name"
        )
        assert state.version == VERSION
    assert (state.run.phase, state.totals.round, state.run.clock) == ("finished", 3, "counted")
    assert [drive.state for drive in state.drives] == ["training"] * 3


def test_a_lost_drive_is_lost_in_the_next_answer_also_when_training_is_over(run: Run) -> None:
    run.begin()
    run.add_rounds(1)
    run.history.end()
    run.metrics.end(stays=True)
    assert run.state()["states"] == {"ready": 3}
    run.tell(DEVICES[1], EventKind.LEFT)
    state = run.state()
    assert {drive["name"]: drive["state"] for drive in state["drives"]}[DEVICES[1]] == "lost"
    assert (state["states"], state["run"]["phase"]) == ({"ready": 2, "lost": 1}, "finished")


def test_who_has_the_state_already_gets_nothing_until_something_changes(run: Run) -> None:
    run.begin()
    first = run.get("/api/state")
    tag = first.headers["ETag"]
    again = run.get("/api/state", If_None_Match=tag)
    assert (again.status, again.body) == (304, b"")
    assert again.headers["ETag"] == tag
    for change in (lambda: run.add_rounds(1), lambda: run.tell(DEVICES[0], EventKind.LEFT), run.metrics.end):
        change()
        answer = run.get("/api/state", If_None_Match=tag)
        assert answer.status == 200
        assert answer.headers["ETag"] != tag
        tag = answer.headers["ETag"]
    assert run.get("/api/state", If_None_Match=f'"other", {tag}').status == 304


def test_another_process_has_other_tags(run: Run) -> None:
    other = Run()
    with other.exporter:
        assert other.get("/api/state").headers["ETag"] != run.get("/api/state").headers["ETag"]


def test_health_is_readiness(run: Run) -> None:
    answer = run.get("/healthz")
    assert (answer.status, json.loads(answer.body)["ready"]) == (503, False)
    for device in DEVICES:
        run.tell(device, EventKind.JOINED)
    assert run.get("/healthz").status == 503
    run.begin()
    answer = run.get("/healthz")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert json.loads(answer.body) == {"ready": True, "phase": "training", "drives": 3, "states": {"training": 3}}
    run.history.end()
    assert run.get("/healthz").status == 200


def paths() -> list[str]:
    return [
        "/",
        "/metrics",
        "/healthz",
        "/api/state",
        *(f"/static/{name}" for name in list_files() if name != "index.html"),
    ]


def test_every_answer_is_guarded_and_a_head_is_the_same_without_body(run: Run, subtests: pytest.Subtests) -> None:
    for path in [*paths(), "/nothing", "/static/none.js"]:
        with subtests.test(path=path):
            run.begin()
            answers = {method: run.get(path, method) for method in ("GET", "HEAD")}
            body = answers["GET"].body
            assert answers["HEAD"].body == b""
            assert answers["GET"].status == answers["HEAD"].status
            if path != "/metrics":  # prometheus_client's own
                for answer in answers.values():
                    check_headers(answer)
                assert {int(answer.headers["Content-Length"]) for answer in answers.values()} == {len(body)}
            assert (answers["GET"].status == 404) == (path in ("/nothing", "/static/none.js"))


def check_headers(answer: Answer) -> None:
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert {"frame-ancestors", "base-uri", "form-action"} <= set(policy)
    assert "unsafe-eval" not in str(policy)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


def test_it_is_read_only(run: Run, subtests: pytest.Subtests) -> None:
    for path in ["/", "/metrics", "/api/state"]:
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"]:
            with subtests.test(method=method, path=path):
                before = run.history.revision
                answer = run.get(path, method)
                assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
                assert run.history.revision == before


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/app.py", "/static/index.html", "/static/"],
)
def test_only_its_own_files_can_be_had(run: Run, path: str) -> None:
    assert run.get(path).status == 404


def test_bodies_are_compressed_for_who_likes_it(run: Run) -> None:
    run.begin()
    run.add_rounds(5)
    for path in ("/api/state", "/", "/static/page.css", f"/static/{PLOTLY}"):
        plain, packed = run.get(path), run.get(path, Accept_Encoding="gzip")
        assert packed.headers["Content-Encoding"] == "gzip"
        assert "Content-Encoding" not in plain.headers
        data, body = packed.body, plain.body
        assert gzip.decompress(data) == body
        assert len(data) < len(body)
        assert plain.headers["Vary"] == packed.headers["Vary"] == "Accept-Encoding"


def test_a_file_is_known_again(run: Run) -> None:
    tag = run.get("/static/main.js").headers["ETag"]
    assert run.get("/static/main.js", If_None_Match=tag).status == 304


def test_metrics_are_where_they_were(run: Run) -> None:
    run.begin()
    assert run.exporter.address == run.exporter.page_address + "metrics"
    assert b"csd_device_up" in run.get("/metrics").body


def test_without_the_plotting_library_there_is_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.monitoring.page.assets.find_plotly", lambda: None)
    without = Run()
    with without.exporter:
        assert without.get(f"/static/{PLOTLY}").status == 404
        assert without.get("/").status == 200


def test_the_plotting_library_is_found_without_being_imported() -> None:
    path = find_plotly()
    assert path is not None
    assert path.stat().st_size > 1_000_000


def test_nothing_in_the_page_is_from_elsewhere() -> None:
    for name, path in list_files().items():
        if name not in (PLOTLY, "icon.svg"):
            text = path.read_text(encoding="utf-8")
            assert "http:" not in text, name
            assert "https:" not in text, name
            assert "innerHTML" not in text, name
