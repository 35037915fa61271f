"""Blind predictions: their inputs, how their bands come about, and the verdicts."""

import dataclasses
import hashlib
import math
from importlib import resources
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationStore, CalibrationTable
from csd_emu.profiles.calibration.cycle_counts import PhaseCycles, RowCycles, StepCycles
from csd_lab.reproduce import blind_inputs
from csd_lab.reproduce.blind_inputs import FROZEN_SHA256, load_inputs, parse_inputs
from csd_lab.reproduce.blind_prediction import FIGURES, best_of, evaluate, predict
from csd_lab.reproduce.blind_server import (
    ASSUMED,
    MEASURED,
    BlindServer,
    combine,
    cycle_table,
    host_rate,
    middle_of,
)
from csd_lab.reproduce.hypertune_result import Prediction
from csd_lab.reproduce.scaling import MODELS
from csd_lab.reproduce.traffic import TARGET, needed_bytes, traffic_needs, traffic_ratio
from csd_lab.reproduce.verdict import NOT_REPRODUCED, REPRODUCED, UNDECIDABLE, WIDEST, judge
from firmware_agent.common.errors import ConfigurationError
from host.core.device_time import ASSUMED_CYCLES

TEXT = (resources.files("csd_lab.reproduce") / "blind_inputs.yaml").read_text(encoding="utf-8")
INPUTS = load_inputs()
STORE = CalibrationStore(Path("/nonexistent"))
MODEL = "mobilenet_v2"
SERVER = BlindServer(MODEL, STORE, INPUTS)
AT = middle_of(SERVER.bands)
# Which way each input moves the figure.
DIRECTIONS = {
    "host_rate": {"published_rate": 1, "host_clock": 1, "host_software": 1},
    "drive_rate": {"drive_clock": 1, "parallel_efficiency": 1, SERVER.cycles.input_name: -1},
    "ratio": {"host_clock": 1, "drive_clock": -1, "parallel_efficiency": -1, SERVER.cycles.input_name: 1},
    "energy_factor": {"drive_core": -1, "drive_dram": -1, "server_idle": 1, "drive_idle": 1},
}
positive = st.floats(1e-3, 1e3)


def test_the_inputs_are_those_that_were_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hashlib.sha256(TEXT.encode()).hexdigest() == FROZEN_SHA256
    monkeypatch.setattr(blind_inputs, "FROZEN_SHA256", "0" * 64)
    with pytest.raises(ConfigurationError, match=r"not what was frozen .*; restore it, or freeze the new one"):
        load_inputs()


def test_no_input_is_read_after_it_was_frozen() -> None:
    read = [entry.read for _, entry in INPUTS.ranges()] + [entry.read for entry in INPUTS.throughputs]
    read.append(INPUTS.host.read)
    assert max(read) <= INPUTS.frozen


@pytest.mark.parametrize(
    "source", ["HyperTune (ICCAD 2020)", "as in Stannis", "ACM TECS 2022", "Solana, ISQED 2022", "NGD's white paper"]
)
@pytest.mark.parametrize("of", ["frozen_link", "throughput", "host"])
def test_a_source_that_is_a_paper_to_be_predicted_is_refused(source: str, of: str) -> None:
    known = {
        "frozen_link": INPUTS.figures.host_link.source,
        "throughput": INPUTS.throughputs[0].source,
        "host": INPUTS.host.source,
    }[of]
    with pytest.raises(ConfigurationError, match="a headline of which is predicted; take a figure from elsewhere"):
        parse_inputs(TEXT.replace(known, source))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("high: 4.0", "high: 1.5", "figures.host_link|host_link: 1 to 1.5 is no band around 2"),
        ("low: 1.29", "low: 0", r"relatives.nasnet_mobile: 0 to 2.18 is no band"),
        ("cores: 8\n  flops", "cores: eight\n  flops", "Expected `int`"),
        ("frozen:", "melted:", "unknown field `melted`"),
        ("model: resnet50", "model: vgg16", "no throughput of resnet50"),
    ],
)
def test_inputs_that_make_no_sense_are_refused(old: str, new: str, says: str) -> None:
    assert old in TEXT
    with pytest.raises(ConfigurationError, match=says):
        parse_inputs(TEXT.replace(old, new))


@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_a_rate_and_every_band_its_value(model: str) -> None:
    server = BlindServer(model, STORE, INPUTS)
    bands = server.bands
    for low, value, high in bands.values():
        assert 0 < low <= value <= high
    assert ("relative" in bands) == all(entry.model != model for entry in INPUTS.throughputs)
    assert host_rate(middle_of(bands)) > 0
    assert server.cycles.input_name in bands
    assert len({"measured_cycles", "assumed_cycles"} & set(bands)) == 1


@pytest.mark.parametrize("figure", list(DIRECTIONS))
def test_figures_are_monotone_in_their_inputs(figure: str) -> None:
    middle = evaluate(SERVER, AT)[figure]
    for name, direction in DIRECTIONS[figure].items():
        more = evaluate(SERVER, {**AT, name: AT[name] * 1.5})[figure]
        assert (more - middle) * direction > 0, name


def test_the_ratio_is_what_the_host_has_over_a_drive() -> None:
    found = evaluate(SERVER, AT)
    assert found["ratio"] == pytest.approx(found["host_rate"] / found["drive_rate"])
    assert found["speedup"] < 1 + AT["drives"] / found["ratio"]
    nodes = SERVER.nodes(AT)
    assert nodes.host.profile.ratio is None
    # What is assumed of an input is among the assumed figures of the profile.
    assumed = {entry.figure for entry in nodes.kinds[0].profile.entries() if entry.assumed}
    assert {"link_bytes_per_second", "clock_hertz", "power.dram_watts"} <= assumed
    assert not {"parallel_efficiency", "power.core_watts"} & assumed
    host, drive = nodes.host.speed.step_seconds, nodes.kinds[0].speed.step_seconds
    assert host * nodes.ratio == pytest.approx(drive)
    # The array's own profile, and what users' arrays rest on, is left alone.
    profile = get_profile("xeon-4108")
    assert profile.ratio is not None


def test_a_band_holds_what_each_input_can_do_alone() -> None:
    for row in predict(SERVER):
        assert row.low <= row.middle <= row.high
        for each in row.influences:
            assert row.low * (1 - 1e-9) <= each.low <= each.high <= row.high * (1 + 1e-9)
        widths = [each.high / each.low for each in row.influences]
        assert widths == sorted(widths, reverse=True)
    assert [row.figure for row in predict(SERVER)] == list(FIGURES)


@given(positive, st.lists(st.tuples(positive, positive), max_size=6), st.tuples(positive, positive))
def test_one_input_more_never_narrows_a_band(
    middle: float, factors: list[tuple[float, float]], more: tuple[float, float]
) -> None:
    ends = {str(number): (middle * low, middle * high) for number, (low, high) in enumerate(factors)}
    low, same, high = combine(middle, ends)
    wider = combine(middle, {**ends, "more": (middle * more[0], middle * more[1])})
    assert wider[0] <= low * (1 + 1e-12)
    assert wider[2] >= high * (1 - 1e-12)
    assert same == middle
    if not ends:
        assert (low, high) == (middle, middle)
    one = combine(middle, {"one": (middle * more[0], middle * more[1])})
    assert one[0] == pytest.approx(middle * min(1.0, *more))
    assert one[2] == pytest.approx(middle * max(1.0, *more))


def verdict_on(published: float, low: float, high: float, middle: float | None = None) -> str:
    return judge("source", "speedup", published, (low, low if middle is None else middle, high)).verdict


# Powers of one number, by their exponents: the same exponent is the same number, and so is the reciprocal's.
exponents = st.integers(-30, 30)


def power(exponent: int) -> float:
    return 1.1**exponent


@given(exponents, st.lists(exponents, min_size=4, max_size=4).map(sorted))
def test_a_wider_band_turns_nothing_undecidable_or_reproduced_into_a_refusal(published: int, ends: list[int]) -> None:
    widest_low, low, high, widest_high = map(power, ends)
    before = verdict_on(power(published), low, high)
    after = verdict_on(power(published), widest_low, widest_high)
    allowed = {
        NOT_REPRODUCED: {NOT_REPRODUCED, REPRODUCED, UNDECIDABLE},
        REPRODUCED: {REPRODUCED, UNDECIDABLE},
        UNDECIDABLE: {UNDECIDABLE},
    }
    assert after in allowed[before]


@given(st.lists(exponents, min_size=3, max_size=3).map(sorted))
def test_a_headline_within_is_never_refused_and_one_outside_never_confirmed(ends: list[int]) -> None:
    least, between, most = map(power, ends)
    assert verdict_on(between, least, most) != NOT_REPRODUCED
    if between < most:
        assert verdict_on(most, least, between) == NOT_REPRODUCED
    if least < between:
        assert verdict_on(least, between, most) == NOT_REPRODUCED


@given(exponents, exponents, st.integers(0, 30), st.integers(-20, 20))
def test_a_verdict_depends_on_neither_unit_nor_the_way_round_of_a_ratio(
    published: int, low: int, width: int, scale: int
) -> None:
    high, unit = low + width, 2.0**scale  # a power of two rounds nothing
    verdict = verdict_on(power(published), power(low), power(high))
    assert verdict_on(power(published) * unit, power(low) * unit, power(high) * unit) == verdict
    assert verdict_on(power(-published), power(-high), power(-low)) == verdict


@pytest.mark.parametrize(
    ("published", "low", "high", "verdict"),
    [
        (1.5, 1.5, 1.5, REPRODUCED),
        (1.0, 1.0, WIDEST, REPRODUCED),
        (WIDEST, 1.0, WIDEST, REPRODUCED),
        (1.0, 1.0, math.nextafter(WIDEST, 9), UNDECIDABLE),
        (math.nextafter(1.0, 0), 1.0, WIDEST, NOT_REPRODUCED),
        (math.nextafter(WIDEST, 9), 1.0, WIDEST, NOT_REPRODUCED),
        (math.nextafter(1.0, 0), 1.0, 10.0, NOT_REPRODUCED),
    ],
)
def test_a_band_has_its_ends_and_says_something_up_to_the_widest(
    published: float, low: float, high: float, verdict: str
) -> None:
    assert verdict_on(published, low, high) == verdict


@given(exponents, st.lists(exponents, min_size=3, max_size=3).map(sorted))
def test_where_in_its_band_the_prediction_lies_moves_no_verdict(published: int, ends: list[int]) -> None:
    low, middle, high = map(power, ends)
    assert verdict_on(power(published), low, high, middle) == verdict_on(power(published), low, high, high)


@given(exponents, exponents)
def test_the_reason_names_the_side_on_which_a_headline_lies(published: int, only: int) -> None:
    assume(published != only)
    band = (power(only),) * 3
    side, other = ("below", "above") if published < only else ("above", "below")
    reason = judge("source", "speedup", power(published), band).reason
    assert side in reason
    assert other not in reason


def test_up_to_is_the_best_of_the_models() -> None:
    rows = [
        Prediction(model, figure, *band, ASSUMED, [])
        for figure in ("speedup", "traffic")
        for model, band in {"a": (1.0, 2.0, 5.0), "b": (1.5, 1.8, 2.0)}.items()
    ]
    assert best_of(rows, "speedup") == (1.5, 2.0, 5.0)
    assert best_of(rows, "traffic") == (1.0, 1.8, 2.0)


def counted(table: CalibrationTable, cycles: int, rows: int) -> CalibrationTable:
    """Return the table with so many rows counted, each phase `cycles` per instruction."""
    phase = PhaseCycles(1000, 1000 * cycles, 0)
    known = RowCycles("core", (StepCycles(phase, phase, phase),), (phase,))
    return msgspec.structs.replace(
        table,
        rows=tuple(
            msgspec.structs.replace(row, cycles=known if number < rows else None)
            for number, row in enumerate(table.rows)
        ),
    )


def test_a_server_has_the_cycles_of_its_shipped_table() -> None:
    assert SERVER.cycles.basis == MEASURED
    assert SERVER.cycles.table.batches == [1, 2, 4]


@given(st.integers(1, 9))
def test_measured_cycles_are_used_as_soon_as_a_table_has_them(cycles: int) -> None:
    bare = STORE.require(SERVER.load.spec, SERVER.load.shape).in_instructions()
    drive = dataclasses.replace(get_profile("newport"), dram_bytes_per_second=None)
    assert cycle_table(bare).basis == cycle_table(counted(bare, cycles, 1)).basis == ASSUMED
    found = cycle_table(counted(bare, cycles, 2))
    assert (found.basis, found.input_name) == (MEASURED, "measured_cycles")
    assert found.table.batches == bare.batches[:2]
    batch = bare.batches[0]
    before, assumed, after = (
        table.device_seconds(batch, drive) for table in (bare, cycle_table(bare).table, found.table)
    )
    assert after.forward == pytest.approx(before.forward * cycles)
    for phase in ("forward", "backward", "update"):
        assert getattr(assumed, phase) == pytest.approx(getattr(before, phase) * ASSUMED_CYCLES[phase])


shares, sizes = st.floats(0, 0.99), st.floats(1, 1e9)


@given(shares, sizes, sizes, st.floats(0.01, 1))
def test_the_needed_bytes_give_the_target_and_no_less(
    share: float, exchange: float, record_bytes: float, target: float
) -> None:
    needed = needed_bytes(share, exchange, target)
    if share >= target:
        assert needed == math.inf
        assert traffic_ratio(share, exchange, record_bytes, 1e12) >= target
        return
    assume(target - share > 1e-6)
    assert traffic_ratio(share, exchange, record_bytes, needed / record_bytes) == pytest.approx(target)
    assert traffic_ratio(share, exchange, record_bytes, needed / record_bytes / 2) > target


def test_traffic_holds_where_batch_or_record_are_within_bounds() -> None:
    shares = {MODEL: {"alone": 0.0, "little": 0.3, "too much": TARGET}}
    alone, little, much = traffic_needs(shares, {MODEL: 10})
    assert alone.drive_batch is not None
    assert little.drive_batch is not None
    assert alone.drive_batch < little.drive_batch
    assert (alone.holds, little.holds, much.holds) == (True, False, False)
    assert (much.needed_bytes, much.drive_batch, much.global_batch, much.at_batch_record_bytes) == (None,) * 4
    for need in (alone, little):
        ratio = traffic_ratio(need.host_share, need.exchange_bytes, need.record_bytes, need.drive_batch or 1)
        assert ratio <= TARGET
