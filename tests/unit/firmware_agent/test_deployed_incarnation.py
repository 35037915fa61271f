"""A real drive's agent that begins to serve an identity again is another incarnation of itself."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.identity import Identity
from firmware_agent.deployed import next_incarnation

TICKET = Identity("lab", "left", 1_700_000_000, "127.0.0.1:1", "wall", 0.0, b"", "", "", "")


@given(starts=st.integers(1, 10))
def test_every_start_is_one_on(starts: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    served = tmp_path_factory.mktemp("state") / "served"
    seen = [next_incarnation(TICKET, served).incarnation for _ in range(starts)]
    assert seen == [TICKET.incarnation + number for number in range(starts)]


@pytest.mark.parametrize("change", [{"incarnation": 1_700_000_500}, {"array": "other"}, {"device": "right"}])
def test_another_ticket_is_served_as_it_is(change: dict[str, object], tmp_path: Path) -> None:
    served = tmp_path / "served"
    next_incarnation(TICKET, served)
    next_incarnation(TICKET, served)
    other = msgspec.structs.replace(TICKET, **change)
    assert next_incarnation(other, served) == other


@pytest.mark.parametrize("content", [b"", b"lab left", b"lab left 1700000000 x", b"\xff\xfe"])
def test_what_was_kept_and_cannot_be_read_counts_as_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "served").write_bytes(content)
    assert next_incarnation(TICKET, tmp_path / "served") == TICKET
