"""A drive's probe against the bench's sink, over a real socket; the throttle is a fake one."""

import asyncio
from pathlib import Path

import pytest

from firmware_agent.common.errors import DeviceFailed
from firmware_agent.common.frames.measure_frames import ProbeSend
from firmware_agent.common.handover import OWN_SINK
from firmware_agent.faults.throttle_probe import open_sink, probe_send
from tests.support.fakes import FakeThrottled


@pytest.fixture
def interfaces(tmp_path: Path) -> Path:
    (tmp_path / "net" / "lo" / "statistics").mkdir(parents=True)
    (tmp_path / "net" / "lo" / "statistics" / "tx_bytes").write_text("1000\n")
    return tmp_path / "net"


@pytest.mark.parametrize("limit", [0, 1_000_000])
def test_the_sink_takes_and_confirms_all_that_is_sent(tmp_path: Path, interfaces: Path, limit: int) -> None:
    drive = FakeThrottled(tmp_path / "drive")
    with open_sink() as port:
        for size, address in ((1, f"127.0.0.1:{port}"), (100_000, OWN_SINK), (3_000_000, f"127.0.0.1:{port}")):
            probed = probe_send(ProbeSend(size, limit, address), drive.throttle(), interfaces)
            assert probed.counted_bytes == 0  # the fake card counts nothing
            assert probed.seconds > 0
    assert len(drive.calls) == (6 if limit else 0)
    assert not drive.limited


@pytest.mark.parametrize("answer", [b"", b"\0" * 7, b"\0" * 8])
async def test_a_sink_that_does_not_confirm_is_told_and_the_limit_is_gone(
    tmp_path: Path, interfaces: Path, answer: bytes
) -> None:
    async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(int.from_bytes(await reader.readexactly(8), "big"))
        writer.write(answer)
        writer.close()

    drive = FakeThrottled(tmp_path / "drive")
    async with await asyncio.start_server(sink, "127.0.0.1", 0) as server:
        task = ProbeSend(50_000, 1_000_000, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(DeviceFailed, match=r"could not be sent to"):
            await asyncio.to_thread(probe_send, task, drive.throttle(), interfaces)
    assert not drive.limited


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x"])
def test_a_sink_that_is_not_there_is_told_and_the_limit_is_gone(tmp_path: Path, address: str) -> None:
    drive = FakeThrottled(tmp_path)
    with pytest.raises(DeviceFailed):
        probe_send(ProbeSend(1, 1000, address), drive.throttle())
    assert not drive.limited
