"""What is believed after what was seen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.policies.selection.beliefs.belief import Belief, Data
from host.policies.selection.costs.step_costs import Points
from tests.support.planner_clusters import make_cluster, model_of

BATCH = 100


def belief_of(batch: int, errors: float, off: float, spikes: float = 0.0) -> tuple[Belief, Points]:
    """A belief after one measurement of two devices, with another batch; and these devices with `BATCH`, and one."""
    model, _, _ = model_of(make_cluster([2], host=False, seed=1), 0, True)
    seen = Points(np.array([[2]]), np.array([[batch]]))
    outputs = model.outputs(np.zeros(model.layout.size), seen) + off
    belief = Belief(model, Data(seen, outputs, np.full((1, 2), errors), spikes))
    return belief, Points(np.array([[2], [1]]), np.full((2, 1), BATCH))


@given(st.integers(-6, 6), st.floats(-0.2, 0.2))
def test_what_was_measured_holds_for_hardly_other_batches(by: int, off: float) -> None:
    belief, points = belief_of(BATCH + by, 1e-4, off)
    near = abs(by) <= 0.03 * (BATCH + by)
    (measured, other), _ = belief.means(points)
    own = belief.errors(points)[1]
    expected = belief.model.outputs(belief.mode, points)
    assert (own[0] < own[1] / 10).all() == near
    assert other == pytest.approx(expected[1])
    if near:
        seen = belief.model.outputs(belief.mode, Points(np.array([[2]]), np.array([[BATCH + by]])))
        unexplained = belief.model.outputs(
            np.zeros_like(belief.mode), Points(np.array([[2]]), np.array([[BATCH + by]]))
        )
        assert measured == pytest.approx(expected[0] + unexplained[0] + off - seen[0], abs=1e-3)
    else:
        assert measured == pytest.approx(expected[0])


@given(st.floats(0, 0.1))
def test_spikes_lengthen_a_step_with_each_device(spikes: float) -> None:
    (belief, points), (without, _) = belief_of(BATCH, 0.01, 0.1, spikes), belief_of(BATCH, 0.01, 0.1)
    longer = belief.means(points)[0] - without.means(points)[0]
    assert longer == pytest.approx(np.log1p(spikes * np.array([[2, 0], [1, 0]])))
