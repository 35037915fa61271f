"""Which decisions two runs have alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from csd_lab.clocks.decisions import Decision, decisions_of_both, equal_decisions


def decision(step: int = 1, what: str = "retune", choice: str = "", **batches: int) -> Decision:
    return Decision(step=step, what=what, batches=batches, choice=choice)


DECISIONS = st.lists(
    st.builds(decision, st.integers(1, 3), st.sampled_from(["retune", "plan"]), a=st.integers(1, 200)), max_size=6
)


@given(DECISIONS)
def test_a_run_decides_as_itself(decisions: list[Decision]) -> None:
    assert equal_decisions(decisions, decisions) == (len(decisions), len(decisions))


@given(DECISIONS, DECISIONS)
def test_each_decision_of_either_run_counts_once(one: list[Decision], other: list[Decision]) -> None:
    equal, whole = equal_decisions(one, other)
    assert whole == len(one) + len(other) - equal
    assert equal <= min(len(one), len(other))


def test_sizes_may_differ_by_a_record_or_two_in_a_hundred() -> None:
    assert decision(a=3, b=100).equals(decision(a=4, b=102))
    assert not decision(a=3).equals(decision(a=5))
    assert not decision(a=100).equals(decision(a=103))


def test_step_devices_and_choice_must_be_the_same() -> None:
    assert not decision(step=1, a=8).equals(decision(step=2, a=8))
    assert not decision(a=8).equals(decision(b=8))
    assert not decision(a=8).equals(decision(a=8, b=8))
    assert not decision(what="plan", choice="2 newport").equals(decision(what="plan", choice="1 newport"))


@given(DECISIONS, DECISIONS)
def test_what_both_have_is_of_each(one: list[Decision], other: list[Decision]) -> None:
    alike = decisions_of_both(one, other)
    assert len(alike) == equal_decisions(one, other)[0]
    assert decisions_of_both(alike, one) == alike
    assert not [each for each in alike if not any(each.equals(theirs) for theirs in other)]


def test_a_decision_is_matched_once() -> None:
    one = [decision(step=1, a=8), decision(step=1, a=8), decision(step=2, a=8)]
    assert decisions_of_both(one, [decision(step=1, a=8)]) == one[:1]
