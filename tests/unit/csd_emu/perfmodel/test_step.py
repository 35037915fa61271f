from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.host_node import host_activity, reduce_seconds, storage_of
from csd_emu.perfmodel.power import PowerFigures, add_up, device_energy
from csd_emu.perfmodel.step import DeviceWork, DriveFigures, StepTimes, finish_seconds, time_step
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


def work_of(array: list[Activity]) -> DeviceWork:
    return DeviceWork(*(column(array, name) for name in DeviceWork.__dataclass_fields__))


def timed(array: list[Activity], link: Link, begin: float = 0.0) -> StepTimes:
    return time_step(work_of(array), figures_of(array), link, begin)


@given(array=arrays, link=links, begin=seconds)
def test_the_closed_form_ends_when_the_last_of_the_events_does(array: list[Activity], link: Link, begin: float) -> None:
    times = timed(array, link, begin)
    finish = finish_seconds(work_of(array), times, figures_of(array), link)
    assert float(times.end_seconds) == pytest.approx(finish.max(), rel=1e-12)
    want = compose(array, link, 0.0, begin)
    assert float(times.end_seconds) == pytest.approx(want.seconds, rel=1e-12)
    assert finish.tolist() == [want.finish_seconds[part.device] for part in array]


@given(array=arrays, size=st.integers(1, 10**9), link=links)
def test_gradients_of_one_size_end_as_the_timeline_says(array: list[Activity], size: int, link: Link) -> None:
    equal = [replace(part, receive_bytes=size, send_bytes=size) for part in array]
    assert float(timed(equal, link).end_seconds) == pytest.approx(compose(equal, link).seconds, rel=1e-12)


@given(table=st.lists(arrays, min_size=1, max_size=4), link=links, begins=st.lists(seconds, min_size=4, max_size=4))
def test_many_steps_at_once_are_each_what_it_is_alone(
    table: list[list[Activity]], link: Link, begins: list[float]
) -> None:
    width = min(map(len, table))
    figures = figures_of(table[0][:width])
    works = [work_of(array[:width]) for array in table]
    together = DeviceWork(*(np.stack([getattr(work, name) for work in works]) for name in vars(works[0])))
    times = time_step(together, figures, link, np.array(begins[: len(works)])[:, None])
    for row, (work, begin) in enumerate(zip(works, begins, strict=False)):
        alone = time_step(work, figures, link, begin)
        for name, values in vars(alone).items():
            assert getattr(times, name)[row] == pytest.approx(values, rel=1e-12), name


@given(data=st.data(), elapsed=st.floats(0, 1e4))
def test_its_energy_is_what_the_power_model_says_of_the_composed_spans(data: st.DataObject, elapsed: float) -> None:
    profiles = data.draw(st.lists(st.sampled_from(DRIVES), min_size=1, max_size=6))
    array = [
        replace(data.draw(activities), device=f"csd-{n}", read_bytes=n + 1, read_operations=1)
        for n in range(len(profiles))
    ]
    spans = compose(array, Link(1e9, 1e-4)).spans
    power, encode = PowerFigures.of(profiles), np.array([part.phases["encode"] for part in array])
    compute = np.array([part.compute_seconds for part in array])
    joules = power.energy(
        elapsed,
        power.busy_core_seconds(compute, encode),
        compute,
        column(array, "read_bytes"),
        column(array, "receive_bytes") + column(array, "send_bytes"),
    )
    for number, (profile, part) in enumerate(zip(profiles, array, strict=True)):
        did = add_up(profile, [span for span in spans if span.device == part.device])
        want = device_energy(
            profile.power, elapsed, did.busy_core_seconds, did.busy_seconds, did.read_bytes, did.link_bytes
        )
        assert {name: values[number] for name, values in joules.items()} == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_numbers_that_no_device_has_are_refused(subtests: pytest.Subtests) -> None:
    right = DeviceWork(np.ones(2), np.ones(2), np.ones(2))
    for name in sorted(DeviceWork.__dataclass_fields__):
        for wrong in [-1.0, float("nan"), float("inf")]:
            with (
                subtests.test(wrong=wrong, name=name),
                pytest.raises(ConfigurationError, match=f"{name}: has a value that is negative or not finite"),
            ):
                replace(right, **{name: np.array([1.0, wrong])})


def test_the_hosts_part_reads_from_all_drives_and_sums_what_memory_allows() -> None:
    storage = storage_of(PROFILES["xeon-4108"], [PROFILES["newport"]] * 2)
    part = host_activity(100, 1000, {"forward": 2.0}, storage)
    assert (part.device, part.read_bytes, part.receive_bytes, part.send_bytes) == ("host", 100_000, 0, 0)
    assert part.read_seconds == pytest.approx(100_000 / (2 * 3.938e9) + 40e-6)
    assert compose([part], Link(1e9, 0.0)).seconds == 2.0
    assert reduce_seconds(1000, 4) == pytest.approx(17_000 / 19.2e9)


def test_no_drives_take_no_time() -> None:
    assert timed([], Link(1.0, 1.0)).end_seconds == 0.0
