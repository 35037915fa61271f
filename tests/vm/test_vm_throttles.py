"""A drive's own throttles, on a real virtual machine: they hold what is asked for, and they are gone afterwards."""

import asyncio

import pytest

from csd_emu.util.deadline import Deadline
from csd_lab.bench.emulation import ThrottleMeasurement, probe
from firmware_agent.common.errors import DeviceFailed
from firmware_agent.common.frames.measure_frames import ProbeSend
from host.fleet.device_session import DeviceSession
from tests.contract.laboratory import Laboratory
from tests.support.machines import DAEMON_OUTLIVES

pytestmark = [pytest.mark.vm, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]
# Far below what the machine does without a throttle, even beside other work.
RATES = {"io.max": 20_000_000, "tbf": 5_000_000}
SECONDS = 3


async def rate(session: DeviceSession, asked: ThrottleMeasurement) -> float:
    probed = await probe(session, asked)
    return probed.counted_bytes / probed.seconds


async def test_both_throttles_hold_and_are_gone_afterwards_even_after_a_failure(lab: Laboratory) -> None:
    async with lab.fleet() as fleet:
        handle = await asyncio.to_thread(lab.engine.start, lab.plan(0, fleet.port))
        await lab.ready(handle, fleet)
        (session,) = fleet.sessions().values()
        for throttle, asked in RATES.items():
            size = SECONDS * asked
            # Nothing makes a throttle let more through; a machine that has no time for its guest makes it less.
            assert asked / 2 < await rate(session, ThrottleMeasurement(throttle, asked, size)) < 1.1 * asked
            assert await rate(session, ThrottleMeasurement(throttle, 0, size)) > 2 * asked
        await session.send(ProbeSend(1, RATES["tbf"], "127.0.0.1:1"))
        with pytest.raises(DeviceFailed, match="open it first"):
            await session.receive(Deadline(300.0))
        assert await rate(session, ThrottleMeasurement("tbf", 0, SECONDS * RATES["tbf"])) > 2 * RATES["tbf"]
