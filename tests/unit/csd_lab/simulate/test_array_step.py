import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.sharing import Link
from csd_emu.profiles import get_profile
from csd_lab.simulate.array_step import ALWAYS, WORK, ArrayStepModel, StepBytes

DRIVES = [get_profile(name) for name in ("newport", "generic-a53", "solana")]
SIZES = StepBytes(state=153_384.0, gradients=153_128, record=72)


def model(shared: bool = True) -> ArrayStepModel:
    return ArrayStepModel(DRIVES, get_profile("xeon-4108"), Link(2e7, 1e-5, shared), SIZES)


@given(rows=st.integers(1, 5), trains=st.booleans(), shared=st.booleans(), seed=st.integers(0, 99))
def test_servers_side_by_side_are_each_by_itself(rows: int, trains: bool, shared: bool, seed: int) -> None:
    draw, shape = np.random.default_rng(seed), (rows, 3 + trains)
    batches = draw.integers(0, 3, shape)
    compute = draw.random(shape) * (batches > 0)
    together = model(shared).step(batches, compute, 0.1 * compute)
    for row in range(rows):
        alone = model(shared).step(batches[[row]], compute[[row]], 0.1 * compute[[row]])
        for name, values in vars(together).items():
            assert values[..., row] == pytest.approx(vars(alone)[name][..., 0], rel=1e-12), name


def test_a_server_without_work_draws_nothing_but_what_it_always_draws() -> None:
    none = np.zeros((1, 4))
    steps = model().step(none.astype(np.int64), none, none)
    assert steps.ready_seconds == steps.work_seconds == 0
    assert steps.joules.shape == (len(WORK), 1)
    assert not steps.joules.any()
    assert model().always_watts.shape == (len(ALWAYS),)
    assert (model().always_watts > 0).all()
