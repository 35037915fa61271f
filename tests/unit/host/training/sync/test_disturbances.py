"""Competing work as the job file scripts it, on devices that leave and come back."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import DeviceFailed
from host.config.sync_section import MAX_WEIGHT, DisturbSection
from host.fleet.device_session import DeviceSession
from host.training.sync.disturbances import Disturbances, weight_at
from tests.support.fakes import FakeDrive

DEVICES = ("csd-00", "csd-01")
scripts = st.lists(
    st.builds(
        DisturbSection,
        device=st.sampled_from(DEVICES),
        at_step=st.integers(1, 12),
        weight=st.integers(1, MAX_WEIGHT),
        steps=st.integers(1, 12),
    ),
    max_size=5,
)


class Competitors:
    """Sets what a session's competing work weighs; a session that ends takes it along."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.weights: dict[DeviceSession, int] = {}
        self.failing = False

    async def set(self, session: DeviceSession, weight: int, deadline: Deadline) -> str:
        self.calls.append((session.device, weight))
        if self.failing:
            raise DeviceFailed("no cgroup")
        self.weights[session] = weight
        return f"weight {weight}"


def expected(script: list[DisturbSection], device: str, step: int) -> int:
    """The same by another way: every disturbance adds its weight to each of its steps."""
    by_step = [0] * 50
    for each in script:
        if each.device == device:
            for number in range(each.at_step, each.at_step + each.steps):
                by_step[number] += each.weight
    return min(10_000, by_step[step])


@given(script=scripts, rejoins=st.sets(st.integers(1, 25)), absent=st.sets(st.integers(1, 25)))
def test_in_every_step_a_device_has_just_what_the_script_says(
    script: list[DisturbSection], rejoins: set[int], absent: set[int]
) -> None:
    """Also right after it came back as a new session, and after steps in which it was not asked."""

    async def play() -> None:
        competitors = Competitors()
        disturbances = Disturbances(script, competitors.set)
        sessions = {device: FakeDrive(device).session for device in DEVICES}
        for step in range(1, 26):
            if step in rejoins:
                sessions["csd-01"] = FakeDrive("csd-01").session
            for device, session in sessions.items():
                if device == "csd-01" and step in absent:
                    continue
                before, calls = competitors.weights.get(session, 0), len(competitors.calls)
                detail = await disturbances.apply(session, step, Deadline(1.0))
                want = expected(script, device, step)
                assert competitors.weights.get(session, 0) == want == weight_at(script, device, step)
                assert len(competitors.calls) - calls == (before != want)  # nothing is said twice
                assert detail == (f"weight {want} (disturb, step {step})" if before != want else None)
            at = {device: expected(script, device, step) for device in DEVICES}
            assert disturbances.at(step) == {device: weight for device, weight in at.items() if weight}

    asyncio.run(play())


async def test_what_could_not_be_done_is_tried_again_before_the_next_step() -> None:
    competitors = Competitors()
    disturbances = Disturbances([DisturbSection(device="csd-00", at_step=1, weight=50, steps=9)], competitors.set)
    session = FakeDrive("csd-00").session
    competitors.failing = True
    with pytest.raises(DeviceFailed, match="no cgroup"):
        await disturbances.apply(session, 1, Deadline(1.0))
    competitors.failing = False
    assert await disturbances.apply(session, 2, Deadline(1.0)) == "weight 50 (disturb, step 2)"
    assert competitors.calls == [("csd-00", 50), ("csd-00", 50)]


def test_weights_that_overlap_add_up_to_no_more_than_a_cgroup_takes() -> None:
    script = [DisturbSection(device="csd-00", at_step=n, weight=6_000, steps=2) for n in (1, 2)]
    assert [weight_at(script, "csd-00", step) for step in range(1, 5)] == [6_000, 10_000, 6_000, 0]
