"""What makes batches is tried on the host before anything starts; held-out records are collated, never augmented."""

from typing import Any

import numpy as np
import pytest
import torch

from firmware_agent.common.errors import DataError, ModelError
from firmware_agent.common.folded_traceback import format_user_traceback
from firmware_agent.common.losses.objective import ObjectiveSpec
from firmware_agent.common.shipped_code import ShippedCode
from host.core.datasets import Dataset
from host.core.evaluation import Evaluator

TEXT = """
import torch
from torch import nn

SEEN = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(1, 2)

    def forward(self, x, mask):
        return self.out((x * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True))


def mask(batch):
    SEEN.append(batch["x.length"].tolist())
    x = batch["x"][:, : batch["x.length"].max()]
    inside = torch.arange(x.shape[1]) < batch["x.length"][:, None]
    batch["x"] = x.clone()
    x.neg_()  # no harm is done to what is stored
    return {"x": batch["x"], "mask": inside, "label": batch["label"]}


def breaks(batch):
    if batch["x.length"].min() == 1:
        raise KeyError("my bug")
    return mask(batch)


def spoil(batch, generator):
    raise RuntimeError("only in training")
"""


def dataset(**changes: Any) -> Dataset:
    lengths = np.array([3, 1, 5, 2])
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32) * (np.arange(5) < lengths[:, None])
    fields = {"x": x, "x.length": lengths, "label": np.array([0, 1, 0, 1])}
    held_out = {name: column[:2] for name, column in fields.items()}
    return Dataset("./t.jsonl", fields, held_out, 1.0, **{"input_name": ["x", "mask"]} | changes)


def evaluator(*augment: str, collate: str = "mask") -> Evaluator:
    code = {name: ShippedCode(f"net.py:{name}", TEXT) for name in ("Net", collate, *augment)}
    spec = ObjectiveSpec(
        *(ShippedCode("cross_entropy"), ("x", "mask"), 1.0, tuple(code[each] for each in augment)), code[collate]
    )
    return Evaluator(code["Net"], dataset(), 0, spec)


def test_held_out_records_are_collated_and_stay_as_they_are() -> None:
    judge = evaluator()
    weights = judge.initial_weights()
    once, again = judge.evaluate(weights), judge.evaluate(weights)
    assert once == again
    data, held_out = dataset(), dataset().held_out
    means = (held_out["x"].sum(1) / held_out["x.length"])[:, None]
    logits = torch.from_numpy(means @ weights["out.weight"].T + weights["out.bias"])
    assert once.loss == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(held_out["label"])))
    )
    assert judge.structure().trained == ("out.weight", "out.bias")
    assert [layer.name for layer in judge.layers()] == ["out"]
    assert data.input_fields == ["x", "mask"]


def test_the_shortest_and_the_longest_record_are_tried_in_training_too() -> None:
    with pytest.raises(
        ModelError, match=r"collate 'net\.py:breaks': failed in a trial on two records: KeyError: 'my bug'"
    ) as caught:
        evaluator(collate="breaks")
    line = 1 + TEXT.splitlines().index('        raise KeyError("my bug")')
    assert f'File "net.py", line {line}, in breaks' in format_user_traceback(caught.value)
    with pytest.raises(ModelError, match=r"augment 'net\.py:spoil': failed in a trial .* only in training"):
        evaluator("spoil")


def test_fields_that_the_model_takes_are_said_and_the_first_is_stored() -> None:
    assert dataset(input_name=None).input_fields == ["x"]
    assert dataset(input_name="x").input_fields == ["x"]
    assert not dataset().are_images
    with pytest.raises(DataError, match=r"data\.input: \./t\.jsonl has no field 'mask', but x, x\.length, label"):
        dataset(input_name=["mask", "x"]).shape  # noqa: B018
