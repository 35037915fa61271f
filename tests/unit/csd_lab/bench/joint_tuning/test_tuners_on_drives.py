"""All tuners on drives: cases, the world that is simulated beside them, and figures."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_lab.bench.joint_tuning.bench_tuners_on_drives import DisturbedWorld, DrivesResult, draw_case, drives_figures
from host.config.job_file import JobConfig
from host.config.sync_section import DisturbSection
from host.monitoring.decision_text import Knob


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(0, 11))
def test_a_case_is_a_job_with_all_tuners_in_which_a_drive_is_slowed_for_a_while(seed: int, number: int) -> None:
    case = draw_case(seed, number)
    assert case == draw_case(seed, number)
    job, devices = JobConfig.model_validate(case.job), [device.name for device in case.array.list_devices()]
    assert (job.tuner, job.communication.schedule, job.placement) == ("hypertune", "autobyte", "auto")
    assert job.planner is not None
    assert 4 <= len(devices) <= 6
    (disturbed,) = job.disturb
    assert disturbed.device in devices
    assert 33 <= disturbed.weight <= 300


def test_the_simulated_drive_is_slowed_in_the_steps_in_which_the_real_one_is() -> None:
    world = DisturbedWorld([DisturbSection(device="a", at_step=3, steps=2, weight=50)])
    seen = []
    for step in range(1, 7):
        assert world.noise(step) == 1.0
        seen.append((world.slowness("a", 0.0, 1), world.slowness("b", 0.0, 1)))
    assert seen == [(1, 1), (1, 1), (1.5, 1), (1.5, 1), (1, 1), (1, 1)]


def test_figures_hold_each_kind_of_drives_against_the_one_before() -> None:
    same: dict[Knob, str] = {"batches": "8", "slices": "s"}
    other: dict[Knob, str] = {"batches": "9", "slices": "s"}
    results = [
        DrivesResult(
            "a",
            {"simulated": 10, "modelled": 11, "sampled": 12.1},
            dict.fromkeys(("simulated", "modelled"), same) | {"sampled": other},
            {},
        ),
        DrivesResult("b", {"simulated": 10, "modelled": 10}, {"simulated": same, "modelled": same}, {}),
    ]
    figures = drives_figures(results)
    assert figures["native_error_worst"] == pytest.approx(0.1)
    assert figures["native_error_median"] == pytest.approx(0.05)
    assert figures["native_last_step_equal"] == 1
    assert figures["virtual_error_worst"] == pytest.approx(0.1)
    assert figures["virtual_last_step_equal"] == 0.5
    assert "virtual_error_worst" not in drives_figures(results[1:])
