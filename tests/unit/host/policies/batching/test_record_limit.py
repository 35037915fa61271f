"""Batches that a tuner asks for, and the room that the host's part of a model has."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.core.tuning.batch_tuner import Floats, Retune
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.fixed import FixedBatches
from host.policies.batching.record_limit import LimitedTuner, limit

TABLES = [SpeedTable("quick", 0.1 + np.arange(1, 101) / 100.0), SpeedTable("slow", 0.2 + np.arange(1, 101) / 25.0)]


class Raising(FixedBatches):
    """Asks for the batches of its script, step by step, and keeps what it is told."""

    def __init__(self, *script: tuple[int, int]) -> None:
        super().__init__((8, 2), TABLES)
        self.script, self.told = list(script), list[Floats]()

    def observe(self, step: int, compute_seconds: Floats, steps_left: int | None = None) -> Retune | None:
        self.told.append(compute_seconds)
        return self.retune(np.array(self.script.pop(0)), "more") if self.script else None


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 5000))
def test_batches_are_limited_in_proportion_and_nobody_is_parked_for_it(each: list[int], most: int) -> None:
    batches = np.array(each)
    given = limit(batches, most)
    assert given.sum() <= most
    assert (given <= batches).all()
    if batches.sum() <= most:
        assert given.tolist() == each
    elif most >= np.count_nonzero(batches):
        assert ((given > 0) == (batches > 0)).all()
        assert given.sum() > most - len(each)
        assert given == pytest.approx(batches * most / batches.sum(), abs=len(each) + 1)


def test_a_retune_beyond_the_hosts_room_is_held_up_said_and_what_is_seen_is_as_if_it_were_not() -> None:
    said: list[str] = []
    inner = Raising((80, 20), (5, 5))
    tuner = LimitedTuner(inner, TABLES, 50, said.append)
    assert tuner.batches.tolist() == [8, 2]
    seconds = np.array([0.18, 0.28])
    retune = tuner.observe(1, seconds)
    assert inner.told[0].tolist() == seconds.tolist()
    assert retune is not None
    assert retune.batches.sum() <= 50
    assert retune.batches.tolist() == tuner.batches.tolist()
    assert "asked for 100 records a step, and the host's part of the model has room for 50" in said.pop()
    quick, slow = (table.seconds(int(batch)) for table, batch in zip(TABLES, tuner.batches, strict=True))
    smaller = tuner.observe(2, np.array([quick, 2 * slow]))
    assert inner.told[1] == pytest.approx([TABLES[0].seconds(80), 2 * TABLES[1].seconds(20)])
    assert smaller is not None
    assert smaller.batches.tolist() == tuner.batches.tolist() == [5, 5]
    assert not said


def test_who_leaves_makes_room_for_the_others() -> None:
    tuner = LimitedTuner(FixedBatches((60, 40), TABLES), TABLES, 60, list[str]().append)
    assert tuner.batches.sum() <= 60
    assert tuner.leave(1).batches.tolist() == [60, 0]
    assert tuner.join(1).batches.sum() <= 60
