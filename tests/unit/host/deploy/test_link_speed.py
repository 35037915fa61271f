"""The measured speed of a link, against a drive whose times are known."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.engines.remote.shell import CommandResult
from csd_emu.util.deadline import Deadline
from host.deploy.verbs import probe as link
from tests.support.drives import FakeShell, entries
from tests.support.examples import examples


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(up=st.floats(1e4, 1e8), down=st.floats(1e4, 1e8), trip_seconds=st.floats(0, 0.2))
def test_the_speed_is_that_of_the_link_but_for_the_start_of_a_command(
    up: float, down: float, trip_seconds: float
) -> None:
    clock = 0.0

    class Drive(FakeShell):
        def check(self, command: str, deadline: Deadline, stdin: bytes = b"", root: bool = False) -> str:
            count = int(command.partition("count=")[2].split()[0]) if "count=" in command else 0
            nonlocal clock
            clock += trip_seconds + len(stdin) / up + count * 65536 / down
            return ""

    shell = Drive(entries(1)[0], lambda command: CommandResult(1, "", ""))
    found = link.measure_link(shell, Deadline(math.inf), lambda: clock)
    for measured, real in ((found.upload_bytes_per_second, up), (found.download_bytes_per_second, down)):
        # Below a link so fast that 8 MiB are not enough, a fifth of the time at most was the start of the command.
        share = trip_seconds / max(link.ENOUGH_SECONDS, 5 * trip_seconds)
        fewest = min(1 - share, (link.MOST_BYTES / real) / (link.MOST_BYTES / real + trip_seconds))
        assert fewest * real * (1 - 1e-9) <= measured <= real * (1 + 1e-9)
    assert found.round_trip_seconds == pytest.approx(trip_seconds, abs=1e-9)
