import resource
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.util import open_files
from csd_emu.util.open_files import allow_open_files
from firmware_agent.common.errors import EnvironmentUnfit

INFINITY = resource.RLIM_INFINITY
limits = st.one_of(st.just(INFINITY), st.integers(0, 10_000))


class Limits:
    """The process's limits of open files, as the kernel keeps them."""

    RLIMIT_NOFILE, RLIM_INFINITY = resource.RLIMIT_NOFILE, INFINITY

    def __init__(self, soft: int, hard: int) -> None:
        self.now = soft, hard

    def getrlimit(self, which: int) -> tuple[int, int]:
        assert which == self.RLIMIT_NOFILE
        return self.now

    def setrlimit(self, which: int, limits: tuple[int, int]) -> None:
        assert which == self.RLIMIT_NOFILE
        soft, hard = limits
        assert hard == self.now[1]
        assert hard == INFINITY or 0 <= soft <= hard
        self.now = limits


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    before = vars(open_files)["resource"]
    yield
    vars(open_files)["resource"] = before


def at_least(limit: int, count: int) -> bool:
    return limit == INFINITY or limit >= count


@given(streams=st.integers(0, 2000), soft=limits, hard=limits)
def test_the_limit_is_raised_and_the_streams_fit_or_there_is_an_error(streams: int, soft: int, hard: int) -> None:
    if not at_least(hard, soft) or (soft == INFINITY and hard != INFINITY):
        soft = hard  # the kernel has no other
    limits = Limits(soft, hard)
    vars(open_files)["resource"] = limits
    if not at_least(hard, streams + 256):
        with pytest.raises(EnvironmentUnfit, match=f"{streams} drives need about {streams + 256} open files") as caught:
            allow_open_files(streams)
        assert f"ulimit -Hn {streams + 256}" in str(caught.value)
        assert limits.now == (hard, hard)
        return
    spare = allow_open_files(streams)
    assert limits.now == (hard, hard)  # whatever else may be open, all that there is
    assert hard == INFINITY or spare == hard - streams - 256


def test_it_is_this_process_whose_limit_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
        allow_open_files(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
