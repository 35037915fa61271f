import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.profiles import PROFILES, get_profile
from csd_emu.profiles.calibration import CalibrationKey, CalibrationTable
from csd_emu.profiles.calibration.calibration_table import FORMAT, PHASES
from csd_emu.profiles.calibration.table_check import MONOTONE_TOLERANCE, encode_table, parse_table
from firmware_agent.common.errors import CalibrationError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.shipped_code import ShippedCode
from tests.support.calibration import DIGITS, make_table, step, tables, with_layers

COSTS = {1: 0.1, 2: 0.15, 4: 0.25, 8: 0.45}

Plain = dict[str, Any]


def plain(table: CalibrationTable) -> Plain:
    content: Plain = msgspec.json.decode(encode_table(table))
    return content


@given(table=tables())
def test_a_table_comes_back_from_its_file_as_it_was(table: CalibrationTable) -> None:
    assert parse_table(encode_table(table), "x.json") == table


@given(table=tables())
def test_a_measured_batch_has_the_medians_of_its_steps(table: CalibrationTable) -> None:
    for row in table.rows:
        assert table.step_seconds(row.batch_size) == row.seconds
        assert table.peak_memory_bytes(row.batch_size) == row.peak_memory_bytes


@given(table=tables(), one=st.integers(1, 10_000), other=st.integers(1, 10_000))
def test_more_samples_never_take_less_time_or_memory(table: CalibrationTable, one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert table.step_seconds(low).total <= table.step_seconds(high).total * (1 + 1e-9)
    assert table.peak_memory_bytes(low) <= table.peak_memory_bytes(high)


@given(
    fixed=st.floats(0, 10),
    slope=st.floats(1e-3, 10),
    batches=st.sets(st.integers(1, 512), min_size=3, max_size=6),
    asked=st.integers(1, 5000),
)
def test_a_linear_model_is_foretold_exactly(fixed: float, slope: float, batches: set[int], asked: int) -> None:
    table = make_table({batch: fixed + slope * batch for batch in sorted(batches)})
    assert table.step_seconds(asked).total == pytest.approx(fixed + slope * asked, rel=1e-6)
    assert all(abs(error) < 1e-6 for error in table.error_estimate().values())


weights = st.floats(0.01, 100)


@st.composite
def layered(draw: st.DrawFn) -> CalibrationTable:
    """A table of which some rows have layers, one at least."""
    table, count = draw(tables()), draw(st.integers(1, 5))
    chosen = draw(st.sets(st.sampled_from(table.batches), min_size=1))
    pairs = st.lists(st.tuples(weights, weights), min_size=count, max_size=count)
    return with_layers(table, [str(number) for number in range(count)], {batch: draw(pairs) for batch in chosen})


@given(table=layered(), asked=st.integers(1, 5000))
def test_the_layers_of_any_batch_add_up_to_its_step(table: CalibrationTable, asked: int) -> None:
    assert parse_table(encode_table(table), "x.json") == table
    layers, step = table.layer_seconds(asked), table.step_seconds(asked)
    assert layers is not None
    assert [layer.name for layer in layers] == [str(number) for number in range(len(layers))]
    for phase in ("forward", "backward"):
        seconds = [getattr(layer, f"{phase}_seconds") for layer in layers]
        assert sum(seconds) == pytest.approx(getattr(step, phase), rel=1e-9)
        assert all(each >= 0 for each in seconds)


@given(table=layered())
def test_a_batch_of_which_the_layers_were_measured_has_these(table: CalibrationTable) -> None:
    for row in table.rows:
        if row.layers is not None:
            layers = table.layer_seconds(row.batch_size)
            assert layers is not None
            for one, other in zip(layers, row.layers.layers, strict=True):
                assert one.forward_seconds == pytest.approx(other.forward_seconds, rel=1e-5)
                assert one.backward_seconds == pytest.approx(other.backward_seconds, rel=1e-5)


@given(asked=st.integers(1, 5000))
def test_layers_of_one_batch_have_the_same_shares_of_any(asked: int) -> None:
    layers = with_layers(make_table(COSTS), ["0", "1"], {2: [(1, 3), (3, 1)]}).layer_seconds(asked)
    assert layers is not None
    assert layers[1].forward_seconds == pytest.approx(3 * layers[0].forward_seconds)
    assert layers[0].backward_seconds == pytest.approx(3 * layers[1].backward_seconds)


def test_a_layer_that_grows_with_the_batch_overtakes_one_that_does_not() -> None:
    """Each follows its own points: at batch 4 half of the way from those of 2 to those of 6."""
    shares = {2: [(1, 1), (1, 1)], 6: [(1, 1), (3, 3)]}
    layers = with_layers(make_table({2: 1.0, 6: 2.0}), ["0", "1"], shares).layer_seconds(4)
    assert layers is not None
    assert layers[1].forward_seconds / layers[0].forward_seconds == pytest.approx((0.5 + 1.5) / (0.5 + 0.5))


def test_a_table_of_before_has_no_layers_and_looks_as_it_did() -> None:
    assert make_table(COSTS).layer_seconds(3) is None
    assert b"layers" not in encode_table(make_table(COSTS))


def test_the_median_of_the_steps_is_taken_phase_by_phase() -> None:
    table = make_table(COSTS)
    steps = (PhaseSeconds(1, 9, 5, 0), PhaseSeconds(2, 8, 100, 0), PhaseSeconds(3, 7, 6, 0))
    rows = (msgspec.structs.replace(table.rows[0], steps=steps), *table.rows[1:])
    assert msgspec.structs.replace(table, rows=rows).step_seconds(1) == PhaseSeconds(2, 8, 6, 0)


def test_a_bend_shows_in_the_error_estimate_and_two_rows_give_none() -> None:
    errors = make_table({1: 1.0, 2: 2.0, 4: 8.0}).error_estimate()
    assert errors == pytest.approx({1: 1.0 - 1, 2: 4 / 2 - 1, 4: 4 / 8 - 1})
    assert make_table({1: 1.0, 2: 2.0}).error_estimate() == {}


@pytest.mark.parametrize(("batch", "covered"), [(1, True), (3, True), (15, True), (16, False), (256, False)])
def test_a_table_knows_which_batches_run_kernels_that_it_has_not_seen(batch: int, covered: bool) -> None:
    assert make_table(COSTS).covers(batch) is covered


@pytest.mark.parametrize("batch", [0, -1])
def test_no_batch_is_smaller_than_one(batch: int) -> None:
    for ask in (make_table(COSTS).step_seconds, make_table(COSTS).peak_memory_bytes):
        with pytest.raises(CalibrationError, match=f"{batch} samples"):
            ask(batch)


@pytest.mark.parametrize("name", PROFILES)
def test_seconds_of_the_reference_core_are_scaled_to_a_profile(name: str) -> None:
    table, profile = make_table(COSTS), get_profile(name)
    assert table.device_seconds(4, profile) == profile.device_seconds(table.step_seconds(4))


def test_seconds_of_a_real_drive_are_that_drives_alone() -> None:
    key = CalibrationKey.of(ShippedCode("digits_cnn"), (1, 8, 8), "newport")
    table = make_table(COSTS, key, clock="wall")
    assert table.device_seconds(2, get_profile("newport")) == step(0.15)
    with pytest.raises(CalibrationError, match=r"digits_cnn.*measured on a newport, not on a generic-a53"):
        table.device_seconds(2, get_profile("generic-a53"))


def with_row(number: int, **changes: Any) -> Callable[[Plain], None]:
    def change(content: Plain) -> None:
        content["rows"][number] |= changes

    return change


def with_field(**changes: Any) -> Callable[[Plain], None]:
    return lambda content: content.update(changes)


def raw_step(**changes: float) -> list[dict[str, float]]:
    return [dict.fromkeys(PHASES, 0.01) | changes]


def with_layer(place: int, *values: object) -> Callable[[Plain], None]:
    """Give the second row, which has layers, another one at this place."""

    def change(content: Plain) -> None:
        content["rows"][1]["layers"]["layers"][place] = list(values)

    return change


BAD: dict[str, tuple[Callable[[Plain], Any], str]] = {
    "no row": (with_field(rows=[]), "has 0 rows, a table needs 2"),
    "one row": (lambda content: content["rows"].__delitem__(slice(1, None)), "has 1 rows, a table needs 2"),
    "no steps": (with_row(1, steps=[]), r"row 2 \(batch 2\): has no steps"),
    "negative": (with_row(2, steps=raw_step(update=-1e-9)), r"rows\[2\].steps\[0\].update"),
    "too large to be finite": (with_row(0, steps=raw_step(forward=1e300)), r"rows\[0\].steps\[0\].forward"),
    "no time at all": (with_row(0, steps=[dict.fromkeys(PHASES, 0.0)]), r"row 1 \(batch 1\): its steps take no time"),
    "batch of zero": (with_row(0, batch_size=0), r"row 1 \(batch 0\): a batch has one sample"),
    "the same batch twice": (with_row(1, batch_size=1), r"row 2 \(batch 1\): comes after batch 1; rows must have incr"),
    "batches in disorder": (lambda content: content["rows"].reverse(), "rows must have increasing batch sizes"),
    "a cheap large batch": (
        with_row(3, steps=raw_step()),
        r"row 4 \(batch 8\): a step takes 0\.04 s, less than the 0\.",
    ),
    "no memory": (with_row(0, peak_memory_bytes=0), r"row 1 \(batch 1\): peak memory of 0 bytes"),
    "wall time": (with_row(0, wall_seconds=-1.0), r"row 1 \(batch 1\): wall_seconds is -1\.0"),
    "another table's row": (
        with_row(2, of="f" * 16),
        r"row 3 \(batch 4\): was measured for another model, shape, core",
    ),
    "another image": (with_field(image="f" * 16), r"row 1 \(batch 1\): was measured for another model, shape, core or"),
    "another shape": (with_field(input_shape=[3, 8, 8]), "was measured for another model"),
    "another model": (with_field(model="vgg16"), "was measured for another model"),
    "no encoding": (with_field(encode_seconds=[]), "encode_seconds"),
    "negative encoding": (with_field(encode_seconds=[-1.0]), "encode_seconds"),
    "a newer format": (
        with_field(format=FORMAT + 1, more=1),
        f"format {FORMAT + 1}, this csd-emu reads {FORMAT}; upgrade",
    ),
    "an impossible format": (with_field(format=0), "format 0"),
    "an unknown key": (with_field(colour="red"), "unknown field `colour`"),
    "a missing key": (lambda content: content.pop("rows"), "missing required field `rows`"),
    "an unknown clock": (with_field(clock="nonsense"), "clock 'nonsense' is none of counted, wall"),
    "a modelled clock": (with_field(clock="modelled"), "clock 'modelled' is none of counted, wall"),
    "wall seconds of the reference core": (with_field(clock="wall"), "the clock is wall and the core reference"),
    "counted seconds of a real drive": (with_field(core="newport"), "the clock is counted and the core newport"),
    "negative parameters": (with_field(parameters=-3), "-3 parameters are no model's"),
    "no parameters": (with_field(parameters=0), "0 parameters are no model's"),
    "no classes": (with_field(classes=0), "with 0 classes is no model's"),
    "no shape": (with_field(input_shape=[1, 0, 8]), r"input shape \(1, 0, 8\)"),
    "layers that take less than their step": (
        with_layer(0, "0", 0.0, 0.03),
        r"row 2 \(batch 2\): its layers take 0\.03375 s forward, its median step 0\.045 s; they must add up",
    ),
    "layers that take more": (with_layer(1, "1", 0.03375, 0.07), r"row 2 .*its layers take .* s backward"),
    "a layer twice": (with_layer(1, "0", 0.03375, 0.06), r"row 2 \(batch 2\): two of its layers have one name: 0, 0"),
    "another model's layers": (
        with_layer(0, "conv", 0.01125, 0.03),
        "its rows have layers of different names; one model has the same",
    ),
    "a layer of less than no time": (with_layer(0, "0", -1e-9, 0.03), r"rows\[1\].layers.layers\[0\]"),
    "a layer without seconds": (with_layer(0, "0"), r"rows\[1\].layers.layers\[0\]"),
    "no layer": (
        lambda content: content["rows"][1]["layers"].update(layers=[]),
        r"rows\[1\].layers.layers",
    ),
    "a word for a number": (with_row(0, batch_size="1"), r"Expected `int`.*rows\[0\].batch_size"),
}


def test_a_bad_table_is_refused_with_file_row_and_cause(subtests: pytest.Subtests) -> None:
    for name in BAD:
        with subtests.test(name=name):
            content = plain(with_layers(make_table(COSTS), ["0", "1"], {2: [(1, 1), (3, 2)], 4: [(1, 1), (3, 2)]}))
            spoil, cause = BAD[name]
            spoil(content)
            with pytest.raises(CalibrationError) as caught:
                parse_table(msgspec.json.encode(content), "own/x.json")
            message = str(caught.value)
            assert message.startswith("own/x.json: ")
            assert re.search(cause, message), message
            assert "\n" not in message
            assert "csd-emu" in message  # the remedy
            assert caught.value.exit_code == 2


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "null"])
def test_what_is_no_finite_number_is_refused(word: str) -> None:
    text = encode_table(make_table(COSTS)).decode()
    spoilt = re.sub(r'"backward": [0-9.e-]+', f'"backward": {word}', text, count=1)
    assert spoilt != text
    with pytest.raises(CalibrationError, match="is no calibration table"):
        parse_table(spoilt.encode(), "x.json")


@given(data=st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(CalibrationError, match="is no calibration table"):
        parse_table(data, "x.json")


@given(table=tables(), cut=st.floats(0, 0.999))
def test_a_file_cut_short_is_refused(table: CalibrationTable, cut: float) -> None:
    data = encode_table(table).rstrip()
    with pytest.raises(CalibrationError, match="is no calibration table"):
        parse_table(data[: int(cut * len(data))], "x.json")


def test_steps_that_vary_a_little_are_no_fault() -> None:
    allowed = 0.45 * (1 - 0.9 * MONOTONE_TOLERANCE)
    table = make_table(COSTS | {16: allowed})
    assert parse_table(encode_table(table), "x.json") == table
    with pytest.raises(CalibrationError, match="more than 2% is no noise"):
        parse_table(encode_table(make_table(COSTS | {16: 0.45 * (1 - 1.1 * MONOTONE_TOLERANCE)})), "x.json")


def test_the_keys_of_two_models_shapes_or_sources_differ() -> None:
    digits = ShippedCode("digits_cnn")
    keys = [
        CalibrationKey.of(digits, (1, 8, 8)),
        CalibrationKey.of(digits, (1, 8, 9)),
        CalibrationKey.of(digits, (1, 8, 8), "newport"),
        CalibrationKey.of(ShippedCode("digits_cnn", None, {"num_classes": 3}), (1, 8, 8)),
        CalibrationKey.of(ShippedCode("net.py:build", "a = 1"), (1, 8, 8)),
        CalibrationKey.of(ShippedCode("net.py:build", "a = 2"), (1, 8, 8)),
        CalibrationKey.of(ShippedCode("net.py:build", "a = 2", {"width": 2}), (1, 8, 8)),
        CalibrationKey.of(ShippedCode("net:build"), (1, 8, 8)),
        CalibrationKey.of(ShippedCode("net-build"), (1, 8, 8)),
    ]
    assert len({key.file_name for key in keys}) == len({key.digest for key in keys}) == len(keys)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+\.json", key.file_name) for key in keys)


def test_where_a_model_file_lies_does_not_matter() -> None:
    keys = {
        CalibrationKey.of(ShippedCode(f"{folder}net.py:build", "a = 1"), (1, 8, 8)).digest
        for folder in ("", "a/", "/b/")
    }
    assert len(keys) == 1


def test_a_built_in_models_usual_number_of_classes_can_be_left_out() -> None:
    assert CalibrationKey.of(ShippedCode("digits_cnn", None, {"num_classes": 10}), (1, 8, 8)) == DIGITS
    assert DIGITS.file_name == "digits_cnn-1x8x8.json"
