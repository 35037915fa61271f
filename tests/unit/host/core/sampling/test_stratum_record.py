"""The strata of a run as its records and its report list them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.sampling.sampled_steps import SampledSteps
from host.core.sampling.sampling_record import SamplingRecord, add_sampling
from host.core.sampling.strata import ENCODE, STEADY, Stratum, StratumSamples
from host.core.sampling.stratum_record import MOST_STRATA, StratumRecord, list_strata

STRATA = st.builds(
    Stratum,
    records=st.integers(0, 64),
    micro_batch=st.integers(0, 64),
    weight=st.sampled_from([0, 100]),
    stage=st.sampled_from([STEADY, ENCODE, "first"]),
    level=st.integers(0, 2),
)


def samples_of(seconds: list[float]) -> StratumSamples:
    samples = StratumSamples()
    for each in seconds:
        samples.add(PhaseSeconds(forward=each))
    return samples


def stratum_of(record: StratumRecord) -> Stratum:
    return Stratum(record.records, record.micro_batch, record.weight, record.stage, record.level)


@given(
    st.dictionaries(STRATA, st.lists(st.floats(1e-3, 10), max_size=4), max_size=30),
    st.dictionaries(STRATA, st.integers(1, 10**6), max_size=30),
)
def test_strata_with_most_seconds_come_first_and_few_are_listed(
    counted: dict[Stratum, list[float]], steps: dict[Stratum, int]
) -> None:
    samples = {stratum: samples_of(seconds) for stratum, seconds in counted.items()}
    listed = list_strata(samples, steps)
    known = {stratum for stratum, seconds in counted.items() if seconds} | set(steps)
    assert len({stratum_of(each) for each in listed}) == len(listed) == min(len(known), MOST_STRATA)

    def seconds_of(stratum: Stratum) -> float:
        of = samples.get(stratum, StratumSamples())
        return (of.count + steps.get(stratum, 0)) * of.mean.total

    in_order = [seconds_of(stratum_of(each)) for each in listed]
    assert in_order == sorted(in_order, reverse=True)
    left_out = known - {stratum_of(each) for each in listed}
    assert max(map(seconds_of, left_out), default=0.0) <= min(in_order, default=0.0)


def test_what_is_not_known_of_a_stratum_is_not_invented() -> None:
    strata = [Stratum(8, 8, 0, STEADY, level) for level in range(4)]
    samples = {strata[0]: samples_of([1.0, 3.0]), strata[1]: samples_of([4.0]), strata[3]: StratumSamples()}
    both, one, none = list_strata(samples, {strata[0]: 10, strata[2]: 5})
    assert (both.counted_steps, both.steps, both.mean_seconds) == (2, 10, 2.0)
    assert both.scatter == pytest.approx(2**0.5 / 2)
    assert (one.counted_steps, one.steps, one.mean_seconds, one.scatter) == (1, 0, 4.0, None)
    assert (none.counted_steps, none.steps, none.mean_seconds, none.scatter) == (0, 5, None, None)


def test_a_record_has_all_steps_since_the_run_began() -> None:
    sampled, taken = SampledSteps(), Counter[Stratum]()
    for step in range(1, 30):
        begun = {device: sampled.begin_step(device, 8, 8, 0) for device in ("csd-00", "csd-01")}
        counted = sampled.choose(step, begun)
        for device in counted:
            sampled.count(device, begun[device], PhaseSeconds(forward=1.0))
        for device, stratum in begun.items():
            own = PhaseSeconds(forward=1.0) if device in counted else None
            assert sampled.take(device, [stratum], own) is not None
            taken.update([] if own else [stratum])
        if step == 12:
            first = sampled.record()
    last = sampled.record()
    assert {stratum_of(each): each.steps for each in last.strata if each.steps} == taken
    assert sum(each.counted_steps for each in last.strata) == first.counted_steps + last.counted_steps
    assert add_sampling([(first, 1.0), (None, 1.0), (last, 2.0)]).strata == last.strata  # type: ignore[union-attr]


def test_a_record_of_before_has_no_strata() -> None:
    assert SamplingRecord(counted_steps=1, steps=2, error=0.1, start_share=0.0).strata == []
