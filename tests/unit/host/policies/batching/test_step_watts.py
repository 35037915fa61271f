"""Records per joule: what the watts of an array make of the rate."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.profiles import get_profile
from host.config.sync_section import TuningSection
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.allocation import Allocator
from host.policies.batching.make import make_rules
from host.policies.batching.step_watts import StepWatts
from tests.support.examples import examples

TABLES = [
    SpeedTable("drive", 0.8 + 0.2 * np.arange(1.0, 33.0)),
    SpeedTable("drive", 0.5 + 0.3 * np.arange(1.0, 33.0)),
    SpeedTable("host", 1.0 + 0.02 * np.arange(1.0, 257.0)),
]
CAPS = np.array([32, 32, 256])
SLOW = st.lists(st.floats(0.5, 8), min_size=3, max_size=3).map(np.array)
COMPUTING = st.lists(st.floats(0, 200), min_size=3, max_size=3).map(np.array)


@given(SLOW, st.floats(0, 5), st.floats(0.1, 200))
@settings(max_examples=examples(50), deadline=None)
def test_where_computing_draws_nothing_more_both_objectives_agree(
    slow: np.ndarray, sync: float, waiting: float
) -> None:
    fast, saving = Allocator(TABLES, sync), Allocator(TABLES, sync, StepWatts(waiting, np.zeros(3)))
    target = fast.best_target(slow, CAPS)
    batches = fast.fill(target, slow, CAPS)
    found = saving.fill(saving.best_target(slow, CAPS), slow, CAPS)
    assert saving.rate(batches, slow) * waiting == pytest.approx(fast.rate(batches, slow))
    assert saving.rate(found, slow) == pytest.approx(saving.rate(batches, slow))


@given(SLOW, st.floats(0, 5), st.floats(0.0, 200), COMPUTING)
@settings(max_examples=examples(50), deadline=None)
def test_the_target_that_saves_never_costs_more_joules_per_record_than_the_fastest(
    slow: np.ndarray, sync: float, waiting: float, computing: np.ndarray
) -> None:
    fast = Allocator(TABLES, sync)
    saving = Allocator(TABLES, sync, StepWatts(waiting + 0.01, computing))
    quick, sparing = (each.fill(each.best_target(slow, CAPS), slow, CAPS) for each in (fast, saving))
    assert saving.rate(sparing, slow) >= saving.rate(quick, slow) * (1 - 1e-6)
    assert fast.rate(sparing, slow) <= fast.rate(quick, slow) * (1 + 1e-6)


def test_joules_are_of_all_that_waits_and_of_who_computes() -> None:
    saving = Allocator(TABLES, 2.0, StepWatts(10.0, np.array([1.0, 2.0, 5.0])))
    seconds = np.array([TABLES[0].seconds(4), TABLES[1].seconds(2), TABLES[2].seconds(50)])
    joules = 10.0 * (seconds.max() + 2.0) + 1.0 * seconds[0] + 2.0 * seconds[1] + 5.0 * seconds[2]
    assert saving.rate(np.array([4, 2, 50]), np.ones(3)) == pytest.approx(56 / joules)


def test_watts_are_the_profiles_and_a_host_that_does_not_train_waits_too() -> None:
    drive, host = get_profile("newport"), get_profile("xeon-4108")
    watts = StepWatts.of([drive, drive], [drive, drive, host])
    assert host.chassis_watts is not None
    idle = 2 * drive.power.idle_watts.value + host.power.idle_watts.value + host.chassis_watts.value
    assert watts.waiting == pytest.approx(idle)
    busy = drive.cores.value * drive.power.core_watts.value + drive.power.dram_watts.value
    assert watts.computing.tolist() == pytest.approx([busy, busy])


def test_only_the_objective_energy_takes_the_watts() -> None:
    watts = StepWatts(1.0, np.ones(2))
    assert make_rules(TuningSection(), watts).watts is None
    assert make_rules(TuningSection(objective="energy"), watts).watts is watts
