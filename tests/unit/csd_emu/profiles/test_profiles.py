import dataclasses
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from csd_emu.config.array_file import DeviceGroup
from csd_emu.cycles.parameters import CoreParameters
from csd_emu.profiles import PARALLEL_PHASES, PROFILES, Profile, Sourced, get_profile, profile_files, user_profiles
from csd_emu.profiles.core_sharing import phase_gain
from csd_emu.profiles.profile import REFERENCE_HERTZ, FigureBand
from csd_emu.profiles.profile_files import read_profile
from firmware_agent.clock import PHASES
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.frames.frame_fields import PhaseSeconds

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


@given(profile=profiles, asked=st.floats(0, 64), bandwidth=st.floats(1e8, 1e11))
def test_in_cycles_cores_gain_what_serial_work_and_dram_leave_them(
    profile: Profile, asked: float, bandwidth: float
) -> None:
    free = dataclasses.replace(profile, dram_bytes_per_second=None)
    bound = dataclasses.replace(profile, dram_bytes_per_second=Sourced(bandwidth, "assumed"))
    cores, clock = int(profile.cores.value), profile.clock_hertz.value
    for phase in PHASES:
        assert free.cycle_scale(phase, asked) == pytest.approx(
            profile.scale(phase) * profile.instructions_per_cycle.value
        )
        gain = REFERENCE_HERTZ / clock / bound.cycle_scale(phase, asked)
        assert gain == pytest.approx(phase_gain(phase, asked * clock / bandwidth, cores))
        assert bound.cycle_scale(phase, 0) <= bound.cycle_scale(phase, asked) * (1 + 1e-12)
        other = dataclasses.replace(bound, parallel_efficiency=Sourced(0.5, "assumed"))
        assert other.cycle_scale(phase, asked) == bound.cycle_scale(phase, asked)


@pytest.mark.parametrize(
    ("band", "message"),
    [
        ("{low: 2 GHz, high: 3 GHz, source: drawn}", "low, value and high must be in this order"),
        ("{low: 1 GHz, high: 0.5 GHz, source: drawn}", "low, value and high must be in this order"),
        ("{low: 1 W, high: 3 GHz, source: drawn}", "clock.band.low"),
        ("{low: 0 Hz, high: 3 GHz, source: drawn}", "clock.band.low: '0 Hz' is out of range"),
        ("{low: 1 GHz, high: 3 GHz}", "clock.band.source"),
        ("[1 GHz, 3 GHz]", "clock.band"),
    ],
)
def test_a_band_that_holds_not_its_value_is_refused(tmp_path: Path, band: str, message: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"base: newport\nclock: {{value: 1.2 GHz, source: drawn, band: {band}}}\n")
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        read_profile(tmp_path / "mine.yaml", "mine", tmp_path)


def test_a_band_is_inherited_with_its_figure_and_gone_with_another(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: newport\nclock: {value: 1.2 GHz, source: drawn}\n")
    mine, newport = read_profile(tmp_path / "mine.yaml", "mine", tmp_path), get_profile("newport")
    assert mine.clock_hertz.band is None
    assert mine.link_bytes_per_second.band == newport.link_bytes_per_second.band is not None
    low, high = newport.at("low"), newport.at("high")
    assert low.clock_hertz.value > high.clock_hertz.value  # the fewest seconds
    assert low.flash_latency_seconds.value < high.flash_latency_seconds.value
    assert low.power.core_watts.value < newport.power.core_watts.value < high.power.core_watts.value


def test_a_profile_needs_no_bandwidth_of_dram_and_gives_its_own_on(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: newport\ndram_bandwidth: {value: 3 GB/s, source: measured}\n")
    (tmp_path / "other.yaml").write_text("base: mine\n")
    assert read_profile(tmp_path / "other.yaml", "other", tmp_path).dram_bytes_per_second == Sourced(3e9, "measured")
    whole = (Path(profile_files.__file__).parent / "newport.yaml").read_text(encoding="utf-8")
    without = re.sub(r"dram_bandwidth:\n(  .*\n)+", "", whole)
    (tmp_path / "old.yaml").write_text(without)
    assert read_profile(tmp_path / "old.yaml", "old", tmp_path).dram_bytes_per_second is None


@given(clock=st.integers(100, 5000), bus=st.integers(50, 100_000), latency=st.none() | st.integers(1, 2000))
def test_a_core_has_the_clock_and_bus_of_its_profile_and_what_it_names(
    clock: int, bus: int, latency: int | None
) -> None:
    named = {} if latency is None else {"dram_nanoseconds": latency}
    profile = dataclasses.replace(
        FLAT,
        clock_hertz=Sourced(clock * 1e6, "drawn"),
        dram_bytes_per_second=Sourced(bus * 1e6, "drawn"),
        core={name: Sourced(value, "drawn") for name, value in named.items()},
    )
    assert profile.core_parameters == CoreParameters(clock_megahertz=clock, dram_megabytes_per_second=bus, **named)
    free = dataclasses.replace(profile, dram_bytes_per_second=None)
    assert free.core_parameters == CoreParameters(clock_megahertz=clock, **named)


def test_the_reference_core_is_the_core_of_its_profile_and_a_host_has_none() -> None:
    assert FLAT.core_parameters == CoreParameters()
    with pytest.raises(ConfigurationError, match="xeon-4108: is a host"):
        _ = get_profile("xeon-4108").core_parameters


def test_a_core_is_inherited_figure_by_figure(tmp_path: Path) -> None:
    write(tmp_path, "lab", {"base": "newport", "core": {"dram_nanoseconds": figure(144), "l2_kibibytes": figure(1024)}})
    write(tmp_path, "lab-2", {"base": "lab", "clock": figure("1.4 GHz"), "core": {"dram_nanoseconds": figure(90)}})
    lab, second = get_profile("lab", tmp_path), get_profile("lab-2", tmp_path)
    assert lab.core == {
        "dram_nanoseconds": Sourced(144, "our own meter"),
        "l2_kibibytes": Sourced(1024, "our own meter"),
    }
    parameters = CoreParameters(
        clock_megahertz=1400, dram_megabytes_per_second=6000, dram_nanoseconds=90, l2_kibibytes=1024
    )
    assert second.core_parameters == parameters
    shown = {entry.figure: (entry.value, entry.unit) for entry in second.entries()}
    assert (shown["core.dram_nanoseconds"], shown["core.l2_kibibytes"]) == ((90, "ns"), (1024, "KiB"))


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
    figures = profile.entries()
    assert len(figures) == (19 if profile.kind == "host" else 16) + len(profile.core) + len(profile.flash)
    for entry in figures:
        assert len(entry.source) > 12, entry.figure
        assert entry.value >= 0
        plain = "cores", "instructions", "parallel", "ratio", "flash."
        assert entry.unit or entry.figure.startswith(plain), entry.figure
    assert PROFILES[profile.name] is profile


def test_an_unknown_profile_is_named_with_those_there_are(tmp_path: Path) -> None:
    known = ", ".join(PROFILES)
    assert {"newport", "solana", "generic-a53", "rk3399-little", "xeon-4108"} <= set(PROFILES)
    with pytest.raises(ConfigurationError, match=f"'newprot' is not known; choose one of: {known}"):
        get_profile("newprot", tmp_path)


def write(folder: Path, name: str, content: dict[str, object] | str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


def figure(value: object, source: str = "our own meter") -> dict[str, object]:
    return {"value": value, "source": source}


def core_of(**figures: object) -> dict[str, object]:
    return {"base": "newport", "core": figures}


def test_a_flash_is_inherited_figure_by_figure_and_has_the_link_of_its_profile(tmp_path: Path) -> None:
    band = {"low": 1000, "high": 90_000, "source": "our own meter"}
    flash = {"read_ns": figure(60_000) | {"band": band}, "over_provisioning": figure(0.5)}
    write(tmp_path, "lab", {"base": "newport", "nvme_bandwidth": figure("2 GB/s"), "flash": flash})
    lab, newport = get_profile("lab", tmp_path), get_profile("newport")
    changed = {"read_ns": 60_000, "over_provisioning": 0.5, "link_bytes_per_second": 2_000_000_000}
    assert lab.flash_parameters == dataclasses.replace(newport.flash_parameters, **changed)
    assert lab.flash["read_ns"].band == FigureBand(1000, 90_000, "our own meter")
    shown = {entry.figure: (entry.value, entry.unit) for entry in lab.entries()}
    assert (shown["flash.read_ns"], shown["flash.page_bytes"]) == ((60_000, "ns"), (4096, "B"))
    # What the built-in drives read by themselves is what their flash model reads from its dies.
    for own in map(get_profile, ("newport", "solana", "generic-a53")):
        geometry = own.flash_parameters
        rate = geometry.dies * geometry.page_bytes / geometry.read_ns * 1e9
        assert rate == pytest.approx(own.flash_bytes_per_second.value)
        assert geometry.read_ns == own.flash_latency_seconds.value * 1e9


@pytest.mark.parametrize(
    ("flash", "message"),
    [
        ({"channels": figure(0)}, "flash: channels is 0; it must be a whole number from 1"),
        ({"read_ns": figure(0.5)}, "flash: read_ns is 0.5"),
        ({"over_provisioning": figure(0.001)}, "flash: over_provisioning is 0.001"),
        ({"channels": figure(40_000)}, "flash: the geometry has 320000 dies"),
        ({"read_ns": figure(5) | {"band": {"low": 6, "high": 9, "source": "drawn"}}}, "flash.read_ns.band: low, value"),
        ({"read_ns": {"value": 5}}, "flash.read_ns.source"),
        ({"link_bytes_per_second": figure(5)}, "flash.link_bytes_per_second"),
    ],
)
def test_a_flash_that_cannot_be_is_refused_with_its_file(
    tmp_path: Path, flash: dict[str, object], message: str
) -> None:
    write(tmp_path, "lab", {"base": "newport", "flash": flash})
    with pytest.raises(ConfigurationError, match=rf"lab\.yaml: {re.escape(message)}"):
        get_profile("lab", tmp_path)


def test_a_users_profile_overrides_single_figures_of_its_base(tmp_path: Path) -> None:
    write(tmp_path, "lab", {"base": "newport", "clock": figure("1.2 GHz"), "idle_power": figure("7500 mW")})
    write(tmp_path, "lab-2", {"base": "lab", "cores": figure(8)})
    lab, second = get_profile("lab", tmp_path), get_profile("lab-2", tmp_path)
    assert lab.clock_hertz == Sourced(1.2e9, "our own meter")
    assert lab.power.idle_watts.value == 7.5
    newport = get_profile("newport")
    same = dataclasses.replace(lab.power, idle_watts=newport.power.idle_watts)
    assert dataclasses.replace(lab, name="newport", clock_hertz=newport.clock_hertz, power=same) == newport
    assert (second.cores.value, second.clock_hertz) == (8, lab.clock_hertz)
    assert list(user_profiles(tmp_path)) == ["lab", "lab-2"]
    assert user_profiles(tmp_path / "absent") == {}


def test_a_bad_profile_file_is_named_with_its_key(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for content, words in [
        ({"base": "newport", "clock": figure(1.2e9)}, r"clock.value: 1200000000.0 is not a quantity"),
        ({"base": "newport", "clock": figure("1.2 W")}, r"clock.value: '1.2 W' has the unit 'W'"),
        ({"base": "newport", "clock": figure("0 GHz")}, r"clock.value: '0 GHz' is out of range"),
        ({"base": "newport", "cores": figure("four")}, r"cores.value: 'four' is not a number"),
        ({"base": "newport", "cores": figure(float("nan"))}, r"cores.value: nan is out of range"),
        ({"base": "newport", "parallel_efficiency": figure(1.5)}, r"parallel_efficiency.value: 1.5 is out of range"),
        ({"base": "newport", "clock": {"value": "1 GHz"}}, r"clock.source: is missing"),
        ({"base": "newport", "clock": figure("1 GHz", "   ")}, r"clock.source"),
        ({"base": "newport", "clocks": figure("1 GHz")}, r"clocks: unknown key; did you mean 'clock'"),
        ({"base": "newport", "chassis_power": figure("1 W")}, r"chassis_power: only a host has it"),
        ({"base": "newport", "kind": "host"}, r"kind: 'lab' cannot be a host, for its base 'newport' is a drive"),
        ({"base": "nothing"}, r"profile 'nothing' is not known"),
        ({"base": "../lab"}, r"profile '../lab' is not known"),
        ({"base": "lab"}, r"profiles lead in a circle: lab -> lab"),
        ({"cores": figure(4)}, r"clock: is missing; add it, or name a base"),
        ({"base": "xeon-4108", "ratio_low": figure(20)}, r"ratio_middle: must lie between"),
        ("- 1\n", r"must be a mapping"),
        (core_of(l1_data_kibibytes=figure(48)), r"core: l1_data_kibibytes: 48 is no core's; 4 to 64 .* powers of two"),
        (core_of(l2_kibibytes=figure(32)), r"core: l2_kibibytes: 32 is no core's; 64 to 4096 can be modelled"),
        (core_of(line_fills=figure(0)), r"core: line_fills: 0 is no core's; 1 to 8"),
        (core_of(dram_nanoseconds=figure("144 ns")), r"core.dram_nanoseconds.value: must be a whole number"),
        (core_of(dram_nanoseconds=figure(110.5)), r"core.dram_nanoseconds.value"),
        (core_of(dram_nanoseconds={"value": 144}), r"core.dram_nanoseconds.source: is missing"),
        (core_of(clock_megahertz=figure(1000)), r"core.clock_megahertz: unknown key"),
        (core_of(l2_cycles=figure(12) | {"band": {}}), r"core.l2_cycles.band: unknown key"),
        (core_of(l3_kibibytes=figure(64)), r"core.l3_kibibytes: unknown key; did you mean 'l2_kibibytes'"),
        (core_of() | {"core": 3}, r"core: must be a mapping"),
        (core_of(l2_cycles=figure(9)) | {"clock": figure("9 GHz")}, r"core: clock_megahertz: 9000 is no core's"),
        (core_of(l2_cycles=figure(9)) | {"base": "xeon-4108"}, r"core: only a drive has it"),
    ]:
        with subtests.test(content=content, words=words):
            path = write(tmp_path, "lab", content)
            with pytest.raises(ConfigurationError, match=words) as caught:
                get_profile("lab", tmp_path)
            assert str(path) in str(caught.value) or "not known" in words


def test_a_built_in_profile_is_never_hidden_by_a_file(tmp_path: Path) -> None:
    write(tmp_path, "newport", {"base": "solana"})
    assert get_profile("newport", tmp_path) is PROFILES["newport"]
    with pytest.raises(ConfigurationError, match="'newport' is a built-in profile; choose another name"):
        user_profiles(tmp_path)


def test_a_hosts_speed_is_the_middle_of_its_ratio_to_a_newport() -> None:
    host, newport = get_profile("xeon-4108"), get_profile("newport")
    assert host.ratio is not None
    assert newport.scale("forward") / host.scale("forward") == pytest.approx(host.ratio.middle.value, rel=0.01)
    assert newport.ratio is None
    assert newport.chassis_watts is None


def test_a_host_is_no_drive_of_an_array() -> None:
    with pytest.raises(ValidationError, match="profile 'xeon-4108' is a host, not a drive; choose one of: newport"):
        DeviceGroup(profile="xeon-4108")
