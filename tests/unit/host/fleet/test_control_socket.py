"""What `csd-emu inject` and a run say to each other, over a real socket in the test's folder."""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.engines import Fault
from firmware_agent.common.errors import DeviceError, DeviceLost, EnvironmentUnfit, ProtocolError
from host.fleet import control_socket as control
from host.fleet.control_socket import MAX_LINE_BYTES, ControlReply, ControlRequest, ControlServer, NoRun, ask


async def obey(request: ControlRequest) -> str:
    if request.harm is Fault.KILL:
        raise DeviceLost("csd-00 is dead already")
    return f"{request.harm} {request.device} {request.weight} {request.note}".rstrip()


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "run" / "lab.control"
    async with ControlServer(path, obey):
        yield path


async def say(path: Path, line: bytes) -> bytes:
    """Send raw bytes; return all that comes back."""
    with control._short(path) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    writer.write(line)
    with contextlib.suppress(ConnectionError):
        answer = await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return answer


async def test_a_request_is_done_and_answered(path: Path) -> None:
    assert await asyncio.to_thread(ask, path, ControlRequest("csd-00", Fault.SLOW, 50)) == "slow csd-00 50"
    assert await asyncio.to_thread(ask, path, ControlRequest("csd-01", Fault.CUT, note="why")) == "cut csd-01 0 why"


async def test_what_the_run_cannot_do_is_an_error_in_its_own_words(path: Path) -> None:
    with pytest.raises(DeviceError, match="csd-00 is dead already"):
        await asyncio.to_thread(ask, path, ControlRequest("csd-00", Fault.KILL))


async def test_only_its_owner_may_speak_to_a_run(path: Path) -> None:
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


async def test_anything_else_is_refused_with_the_reason(path: Path, subtests: pytest.Subtests) -> None:
    for line, why in [
        (b"\n", "not a request"),
        (b"hello\n", "not a request"),
        (b"\xff\xfe\n", "not a request"),
        (b"[]\n", "not a request"),
        (b'{"device":"csd-00"}\n', "missing required field `harm`"),
        (b'{"device":"csd-00","harm":"explode"}\n', "explode"),
        (b'{"device":"","harm":"kill"}\n', "length >= 1"),
        (b'{"device":"csd-00","harm":"slow","weight":10001}\n', "<= 10000"),
        (b'{"device":"csd-00","harm":"slow","weight":"1"}\n', "Expected `int`"),
        (b'{"device":"csd-00","harm":"slow","speed":1}\n', "unknown field `speed`"),
        (b"[" * 20000 + b"\n", "not a request"),
        (b"x" * (MAX_LINE_BYTES + 2) + b"\n", "at most"),
    ]:
        with subtests.test(line=line, why=why):
            answer = msgspec.json.decode(await say(path, line), type=ControlReply)
            assert why in answer.error
            assert await asyncio.to_thread(ask, path, ControlRequest("csd-00", Fault.HEAL)) == "heal csd-00 0"


async def test_one_who_says_nothing_does_not_hold_up_the_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_REQUEST_SECONDS", 0.01)
    with control._short(path) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    assert b"no request came" in await reader.read()
    writer.close()


async def test_a_request_that_is_never_answered_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_GRACE_SECONDS", 0.01)
    begun = asyncio.Event()

    async def forget(request: ControlRequest) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    async with ControlServer(tmp_path / "lab.control", forget):
        asking = asyncio.ensure_future(
            asyncio.to_thread(ask, tmp_path / "lab.control", ControlRequest("csd-00", Fault.FILL))
        )
        await begun.wait()
    with pytest.raises(NoRun, match="the run ended before it answered"):
        await asking


async def test_a_socket_that_a_killed_run_left_is_no_run_and_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "lab.control"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with pytest.raises(NoRun):
        ask(path, ControlRequest("csd-00", Fault.FILL))
    async with ControlServer(path, obey):
        assert await asyncio.to_thread(ask, path, ControlRequest("csd-00", Fault.FILL)) == "fill csd-00 0"
    assert not path.exists()


def test_without_a_run_there_is_nobody_to_ask(tmp_path: Path) -> None:
    for path in (tmp_path / "lab.control", tmp_path / "no" / "folder" / "lab.control"):
        with pytest.raises(NoRun, match="no run listens"):
            ask(path, ControlRequest("csd-00", Fault.FILL))


def test_a_file_in_its_place_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "lab.control").write_text("")
    with pytest.raises(EnvironmentUnfit):
        ask(tmp_path / "lab.control", ControlRequest("csd-00", Fault.FILL))


async def test_however_deep_the_folder_lies(tmp_path: Path) -> None:
    path = tmp_path / ("deep" * 40) / "lab.control"
    async with ControlServer(path, obey):
        assert await asyncio.to_thread(ask, path, ControlRequest("csd-00", Fault.HEAL)) == "heal csd-00 0"


async def test_an_answer_that_is_none_is_not_believed(tmp_path: Path) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'{"detail": 5}\n')
        writer.close()

    path = tmp_path / "lab.control"
    async with await asyncio.start_unix_server(babble, path):
        with pytest.raises(ProtocolError, match="no run of this version"):
            await asyncio.to_thread(ask, path, ControlRequest("csd-00", Fault.HEAL))


@given(
    st.builds(
        ControlRequest,
        st.text(min_size=1, max_size=20),
        st.sampled_from(Fault),
        st.integers(0, 10_000),
        st.text(max_size=20),
    )
)
def test_a_request_comes_back_equal(request: ControlRequest) -> None:
    line = msgspec.json.encode(request)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=ControlRequest) == request


async def test_one_who_holds_many_connections_is_told_to_come_again_and_others_are_heard_later(path: Path) -> None:
    held = []
    with control._short(path) as address:
        for _ in range(control.MOST_TALKS):
            held.append(await asyncio.open_unix_connection(address))
    async with asyncio.timeout(20):
        while b"busy" not in (answer := await say(path, b"{}\n")):
            assert b"not a request" in answer  # not all of them are accepted yet
    for _, writer in held:
        writer.close()
        await writer.wait_closed()
    async with asyncio.timeout(20):
        while b"busy" in await say(path, b"{}\n"):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
