"""Watch on the link by what steps take beside computing."""

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from host.policies.split.link_watch import STEPS_IN_A_ROW, LinkWatch

BATCHES = {"csd-00": 8, "csd-01": 4}
SECONDS = st.floats(1e-3, 10.0)


def show(watch: LinkWatch, beside: float, times: int, compute: float = 1.0, batches: dict[str, int] = BATCHES) -> bool:
    return any([watch.observe(batches, compute, compute + beside) for _ in range(times)])


@given(SECONDS, SECONDS, st.lists(st.floats(0.8, 1.2), min_size=4, max_size=40))
def test_a_link_that_stays_is_no_news_whatever_drives_compute(
    beside: float, compute: float, noise: list[float]
) -> None:
    watch = LinkWatch()
    assert not show(watch, beside, STEPS_IN_A_ROW, compute)
    for factor in noise:
        assert not show(watch, factor * beside, 1, factor * compute)


@given(SECONDS, SECONDS, st.sampled_from([0.1, 10.0]))
def test_a_change_that_costs_or_saves_is_seen_in_three_steps_and_begins_anew(
    beside: float, compute: float, factor: float
) -> None:
    watch = LinkWatch()
    show(watch, beside, STEPS_IN_A_ROW, compute)
    share = abs(factor - 1) * beside / (compute + factor * beside)
    assume(abs(share - 0.15) > 1e-6)
    assert show(watch, factor * beside, STEPS_IN_A_ROW, compute) == (share > 0.15)
    watch.begin()
    assert not show(watch, factor * beside, 2 * STEPS_IN_A_ROW, compute)


def test_two_steps_do_where_they_take_twice_as_long_and_one_never_does() -> None:
    watch = LinkWatch()
    show(watch, 1.0, STEPS_IN_A_ROW)
    assert not show(watch, 100.0, 1)
    assert not show(watch, 1.0, 1)
    assert not show(watch, 1.8, 2)
    assert not show(watch, 1.0, 1)
    assert show(watch, 9.0, 2)


def test_steps_with_other_batches_are_not_compared() -> None:
    watch = LinkWatch()
    show(watch, 1.0, STEPS_IN_A_ROW)
    assert not show(watch, 10.0, STEPS_IN_A_ROW, batches=BATCHES | {"csd-00": 80})


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=12), st.integers(0, 11))
def test_it_goes_on_from_json(steps: list[tuple[float, float]], at: int) -> None:
    one, other = LinkWatch(), LinkWatch()
    for number, (beside, compute) in enumerate(steps):
        if number == at:
            other = msgspec.json.decode(msgspec.json.encode(other), type=LinkWatch)
        assert one.observe(BATCHES, compute, compute + beside) == other.observe(BATCHES, compute, compute + beside)
