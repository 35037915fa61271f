"""What training minimises: built-in losses, the user's own, and what of a record the model takes."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from firmware_agent.common.datafiles.record_set import input_of
from firmware_agent.common.errors import DataError, ModelError
from firmware_agent.common.losses.built_in_losses import LOSSES
from firmware_agent.common.losses.objective import Batch, Objective, ObjectiveSpec
from firmware_agent.common.shipped_code import ShippedCode
from tests.support.examples import examples

OWN = """
from torch.nn import functional


def huber(outputs, batch, delta=1.0):
    return functional.huber_loss(outputs, batch["y"], delta=delta)


def each(outputs, batch):
    return (outputs - batch["y"]) ** 2


class Weighted:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, outputs, batch):
        return self.weight * functional.mse_loss(outputs, batch["y"])
"""
VOCABULARY = 7


def objective(name: str, source: str | None = None, field: str = "x", **arguments: Any) -> Objective:
    return Objective.of_spec(ObjectiveSpec(ShippedCode(name, source, arguments), (field,), 0.5), "float64")


def make_case(name: str, records: int, seed: int) -> tuple[torch.Tensor, Batch]:
    """Outputs of a model and a batch that suit a built-in loss."""
    generator = np.random.default_rng(seed)
    if name == "next_token":
        tokens = generator.integers(0, VOCABULARY, (records, 5))
        return torch.from_numpy(generator.standard_normal((records, 5, VOCABULARY))), {"tokens": tokens}
    if name == "cross_entropy":
        labels = generator.integers(0, VOCABULARY, records)
        return torch.from_numpy(generator.standard_normal((records, VOCABULARY))), {"label": labels}
    target = generator.random(records)
    return torch.from_numpy(generator.standard_normal((records, 1))), {"y": target}


@settings(max_examples=examples(60))
@given(st.sampled_from(sorted(LOSSES)), st.integers(2, 9), st.integers(1, 8), st.integers(0, 99))
def test_the_loss_of_a_batch_is_the_mean_over_its_parts(name: str, records: int, cut: int, seed: int) -> None:
    outputs, batch = make_case(name, records, seed)
    cut, own = min(cut, records - 1), objective(name)
    parts = [slice(0, cut), slice(cut, records)]
    sums = [
        own.loss_of(outputs[part], {field: column[part] for field, column in batch.items()}) * (part.stop - part.start)
        for part in parts
    ]
    assert float(own.loss_of(outputs, batch)) == pytest.approx(float(sum(sums)) / records)


def test_built_in_losses_are_torchs_own() -> None:
    outputs, batch = make_case("cross_entropy", 6, 1)
    labels = torch.from_numpy(batch["label"])
    assert objective("cross_entropy").loss_of(outputs, batch) == functional.cross_entropy(outputs, labels)
    smooth = objective("cross_entropy", label_smoothing=0.25).loss_of(outputs, batch)
    assert smooth == functional.cross_entropy(outputs, labels, label_smoothing=0.25)
    outputs, batch = make_case("next_token", 4, 1)
    by_hand = [
        -functional.log_softmax(outputs[record, place], 0)[batch["tokens"][record, place + 1]]
        for record in range(4)
        for place in range(4)
    ]
    assert float(objective("next_token").loss_of(outputs, batch)) == pytest.approx(float(sum(by_hand)) / 16)


def test_a_loss_of_ones_own_is_a_function_or_a_class_with_options() -> None:
    outputs, batch = torch.tensor([[1.0], [4.0]], dtype=torch.float64), {"y": np.array([[0.0], [0.0]])}
    assert objective("my.py:huber", OWN).loss_of(outputs, batch) == functional.huber_loss(outputs, torch.zeros(2, 1))
    assert float(objective("my.py:huber", OWN, delta=0.5).loss_of(outputs, batch)) == pytest.approx(1.125)
    assert float(objective("my.py:Weighted", OWN, weight=2.0).loss_of(outputs, batch)) == 17.0


def test_a_loss_takes_values_in_the_models_precision_and_whole_numbers_as_they_are() -> None:
    outputs = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
    batch: Batch = {"y": np.zeros((2, 1), np.float32), "tokens": np.array([1, 2], np.int32)}
    own = objective("my.py:huber", OWN)
    own.loss_of(outputs, batch).backward()  # type: ignore[no-untyped-call]
    assert {name: each.dtype for name, each in own.fields(batch).items()} == {"y": torch.float64, "tokens": torch.int32}
    image, tokens = {"x": np.zeros(2, np.uint8)}, objective("next_token", field="tokens")
    assert (own.whole_fields(image), list(tokens.whole_fields(batch))) == ({}, ["tokens"])


def test_what_is_wrong_with_a_loss_is_named() -> None:
    outputs, batch = torch.zeros(2, 1), {"y": np.zeros((2, 1))}
    with pytest.raises(ModelError, match=r"loss 'my.py:each' returned shape \(2, 1\); return a scalar, the mean over"):
        objective("my.py:each", OWN).loss_of(outputs, batch)
    with pytest.raises(ModelError, match=r"loss .my\.py:none.: cannot be imported"):
        objective("my.py:none", OWN)
    with pytest.raises(ModelError, match=r"making it with \{\} failed: TypeError.*weight"):
        objective("my.py:Weighted", OWN)
    with pytest.raises(ModelError, match="did you mean 'cross_entropy'"):
        objective("crossentropy")
    with pytest.raises(ModelError, match=r"no field of the records \(x\) says what is to be predicted"):
        objective("mean_squared_error").loss_of(outputs, {"x": np.zeros(2)})


def test_bytes_are_scaled_whole_numbers_stay_and_others_take_the_models_precision() -> None:
    own = objective("cross_entropy")
    (found,) = own.inputs({"x": np.array([[0, 255]], np.uint8)})
    assert (found.dtype, found.tolist()) == (torch.float64, [[0.0, 127.5]])
    assert own.inputs({"x": np.array([[300]], np.int64)})[0].dtype == torch.int64
    (found,) = own.inputs({"x": np.array([[1.5]], np.float32)})
    assert (found.dtype, found.tolist()) == (torch.float64, [[1.5]])


@pytest.mark.parametrize(
    ("fields", "wanted"), [(["image", "label"], "image"), (["y", "x"], "x"), (["tokens"], "tokens"), (["y"], "y")]
)
def test_the_model_takes_the_only_field_that_is_no_target(fields: list[str], wanted: str) -> None:
    assert input_of(fields) == wanted


def test_of_several_fields_the_job_names_the_one_that_the_model_takes() -> None:
    with pytest.raises(DataError, match=r"data.input: records have a, b; name the field"):
        input_of(["a", "b", "y"])


STEPS = """
import torch


def same(batch, generator):
    return dict(batch)


def noise(batch, generator, size=1.0):
    return {**batch, "x": batch["x"] + size * torch.rand(batch["x"].shape, generator=generator)}


def wider(batch, generator):
    return {**batch, "x": batch["x"].repeat(1, 2)}


def fewer(batch, generator):
    return {name: values[1:] for name, values in batch.items()}


def more(batch, generator):
    return {**batch, "z": batch["x"]}


def nothing(batch, generator):
    batch["x"] += 1


def mask(batch):
    return {"x": batch["x"][:, :1], "mask": batch["x"] > 0, "y": batch["y"]}


def scalar(batch):
    return {"x": batch["x"], "y": batch["y"].sum()}


def plain(batch):
    return {name: values.numpy() for name, values in batch.items()}


def last(batch):
    return batch["x"]
"""
PAIR: Batch = {"x": np.array([[1.0, -2.0], [3.0, 0.0]]), "y": np.array([0.5, 1.5])}


def of_steps(*augment: str, collate: str | None = None, fields: tuple[str, ...] = ("x",)) -> Objective:
    augments, made = (ShippedCode(f"s.py:{name}", STEPS) for name in augment), collate and f"s.py:{collate}"
    code = ShippedCode(made, STEPS) if made else None
    spec = ObjectiveSpec(ShippedCode("mean_squared_error"), fields, 0.5, tuple(augments), code)
    return Objective.of_spec(spec, "float64")


def test_records_are_augmented_in_training_alone_and_collated_always() -> None:
    own = of_steps("noise", "noise", collate="mask", fields=("x", "mask"))
    torch.manual_seed(3)
    batch = own.prepare(PAIR)
    torch.manual_seed(3)
    drawn = torch.rand(2, 2) + torch.rand(2, 2)  # NumPy's float64 is added to torch's float32
    np.testing.assert_allclose(batch["x"], PAIR["x"][:, :1] + drawn.numpy()[:, :1], rtol=1e-6)
    still = own.prepare(PAIR, training=False)
    np.testing.assert_array_equal(still["x"], PAIR["x"][:, :1])
    x, mask = own.inputs(still)
    assert (x.dtype, mask.dtype, mask.tolist()) == (torch.float64, torch.bool, [[True, False], [True, False]])
    assert of_steps().prepare(PAIR) is PAIR


def test_the_model_takes_fields_in_the_order_of_their_names() -> None:
    y, x = of_steps(fields=("y", "x")).inputs(PAIR)
    assert (y.tolist(), x.tolist()) == (PAIR["y"].tolist(), PAIR["x"].tolist())
    with pytest.raises(ModelError, match=r"data\.input: batches have no field 'mask', but x, y; name some of these"):
        of_steps(fields=("x", "mask")).inputs(PAIR)


@pytest.mark.parametrize(
    ("augment", "collate", "message"),
    [
        ("wider", None, r"augment 's\.py:wider': returned x float64\[2, 4\], y float64\[2\], of x float64\[2, 2\], y"),
        ("fewer", None, r"returned x float64\[1, 2\], .* the same fields, shapes and dtypes"),
        ("more", None, r"returned x float64\[2, 2\], y float64\[2\], z float64\[2, 2\], of x"),
        ("nothing", None, "returned NoneType, of x"),
        (None, "scalar", r"collate 's\.py:scalar': returned .*, y float64\[\], of .* tensors of all records, in their"),
        (None, "plain", "return a mapping with tensors of all records"),
        (None, "last", "returned Tensor, of x"),
    ],
)
def test_what_makes_no_batch_is_refused(augment: str | None, collate: str | None, message: str) -> None:
    own = of_steps(*[augment] if augment else [], collate=collate)
    with pytest.raises(ModelError, match=message):
        own.prepare(PAIR)


@settings(max_examples=examples(60))
@given(st.lists(st.integers(1, 6), min_size=2, max_size=6), st.integers(1, 5), st.integers(0, 3), st.integers(0, 99))
def test_a_next_token_of_ragged_records_is_of_their_own_places(
    lengths: list[int], cut: int, wider: int, seed: int
) -> None:
    generator, longest = np.random.default_rng(seed), max(lengths) + wider
    tokens = torch.from_numpy(generator.integers(0, VOCABULARY, (len(lengths), longest)))
    outputs = torch.from_numpy(generator.standard_normal((len(lengths), longest, VOCABULARY)))
    own, batch = objective("next_token", field="tokens"), {"tokens": tokens.numpy(), "tokens.length": np.array(lengths)}

    def alone(record: int) -> float:
        length = lengths[record]
        if length == 1:  # nothing is to be predicted
            return 0.0
        part = {"tokens": tokens[record : record + 1, :length].numpy()}
        return float(own.loss_of(outputs[record : record + 1, :length], part))

    whole = float(own.loss_of(outputs, batch))
    assert whole == pytest.approx(np.mean([alone(record) for record in range(len(lengths))]))
    parts = [slice(cut % len(lengths)), slice(cut % len(lengths), None)]
    sums = [
        float(own.loss_of(outputs[part], {name: column[part] for name, column in batch.items()})) * len(lengths[part])
        for part in parts
        if lengths[part]
    ]
    assert whole * len(lengths) == pytest.approx(sum(sums))


@settings(max_examples=examples(60))
@given(
    st.sampled_from(["cross_entropy", "mean_squared_error", "binary_cross_entropy"]),
    *(st.lists(st.integers(1, 6), min_size=2, max_size=6), st.integers(0, 3), st.integers(0, 99)),
)
def test_the_loss_of_ragged_targets_is_the_mean_over_records_of_their_own_places(
    name: str, lengths: list[int], wider: int, seed: int
) -> None:
    generator, count, longest = np.random.default_rng(seed), len(lengths), max(lengths) + wider
    if name == "cross_entropy":
        outputs = torch.from_numpy(generator.standard_normal((count, VOCABULARY, longest)))
        target: Any = generator.integers(0, VOCABULARY, (count, longest))
    else:
        outputs = torch.from_numpy(generator.standard_normal((count, longest, 2)))
        target = generator.random((count, longest, 2))
    own, places = objective(name), outputs.ndim - 1 if name == "cross_entropy" else 1

    def alone(record: int) -> float:
        found = outputs[record : record + 1].narrow(places, 0, lengths[record])
        return float(own.loss_of(found, {"y": target[record : record + 1, : lengths[record]]}))

    whole = float(own.loss_of(outputs, {"y": target, "y.length": np.array(lengths)}))
    assert whole == pytest.approx(np.mean([alone(record) for record in range(count)]))


def test_classes_that_are_left_out_of_a_ragged_record_do_not_count() -> None:
    outputs = torch.arange(24.0).reshape(2, 3, 4).sin()
    target, lengths = np.array([[-100, 1, 2, -100], [0, -100, -100, -100]]), np.array([3, 1])
    found = objective("cross_entropy").loss_of(outputs, {"label": target, "label.length": lengths})
    first = functional.cross_entropy(outputs[:1, :, 1:3], torch.tensor([[1, 2]]))
    second = functional.cross_entropy(outputs[1:, :, :1], torch.tensor([[0]]))
    assert float(found) == pytest.approx(float(first + second) / 2)
