"""How far seconds rest on sampled steps: added up over rounds, and told wherever the seconds are."""

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.app.round_table import RoundTable
from host.core import console
from host.core.console import print_summary
from host.core.records import RoundRecord, decode_record
from host.core.run_stats import RunStats
from host.core.sampling.sampling_record import DriveSeconds, SamplingRecord, add_sampling
from host.core.summary import Summary, decode_summary, summarise
from host.monitoring.page.page_view import describe_round, sum_up
from tests.support.records import array_rounds, round_record, with_bands
from tests.unit.host.core.test_summary import FACTS

SOME = SamplingRecord(counted_steps=13, steps=1368, error=0.002, start_share=0.005)
LACKING = msgspec.structs.replace(SOME, not_counted=["csd-01"])
samplings = st.builds(
    SamplingRecord,
    counted_steps=st.integers(0, 10**6),
    steps=st.integers(1, 10**9),
    error=st.floats(0, 1),
    start_share=st.floats(-0.5, 0.5),
    not_counted=st.lists(st.sampled_from(["csd-00", "csd-01", "csd-02"]), unique=True),
    drives=st.dictionaries(
        st.sampled_from(["csd-00", "csd-01", "csd-02"]),
        st.builds(DriveSeconds, seconds=st.floats(0.1, 10), half_width_seconds=st.floats(0, 1)),
    ),
)


def sampled_rounds(samplings: list[SamplingRecord | None]) -> list[RoundRecord]:
    rounds = array_rounds(len(samplings), ["csd-00"])
    return [msgspec.structs.replace(r, sampling=s) for r, s in zip(rounds, samplings, strict=True)]


def summary_of(sampling: SamplingRecord | None) -> Summary:
    return summarise([with_bands(record) for record in sampled_rounds([sampling])], **FACTS)


@given(st.lists(samplings, min_size=1, max_size=5), st.data())
def test_a_run_rests_on_samples_as_its_rounds_do_whatever_they_are_added_to(
    parts: list[SamplingRecord], data: st.DataObject
) -> None:
    seconds = [data.draw(st.floats(0.1, 10)) for _ in parts]
    whole = add_sampling(list(zip(parts, seconds, strict=True)))
    assert whole is not None
    assert whole.steps == sum(part.steps for part in parts)
    assert whole.counted_steps == sum(part.counted_steps for part in parts)
    assert whole.not_counted == sorted({name for part in parts for name in part.not_counted})
    mean = math.fsum(p.error * s for p, s in zip(parts, seconds, strict=True)) / math.fsum(seconds)
    assert whole.error == pytest.approx(mean, abs=1e-12)
    split = data.draw(st.integers(0, len(parts)))
    halves = [
        (add_sampling(list(zip(parts[at], seconds[at], strict=True))), sum(seconds[at]))
        for at in (slice(split), slice(split, None))
    ]
    again = add_sampling(halves)
    assert again is not None
    assert (again.steps, again.counted_steps, again.not_counted) == (
        whole.steps,
        whole.counted_steps,
        whole.not_counted,
    )
    assert (again.error, again.start_share) == pytest.approx((whole.error, whole.start_share), abs=1e-9)
    for name in {name for part in parts for name in part.drives}:
        own = [part.drives[name] for part in parts if name in part.drives]
        error = sum(drive.half_width_seconds for drive in own) / sum(drive.seconds for drive in own)
        assert whole.drives[name].error == pytest.approx(error)
        assert again.drives[name].error == pytest.approx(error)


@given(st.lists(st.none(), max_size=4) | st.lists(samplings, max_size=4), st.data())
def test_the_summary_adds_up_what_the_rounds_say(parts: list[SamplingRecord | None], data: st.DataObject) -> None:
    seconds = st.floats(0.1, 10)
    rounds = [round_record([], sampling=part, array_seconds=data.draw(seconds)) for part in parts]
    expected = add_sampling([(record.sampling, record.array_seconds) for record in rounds])
    found = RunStats.of(rounds).sampling
    assert (found is None) == (expected is None) == (not any(parts))
    if found is not None and expected is not None:
        assert (found.steps, found.counted_steps) == (expected.steps, expected.counted_steps)
        assert found.error == pytest.approx(expected.error, abs=1e-12)
    assert summarise(rounds, **FACTS).sampling == found


@given(st.none() | samplings)
def test_a_round_and_a_summary_come_back_as_they_were(sampling: SamplingRecord | None) -> None:
    (record,) = sampled_rounds([sampling])
    assert decode_record(msgspec.json.encode(record)) == record
    summary = summary_of(sampling)
    assert decode_summary(msgspec.json.encode(summary)) == summary


def test_an_older_summary_says_nothing_of_samples() -> None:
    content = json.loads(msgspec.json.encode(summary_of(SOME)))
    del content["sampling"]
    assert decode_summary(json.dumps(content).encode()).sampling is None


@pytest.mark.parametrize(
    ("sampling", "cell"), [(None, "0.310 "), (SOME, "0.310 ±0.2% ("), (LACKING, "≥0.310 (")], ids=str
)
def test_the_table_marks_seconds_with_their_error_beside_their_band(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sampling: SamplingRecord | None, cell: str
) -> None:
    monkeypatch.setattr(console.console, "_force_terminal", False)
    (record,) = sampled_rounds([sampling])
    record = with_bands(msgspec.structs.replace(record, array_seconds=0.31))
    with RoundTable("sampled, cycles") as table:
        table.add_round(record)
    header, row = capsys.readouterr().out.splitlines()
    assert f" {cell}" in row
    assert len(header) == len(row)


@pytest.mark.parametrize("sampling", [None, SOME, LACKING], ids=str)
def test_the_last_lines_of_a_run_tell_both_errors_and_whose_seconds_are_missing(
    capsys: pytest.CaptureFixture[str], sampling: SamplingRecord | None
) -> None:
    print_summary(summary_of(sampling))
    shown = " ".join(capsys.readouterr().out.split())
    text = (
        "13 of 1,368 steps were counted on a virtual machine: seconds ±0.20% (95 %), slower first steps are +0.50% of "
        "them"
    )
    assert (text in shown) == (sampling is not None)
    assert ("; seconds of csd-01 are missing: " in shown) == (sampling is LACKING)


def test_many_missing_drives_are_counted_not_named() -> None:
    names = [f"csd-{number:04d}" for number in range(1024)]
    told = msgspec.structs.replace(SOME, not_counted=names).missing
    assert "csd-0007 and 1016 more are missing" in told
    assert "csd-0008" not in told
    assert SOME.missing == ""


@pytest.mark.parametrize("sampling", [None, SOME])
def test_the_live_page_is_told(sampling: SamplingRecord | None) -> None:
    rounds = sampled_rounds([sampling])
    shown = sum_up(RunStats.of(rounds), None, describe_round(rounds[-1])).sampling
    assert shown == ("" if sampling is None else SOME.text)
