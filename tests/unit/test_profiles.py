import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.profiles import PARALLEL_PHASES, PROFILES, Profile, Sourced, get_profile
from firmware_agent.clock import PHASES
from firmware_agent.errors import ConfigurationError
from firmware_agent.wire import PhaseSeconds

FLAT = get_profile("generic-a53")
profiles = st.builds(
    lambda cores, clock, ipc, share: dataclasses.replace(
        FLAT,
        cores=Sourced(cores, "assumed"),
        clock_hertz=Sourced(clock, "assumed"),
        instructions_per_cycle=Sourced(ipc, "assumed"),
        parallel_efficiency=Sourced(share, "assumed"),
    ),
    st.integers(1, 64),
    st.floats(1e8, 1e10),
    st.floats(0.1, 8),
    st.floats(0, 1),
)
seconds = st.builds(PhaseSeconds, **{phase: st.floats(0, 1e4) for phase in PHASES})


@given(profile=profiles, factor=st.floats(1.1, 10))
def test_a_faster_clock_scales_every_phase_alike(profile: Profile, factor: float) -> None:
    faster = dataclasses.replace(profile, clock_hertz=Sourced(profile.clock_hertz.value * factor, "assumed"))
    for phase in PHASES:
        assert faster.scale(phase) == pytest.approx(profile.scale(phase) / factor)


@given(profile=profiles)
def test_cores_speed_up_parallel_phases_alone_by_at_most_their_number(profile: Profile) -> None:
    one = dataclasses.replace(profile, cores=Sourced(1, "assumed"))
    for phase in PHASES:
        gain = one.scale(phase) / profile.scale(phase)
        assert gain * (1 + 1e-12) >= 1
        assert gain <= profile.cores.value * (1 + 1e-12)
        if phase not in PARALLEL_PHASES:
            assert gain == 1


@given(profile=profiles, counted=seconds)
def test_device_seconds_are_the_counted_ones_times_each_phases_scale(profile: Profile, counted: PhaseSeconds) -> None:
    scaled = profile.device_seconds(counted)
    for phase in PHASES:
        assert getattr(scaled, phase) == getattr(counted, phase) * profile.scale(phase)


def test_the_reference_core_is_its_own_scale() -> None:
    counted = PhaseSeconds(1.0, 2.0, 3.0, 4.0)
    assert get_profile("generic-a53").device_seconds(counted) == counted


def test_newport_is_four_cores_of_a_gigahertz() -> None:
    newport = get_profile("newport")
    assert newport.scale("forward") == pytest.approx(1 / 3.4)
    assert newport.scale("encode") == 1


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_figure_of_every_profile_has_a_unit_and_a_source(profile: Profile) -> None:
    figures = profile.sources()
    assert len(figures) == (19 if profile.kind == "host" else 15)
    for name, (value, unit, source) in figures.items():
        assert len(source) > 12, name
        assert value >= 0
        assert unit or name.startswith(("cores", "instructions", "parallel", "ratio")), name
    assert PROFILES[profile.name] is profile


def test_an_unknown_profile_is_named_with_those_there_are(tmp_path: Path) -> None:
    known = "newport, solana, generic-a53, xeon-4108"
    with pytest.raises(ConfigurationError, match=f"'newprot' is not known; choose one of: {known}"):
        get_profile("newprot", tmp_path)
