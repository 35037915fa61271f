import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.monitoring.metrics.scrapers import FIRST_GUESS_SECONDS, LONGEST_SECONDS, Scrapers

visits = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 100)), max_size=20)


@given(visits=visits, idle=st.floats(0, 100))
def test_nobody_is_waited_for_longer_than_the_longest_wait_and_none_who_has_it_all(
    visits: list[tuple[str, float]], idle: float
) -> None:
    scrapers, now = Scrapers(), 0.0
    for name, seconds in visits:
        now += seconds
        scrapers.note(name, 1, now)
    assert scrapers.wait_seconds(1, now + idle) == 0
    left = scrapers.wait_seconds(2, now + idle)
    assert 0 <= left <= LONGEST_SECONDS
    assert left == 0 or visits
    assert scrapers.wait_seconds(2, now + 1.01 * LONGEST_SECONDS) == 0


def test_a_regular_one_is_waited_for_one_and_a_half_intervals() -> None:
    scrapers = Scrapers()
    for now in (0.0, 4.0, 8.0):
        scrapers.note("a", 1, now)
    assert scrapers.wait_seconds(2, 9.0) == pytest.approx(5.0)
    assert scrapers.wait_seconds(2, 14.0) == 0
    scrapers.note("a", 2, 12.0)
    assert scrapers.wait_seconds(2, 12.0) == 0


def test_one_who_came_once_is_waited_for_a_guess() -> None:
    scrapers = Scrapers()
    scrapers.note("a", 1, 100.0)
    assert scrapers.wait_seconds(2, 100.0) == pytest.approx(FIRST_GUESS_SECONDS)


def test_the_slowest_decides() -> None:
    scrapers = Scrapers()
    for name, interval in (("fast", 1.0), ("slow", 8.0)):
        scrapers.note(name, 1, 10.0 - interval)
        scrapers.note(name, 1, 10.0)
    assert scrapers.wait_seconds(2, 10.0) == pytest.approx(12.0)
    scrapers.note("slow", 2, 11.0)
    assert scrapers.wait_seconds(2, 11.0) == pytest.approx(0.5)


def test_many_names_are_not_remembered_for_ever() -> None:
    scrapers = Scrapers()
    for number in range(1000):
        scrapers.note(f"curl-{number}", 1, float(number))
    assert len(vars(scrapers)["_known"]) == 16
