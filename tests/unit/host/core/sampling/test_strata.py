"""Counted steps of a stratum: whatever a machine says of them is judged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.sampling.strata import STEADY, Stratum, StratumSamples, find_level, fits

SECONDS = st.sampled_from([0.0, 1e-12, 1e-9, 1e-3, 1.0, 1e6]) | st.floats(0, 1e6)


@given(st.lists(st.lists(SECONDS, min_size=2, max_size=6), min_size=2, max_size=4), SECONDS, st.floats(0, 1e3))
def test_a_step_of_any_length_is_of_a_level_that_is_known_or_opens_one(
    levels: list[list[float]], seconds: float, deviation: float
) -> None:
    """Of no seconds, too: copying out few weights may take none that a clock can tell."""
    samples = {Stratum(8, 8, 0, STEADY, level): StratumSamples() for level in range(len(levels))}
    for (_, known), steps in zip(samples.items(), levels, strict=True):
        for each in steps:
            known.add(PhaseSeconds(forward=each))
    step, first = PhaseSeconds(forward=seconds), next(iter(samples))
    if not fits(samples, first, step, deviation):
        assert 1 <= find_level(samples, first, [step], deviation) <= len(levels)
