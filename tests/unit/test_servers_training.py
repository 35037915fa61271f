"""Training over several servers, on fake drives in one process: as one server with all drives, come what may."""

from __future__ import annotations

import asyncio

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import FakeEvaluator
from tests.servers import Hall
from tests.sync import StepDrive, SyncRun


@settings(max_examples=20)
@given(
    drives=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    batch=st.integers(1, 6),
    records=st.integers(5, 60),
    rule=st.sampled_from(["constant", "linear"]),
)
def test_servers_train_as_one_server_with_all_drives(drives: list[int], batch: int, records: int, rule: str) -> None:
    fields = dict(
        records=records,
        batch_size=batch,
        rounds=2,
        sync={"learning_rate_rule": rule},
        evaluator=FakeEvaluator(dtype="float64"),
    )
    hall = Hall(drives, **fields)
    one = SyncRun(*(StepDrive(name) for name in hall.names), own=hall.whole, **fields)
    asyncio.run(one.run())
    asyncio.run(hall.run())
    for server in hall.servers.values():
        for name, array in one.training.weights.items():
            np.testing.assert_allclose(server.training.weights[name], array, rtol=1e-12)
        assert [len(r.steps) for r in server.rounds] == [len(r.steps) for r in one.rounds]
        assert [s.samples for r in server.rounds for s in r.steps] == [s.samples for r in one.rounds for s in r.steps]
