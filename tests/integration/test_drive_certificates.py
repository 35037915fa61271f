"""Whose certificate opens the drives' port and the metrics' port, each tried on a real one."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from csd_emu.config.array_file import ArrayConfig
from firmware_agent.common.frames.session_frames import Welcome
from firmware_agent.common.wire import HOST_NAME, SERVICE_METHOD, decode, encode
from host.core.records import EventKind
from host.fleet.admission import ExpectedDevice
from host.fleet.certificates import Authority, Credential, HostKeys, lent_uri, serial_of
from host.fleet.enrolment_authority import FILE, CertificateCheck, Serials, authority_held
from host.fleet.fleet import Fleet
from host.monitoring.exporter import Exporter
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.run_facts import RunFacts
from tests.support.fakes import hello

REAL, EMULATED, RUN = "csd-00", "vm-00", "cafe"
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@dataclass
class Door:
    """A fleet of one real and one emulated drive, under a deployment's authority."""

    fleet: Fleet
    authority: Authority
    serials: Serials
    events: list[tuple[str, EventKind, str]] = field(default_factory=list)

    def own(self, until: datetime.datetime = NOW + DAY, device: str = REAL) -> Credential:
        return self.authority.issue_device(device, until)

    def lent(self, array: str = "lab", run: str = RUN, device: str = EMULATED) -> Credential:
        return self.authority.issue_device(device, NOW + DAY, lent_uri(array, run))

    async def knock(self, credential: Credential, device: str = REAL) -> str:
        """Return what is answered: ``welcome``, or why not."""
        return await asyncio.to_thread(self._knock, credential, device)

    def _knock(self, credential: Credential, device: str) -> str:
        with self._channel(credential) as channel:
            method: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(SERVICE_METHOD)
            call = method(iter([encode(hello(device))]), timeout=20)
            try:
                answers = [decode(frame) for frame in call]
            except grpc.RpcError:
                return f"{call.code().name}: {call.details()}"
        assert answers[0] == Welcome()
        return "welcome"

    def call(self, credential: Credential, talks: bool, over: threading.Event) -> None:
        """Say hello, or nothing until it is over; return when it was refused."""

        def words() -> Iterator[bytes]:
            if talks:
                yield encode(hello(REAL))
            else:
                over.wait()

        with self._channel(credential) as channel, contextlib.suppress(grpc.RpcError):
            list(channel.stream_stream(SERVICE_METHOD)(words(), timeout=10))

    def _channel(self, credential: Credential) -> grpc.Channel:
        credentials = grpc.ssl_channel_credentials(
            self.authority.ca_pem.encode(), credential.key_pem.encode(), credential.certificate_pem.encode()
        )
        options = [("grpc.ssl_target_name_override", HOST_NAME), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.secure_channel(f"127.0.0.1:{self.fleet.port}", credentials, options=options)

    def seen(self, what: EventKind) -> list[str]:
        return [detail for _, kind, detail in self.events if kind is what]


def config() -> ArrayConfig:
    devices = [{"profile": "newport", "engine": "remote", "drives": [REAL]}, {"profile": "newport", "name": "vm"}]
    return ArrayConfig.model_validate({"name": "lab", "engine": "native", "inventory": "lab.yaml", "devices": devices})


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    authority, serials = Authority("lab"), Serials(tmp_path / "lab")
    check = CertificateCheck("lab", RUN, frozenset({REAL}), serials)
    events: list[tuple[str, EventKind, str]] = []
    expected = {name: ExpectedDevice(1, "a" * 64) for name in (REAL, EMULATED)}
    keys = HostKeys(authority.ca_pem, authority.issue_host())
    async with Fleet(expected, keys, 0, lambda *event: events.append(event), certificates=check) as fleet:
        yield Door(fleet, authority, serials, events)


async def test_what_a_drive_was_given_last_is_let_in(door: Door) -> None:
    credential = door.own()
    door.serials.record(REAL, serial_of(credential))
    assert await door.knock(credential) == "welcome"
    assert await door.knock(door.lent(), EMULATED) == "welcome"
    assert (len(door.seen(EventKind.JOINED)), door.seen(EventKind.ADOPTED)) == (2, [])


async def test_a_drive_without_a_record_is_adopted_at_its_first_hello_and_another_is_refused(door: Door) -> None:
    first, copied = door.own(), door.own()
    assert await door.knock(first) == "welcome"
    (told,) = door.seen(EventKind.ADOPTED)
    assert f"serial {serial_of(first):x}" in told
    assert door.serials.find(REAL) == f"{serial_of(first):x}"
    assert "not the newest" in await door.knock(copied)
    assert await door.knock(first) == "welcome"


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("renewed", "PERMISSION_DENIED: csd-00: its certificate is not the newest that it was given"),
        ("revoked", "PERMISSION_DENIED: csd-00: its certificate was revoked"),
        ("expired", "UNAVAILABLE"),
        ("foreign", "UNAVAILABLE"),
        ("of another drive", "PERMISSION_DENIED: vm-00's certificate came with a hello of csd-00"),
        ("lent to a namesake", "PERMISSION_DENIED: csd-00: came with a certificate that was lent to an emulated drive"),
        ("damaged records", "PERMISSION_DENIED: csd-00: whether its certificate counts is not known"),
    ],
)
async def test_a_real_drive_with_any_other_is_refused(door: Door, case: str, why: str, tmp_path: Path) -> None:
    credential = door.own(NOW - DAY) if case == "expired" else door.own()
    door.serials.record(REAL, serial_of(credential))
    if case == "renewed":
        door.serials.record(REAL, serial_of(door.own()))
    elif case == "revoked":
        door.serials.revoke(REAL)
    elif case == "foreign":
        credential = Authority("lab").issue_device(REAL)
    elif case == "of another drive":
        credential = door.lent()
    elif case == "lent to a namesake":
        credential = door.lent(device=REAL)
    elif case == "damaged records":
        (tmp_path / "lab" / FILE).write_text("nonsense")
    assert (await door.knock(credential)).startswith(why)
    assert door.fleet.sessions() == {}
    refused = [] if why == "UNAVAILABLE" else [why.partition(": ")[2]]
    assert [any(told.startswith(want) for told in door.seen(EventKind.REFUSED)) for want in refused] == [True] * len(
        refused
    )


@pytest.mark.parametrize("case", ["another array", "an ended run", "a drive's own"])
async def test_an_emulated_drive_with_what_was_lent_elsewhere_is_refused(door: Door, case: str) -> None:
    lent = {"another array": door.lent("other"), "an ended run": door.lent(run="dead")}
    credential = lent[case] if case in lent else door.own(device=EMULATED)
    assert "its certificate is of another array, or of a run of this one that has ended" in await door.knock(
        credential, EMULATED
    )
    assert door.fleet.sessions() == {}
    assert door.serials.find(EMULATED) is None


@pytest.mark.parametrize("talks", [True, False])
async def test_who_dials_with_an_old_certificate_does_not_keep_the_drive_itself_out(door: Door, talks: bool) -> None:
    """Eight with the key of a drive that was sold, who said hello or nothing, had its places as long as they liked."""
    old, new, over = door.own(), door.own(), threading.Event()
    door.serials.record(REAL, serial_of(new))
    before = time.monotonic()

    def dial() -> None:
        while not over.is_set():
            door.call(old, talks, over)

    with ThreadPoolExecutor(8) as strangers:
        dialling = [strangers.submit(dial) for _ in range(8)]
        try:
            async with asyncio.timeout(30):
                while len(door.seen(EventKind.REFUSED)) < 16 and time.monotonic() - before < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert [await door.knock(new) for _ in range(3)] == ["welcome"] * 3
        finally:
            over.set()
            await asyncio.gather(*map(asyncio.wrap_future, dialling))
    assert door.seen(EventKind.ADOPTED) == []
    assert all("not the newest" in told for told in door.seen(EventKind.REFUSED))


async def test_a_command_that_holds_the_records_keeps_no_other_drive_waiting(door: Door, tmp_path: Path) -> None:
    first = door.own()
    with authority_held(tmp_path / "lab"):
        new = asyncio.ensure_future(door.knock(first))  # has to be written down, so it waits
        async with asyncio.timeout(20):
            while not door.fleet._door._waiting[REAL]:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
            assert await door.knock(door.lent(), EMULATED) == "welcome"
        assert not new.done()
    assert await new == "welcome"
    with authority_held(tmp_path / "lab"):
        assert await door.knock(first) == "welcome"  # known by now, so that reading is enough


async def test_an_array_knows_which_of_its_drives_have_certificates_of_their_own(tmp_path: Path) -> None:
    check = CertificateCheck.of(config(), RUN, tmp_path)
    assert (check.own, check.array, check.run) == (frozenset({REAL}), "lab", RUN)


@pytest.mark.parametrize("case", ["own", "expired", "foreign", "lent", "ended", "none"])
async def test_no_certificate_opens_anything_at_the_metrics_port(door: Door, case: str, tmp_path: Path) -> None:
    """It speaks plain HTTP, reads nothing of TLS, and goes on for those who are meant."""
    made = {
        "own": door.own(),
        "expired": door.own(NOW - DAY),
        "foreign": Authority("lab").issue_device(REAL),
        "lent": door.lent(),
        "ended": door.lent(run="dead"),
    }
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if case in made:
        for name, text in (("c", made[case].certificate_pem), ("k", made[case].key_pem)):
            (tmp_path / name).write_text(text)
        context.load_cert_chain(tmp_path / "c", tmp_path / "k")
    with Exporter(MetricsState(RunFacts("lab", "native", "digits_cnn", "sync", (REAL,))), None) as exporter:
        port = int(exporter.page_address.rstrip("/").rpartition(":")[2])

        def shake() -> None:
            with socket.create_connection(("127.0.0.1", port), 20) as plain, context.wrap_socket(plain):
                raise AssertionError("it speaks TLS")

        with pytest.raises(OSError, match=r"(?i)ssl|reset|eof"):
            await asyncio.to_thread(shake)
        answer = await asyncio.to_thread(urllib.request.urlopen, exporter.address)
        with contextlib.closing(answer):
            assert answer.status == 200
