import asyncio
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator

import pytest

from firmware_agent.common.errors import EnvironmentUnfit
from host.monitoring import exporter as exporter_module
from host.monitoring.exporter import Exporter
from tests.support.metrics import Samples, begun, defined, parse
from tests.support.records import round_record


def scrape(exporter: Exporter, name: str = "Prometheus/2.42.0") -> dict[str, Samples]:
    """Fetch as Prometheus does; when the connection has ended, the exporter has noted who came."""
    url = urllib.parse.urlsplit(exporter.address)
    head = f"GET {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nUser-Agent: {name}\r\n\r\n"
    with socket.create_connection((url.hostname, url.port), timeout=10) as connection:
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return parse(answer.partition(b"\r\n\r\n")[2].decode())


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    with Exporter(begun(), None) as exporter:
        yield exporter


def test_a_round_is_there_at_the_next_scrape(exporter: Exporter) -> None:
    assert scrape(exporter)["csd_round"] == {("federated",): 0.0}
    exporter.state.add_round(round_record([], round=7))
    assert scrape(exporter)["csd_round"] == {("federated",): 7.0}


def test_prometheus_own_format_has_no_created_series(exporter: Exporter) -> None:
    accept = "application/openmetrics-text;version=1.0.0"
    request = urllib.request.Request(exporter.address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        text = answer.read().decode()
    assert text.endswith("# EOF\n")
    assert "_created" not in text
    assert "# UNIT csd_energy_joules joules" in text


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_an_answer_says_how_long_it_is(exporter: Exporter, encoding: str) -> None:
    request = urllib.request.Request(exporter.address, headers={"Accept-Encoding": encoding})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert int(answer.headers["Content-Length"]) == len(answer.read()) > 1000


def test_a_port_in_use_is_one_clear_error_that_names_the_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            EnvironmentUnfit, match=rf"host\.metrics_port: cannot listen on 127\.0\.0\.1:{port}"
        ) as caught:
            Exporter(defined(), port).__enter__()
    assert caught.value.exit_code == 2


def test_without_a_port_it_takes_the_usual_one_or_any_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(exporter_module, "USUAL_PORT", port)
        with Exporter(defined(), None) as exporter:
            assert port_of(exporter) not in (0, port)
    with Exporter(defined(), None) as exporter:
        assert port_of(exporter) == port


def test_it_listens_on_loopback_alone_and_stops() -> None:
    with Exporter(defined(), None) as exporter:
        address = exporter.address
        assert address.startswith("http://127.0.0.1:")
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=5)


def test_a_client_that_never_asks_does_not_keep_it_from_ending() -> None:
    with Exporter(defined(), None) as exporter, socket.create_connection(("127.0.0.1", port_of(exporter))):
        scrape(exporter)


def port_of(exporter: Exporter) -> int:
    return int(exporter.address.rpartition(":")[2].partition("/")[0])


async def test_a_run_that_ends_waits_until_its_scraper_has_the_last_round(exporter: Exporter) -> None:
    scrape(exporter)
    exporter.state.add_round(round_record([], round=7))
    waiting = asyncio.ensure_future(exporter.wait_for_scrapers())
    await asyncio.sleep(0)
    assert not waiting.done()
    seen: list[dict[str, Samples]] = []
    thread = threading.Thread(target=lambda: seen.append(scrape(exporter)))
    thread.start()
    await waiting
    thread.join()
    assert seen[0]["csd_round"] == {("federated",): 7.0}


@pytest.mark.parametrize("before", [[], ["Prometheus/2.42.0"]])
async def test_nobody_is_waited_for_who_never_came_or_has_it_all(exporter: Exporter, before: list[str]) -> None:
    exporter.state.add_round(round_record([], round=7))
    for name in before:
        scrape(exporter, name)
    await exporter.wait_for_scrapers()
