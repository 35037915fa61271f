"""Built-in collate functions: a batch is as long as its longest record, and nothing of a record is lost."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.collates.built_in_collates import Pad
from firmware_agent.common.errors import ModelError
from tests.support.examples import examples


@settings(max_examples=examples(60))
@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.sampled_from([(), (2,), (2, 3)]), st.floats(-9, 9))
def test_a_batch_is_cut_to_its_longest_record_and_filled_up(
    lengths: list[int], rest: tuple[int, ...], fill: float
) -> None:
    stored = torch.rand(len(lengths), 9, *rest)
    batch = {"x": stored, "x.length": torch.tensor(lengths), "other": torch.rand(len(lengths), 9)}
    found = Pad(fill)(batch)
    assert found["x"].shape == (len(lengths), max(1, *lengths), *rest)
    assert found["other"] is batch["other"]
    for before, after, length in zip(stored, found["x"], lengths, strict=True):
        assert torch.equal(after[:length], before[:length])
        assert torch.equal(after[length:], torch.full_like(after[length:], fill))


def test_whole_numbers_to_be_predicted_are_filled_up_with_what_the_loss_leaves_out() -> None:
    lengths = torch.tensor([3, 1])
    batch = {"tokens": torch.ones(2, 5, dtype=torch.int64), "target": torch.ones(2, 5, dtype=torch.int64)}
    found = Pad()({**batch, "tokens.length": lengths, "target.length": lengths})
    assert found["tokens"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert found["target"].tolist() == [[1, 1, 1], [1, -100, -100]]
    values = Pad(fill=2)({"y": torch.ones(2, 5), "y.length": lengths})["y"]
    assert values.tolist() == [[1, 1, 1], [1, 2, 2]]
    small = torch.ones(2, 5, dtype=torch.uint8)
    assert Pad()({"y": small, "y.length": lengths})["y"].tolist() == [[1, 1, 1], [1, -100, -100]]


@pytest.mark.parametrize(("dtype", "fill"), [(torch.uint8, -1.0), (torch.uint8, 300.0), (torch.int64, 0.5)])
def test_a_fill_that_a_field_cannot_hold_is_refused_in_a_sentence(dtype: torch.dtype, fill: float) -> None:
    batch = {"x": torch.ones(2, 3, dtype=dtype), "x.length": torch.tensor([3, 1])}
    with pytest.raises(ModelError, match=rf"pad: fill: {fill:g} cannot stand in the field x, .* store the field"):
        Pad(fill)(batch)
    assert Pad(7)(batch)["x"].tolist() == [[1, 1, 1], [1, 7, 7]]
