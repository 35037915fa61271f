from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.fast_power import PowerFigures
from csd_emu.perfmodel.fast_timeline import ArrayStep, DriveFigures, DriveWork, StepComposer
from csd_emu.perfmodel.host_node import host_activity, reduce_seconds, storage_of
from csd_emu.perfmodel.power import add_up, device_energy
from csd_emu.perfmodel.timeline import Activity, Link, compose
from csd_emu.profiles import PROFILES
from firmware_agent.common.errors import ConfigurationError

DRIVES = [profile for profile in PROFILES.values() if profile.kind == "drive"]
sizes = st.integers(0, 10**9) | st.just(0) | st.just(14_000_000)
seconds = st.floats(0, 100) | st.just(0.0)
rates = st.floats(1e6, 1e10)
latencies = st.floats(0, 1e-2)
links = st.builds(Link, rates, latencies, st.booleans())
activities = st.builds(
    Activity,
    device=st.just("csd"),
    receive_bytes=sizes,
    read_bytes=sizes,
    read_operations=st.integers(0, 1000),
    phases=st.fixed_dictionaries({"forward": seconds, "encode": seconds}),
    send_bytes=sizes,
    flash_bytes_per_second=rates,
    flash_latency_seconds=latencies,
    link_bytes_per_second=rates,
    link_latency_seconds=latencies,
)
arrays = st.lists(activities, min_size=1, max_size=12).map(
    lambda parts: [replace(part, device=f"csd-{number:02d}") for number, part in enumerate(parts)]
)


def column(array: list[Activity], name: str) -> np.ndarray:
    return np.array([float(getattr(part, name)) for part in array])


def figures_of(array: list[Activity]) -> DriveFigures:
    return DriveFigures(*(column(array, name) for name in DriveFigures.__dataclass_fields__))


def work_of(array: list[Activity]) -> DriveWork:
    return DriveWork(*(column(array, name) for name in DriveWork.__dataclass_fields__))


def fast(array: list[Activity], link: Link, host: float = 0.0, after: float = 0.0) -> ArrayStep:
    return StepComposer(figures_of(array), link).compose(work_of(array), host, after)


@given(array=arrays, link=links, own=seconds, after=seconds)
def test_it_composes_what_the_timeline_composes(array: list[Activity], link: Link, own: float, after: float) -> None:
    host = Activity("host", 0, 0, 0, {"forward": own}, 0, 1.0, 0.0, 1.0, 0.0)
    want, step = compose([*array, host], link, after), fast(array, link, host.work_seconds, after)
    assert step.seconds == pytest.approx(want.seconds, rel=1e-12)
    names = [part.device for part in array]
    assert step.finish_seconds == pytest.approx([want.finish_seconds[name] for name in names], rel=1e-12)
    assert step.exposed_seconds == pytest.approx([want.exposed_seconds[name] for name in names], rel=1e-9, abs=1e-9)


@given(array=arrays, size=st.integers(1, 10**9), link=links)
def test_gradients_of_one_size_end_as_the_timeline_says(array: list[Activity], size: int, link: Link) -> None:
    equal = [replace(part, receive_bytes=size, send_bytes=size) for part in array]
    want, step = compose(equal, link), fast(equal, link)
    assert step.seconds == pytest.approx(want.seconds, rel=1e-12)
    assert step.seconds == pytest.approx(float(step.finish_seconds.max()), rel=1e-12)


@given(first=arrays, factors=st.lists(st.floats(0.5, 2) | st.just(1.0), min_size=1, max_size=4), link=links)
def test_a_composer_that_has_composed_before_gives_what_a_new_one_gives(
    first: list[Activity], factors: list[float], link: Link
) -> None:
    composer = StepComposer(figures_of(first), link)
    for factor in factors:
        array = [replace(part, phases={"forward": part.compute_seconds * factor}) for part in first]
        assert composer.compose(work_of(array)).seconds == fast(array, link).seconds
        receive = [replace(part, receive_bytes=round(part.receive_bytes * factor)) for part in array]
        assert composer.compose(work_of(receive)).seconds == fast(receive, link).seconds


def test_the_same_inputs_are_not_composed_again() -> None:
    array = [Activity("a", 9, 9, 1, {"forward": 1.0}, 9, 1e9, 0.0, 1e9, 0.0)]
    composer = StepComposer(figures_of(array), Link(1e9, 0.0))
    step = composer.compose(work_of(array), 0.5, 0.25)
    assert composer.compose(work_of(array), 0.5, 0.25) is step
    assert composer.compose(work_of(array), 3.5, 0.25).seconds == pytest.approx(3.75)


@given(data=st.data(), elapsed=st.floats(0, 1e4))
def test_its_energy_is_what_the_power_model_says_of_the_composed_spans(data: st.DataObject, elapsed: float) -> None:
    profiles = data.draw(st.lists(st.sampled_from(DRIVES), min_size=1, max_size=6))
    array = [
        replace(data.draw(activities), device=f"csd-{n}", read_bytes=n + 1, read_operations=1)
        for n in range(len(profiles))
    ]
    spans = compose(array, Link(1e9, 1e-4)).spans
    joules = PowerFigures.of(profiles).energy(
        elapsed,
        np.array([part.phases["forward"] for part in array]),
        np.array([part.phases["encode"] for part in array]),
        column(array, "read_bytes"),
        column(array, "receive_bytes") + column(array, "send_bytes"),
    )
    for number, (profile, part) in enumerate(zip(profiles, array, strict=True)):
        did = add_up(profile, [span for span in spans if span.device == part.device])
        want = device_energy(
            profile.power, elapsed, did.busy_core_seconds, did.busy_seconds, did.read_bytes, did.link_bytes
        )
        assert {name: values[number] for name, values in joules.items()} == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_numbers_that_no_drive_has_are_refused(subtests: pytest.Subtests) -> None:
    for name in sorted(DriveWork.__dataclass_fields__):
        for wrong in [-1.0, float("nan"), float("inf")]:
            with subtests.test(wrong=wrong, name=name):
                array = [
                    Activity("a", 9, 9, 1, {}, 9, 1e9, 0.0, 1e9, 0.0),
                    Activity("b", 9, 9, 1, {}, 9, 1e9, 0.0, 1e9, 0.0),
                ]
                work = replace(work_of(array), **{name: np.array([1.0, wrong])})
                with pytest.raises(ConfigurationError, match=f"{name}: has a value that is negative or not finite"):
                    StepComposer(figures_of(array), Link(1.0, 0.0)).compose(work)
                with pytest.raises(ConfigurationError, match="the host: seconds are"):
                    StepComposer(figures_of(array), Link(1.0, 0.0)).compose(work_of(array), wrong)
                with pytest.raises(ConfigurationError, match=r"\(3,\) values for \(2,\) drives"):
                    StepComposer(figures_of(array), Link(1.0, 0.0)).compose(
                        replace(work_of(array), **{name: np.ones(3)})
                    )


def test_the_hosts_part_reads_from_all_drives_and_sums_what_memory_allows() -> None:
    storage = storage_of(PROFILES["xeon-4108"], [PROFILES["newport"]] * 2)
    part = host_activity(100, 1000, {"forward": 2.0}, storage)
    assert (part.device, part.read_bytes, part.receive_bytes, part.send_bytes) == ("host", 100_000, 0, 0)
    assert part.read_seconds == pytest.approx(100_000 / (2 * 3.938e9) + 40e-6)
    assert compose([part], Link(1e9, 0.0)).seconds == 2.0
    assert reduce_seconds(1000, 4) == pytest.approx(17_000 / 19.2e9)


def test_no_drives_take_no_time() -> None:
    assert fast([], Link(1.0, 1.0), 2.0, 1.0).seconds == 3.0
