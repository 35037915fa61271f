"""The counted seconds of each step, from the record of a run."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.profiles import get_profile
from csd_lab.clocks.step_series import StepSeries, series_of_run
from firmware_agent.common.errors import EnvironmentUnfit
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import DeviceStep, RoundRecord, StepRecord
from tests.support.records import device_round, round_record

PROFILES = {"csd-00": "newport", "csd-01": "generic-a53"}
ENCODE_SECONDS = 0.003


def counted_round(sizes: dict[str, list[int]], weight: int = 0) -> RoundRecord:
    """A round of steps of these sizes, each of a millisecond per record and the encoding, on drives of two profiles."""

    def seconds(size: int) -> PhaseSeconds:
        return PhaseSeconds(forward=0.0004 * size, backward=0.0006 * size, encode=ENCODE_SECONDS)

    def step_of(device: str, number: int) -> DeviceStep:
        compute = get_profile(PROFILES[device]).device_seconds(seconds(sizes[device][number])).total
        return DeviceStep(device=device, batch_size=sizes[device][number], compute_seconds=compute)

    parts = []
    for device, each in sizes.items():
        whole = PhaseSeconds(
            *(sum(getattr(seconds(n), phase) for n in each) for phase in PhaseSeconds.__struct_fields__)
        )
        device_seconds = get_profile(PROFILES[device]).device_seconds(whole)
        parts.append(device_round(device, sum(each), device_seconds, stopwatch_seconds=whole, steps=len(each)))
    steps = [
        StepRecord(
            step=number + 1,
            loss=1.0,
            learning_rate=0.1,
            array_seconds=1.0,
            devices=[step_of(device, number) for device in sizes],
            disturbed={"csd-00": weight} if weight else {},
        )
        for number in range(len(next(iter(sizes.values()))))
    ]
    return round_record(parts, steps=steps)


@given(sizes=st.lists(st.integers(1, 64), min_size=1, max_size=5))
def test_seconds_of_all_profiles_are_those_of_a_virtual_machine(sizes: list[int]) -> None:
    series = series_of_run([counted_round({"csd-00": sizes, "csd-01": sizes})], PROFILES)
    assert [[part.device for part in parts] for parts in series.passes] == [list(PROFILES)] * len(sizes)
    for parts, size in zip(series.passes, sizes, strict=True):
        for part in parts:
            assert part.steps[0].records == size
            assert part.seconds == pytest.approx(0.001 * size + ENCODE_SECONDS, rel=1e-6)
    assert series.round_passes == [len(sizes)]
    assert series.device_seconds() == pytest.approx(
        dict.fromkeys(PROFILES, 0.001 * sum(sizes) + ENCODE_SECONDS * len(sizes))
    )


def test_rounds_of_other_sizes_do_not_change_what_a_step_takes() -> None:
    """On the core's model small batches have another scale than large ones, and a round has one for all of them."""
    mixed, plain = counted_round({"csd-00": [8, 1, 1]}), counted_round({"csd-00": [8, 8, 8]})
    (part,) = mixed.devices
    counted = part.stopwatch_seconds
    mixed = msgspec.structs.replace(
        mixed,
        devices=[
            msgspec.structs.replace(
                part, stopwatch_seconds=msgspec.structs.replace(counted, forward=2 * counted.forward)
            )
        ],
    )
    series = series_of_run([mixed, plain, mixed], ["csd-00"])
    of_eight = [part.seconds for parts in series.passes for part in parts if part.steps[0].records == 8]
    assert of_eight == pytest.approx([0.001 * 8 + ENCODE_SECONDS] * 5)


def test_a_competing_task_is_of_the_drive_that_has_it() -> None:
    series = series_of_run([counted_round({"csd-00": [8], "csd-01": [8]}, weight=100)], PROFILES)
    assert [part.steps[0].weight for part in series.passes[0]] == [100, 0]


def test_drives_whose_seconds_were_not_counted_are_left_out() -> None:
    rounds = [counted_round({"csd-00": [8, 4], "csd-01": [8, 4]})]
    assert series_of_run(rounds, ["csd-01"]).devices == ["csd-01"]
    with pytest.raises(EnvironmentUnfit, match="no synchronous steps"):
        series_of_run(rounds, ["host"])


def test_a_series_is_read_as_it_was_written() -> None:
    series = series_of_run([counted_round({"csd-00": [8, 4], "csd-01": [8, 4]})], PROFILES)
    assert msgspec.json.decode(msgspec.json.encode(series), type=StepSeries) == series
