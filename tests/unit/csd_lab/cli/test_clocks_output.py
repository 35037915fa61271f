"""What `csd-emu clocks` prints."""

from __future__ import annotations

import msgspec
import pytest

from csd_lab.cli.clocks import print_clocks
from csd_lab.clocks.clock_comparison import ARRAY, ClockComparison, ComparedSeconds
from csd_lab.clocks.decisions import Decision
from host.core.figure_bands import Band
from host.core.sampling.sampling_record import SamplingRecord


def comparison(sampled_seconds: float, batch: int) -> ClockComparison:
    def decision(size: int) -> Decision:
        return Decision(step=4, what="retune", batches={"csd-00": size})

    equal = int(batch == 8)
    return ClockComparison(
        job="job.yaml",
        array="lab",
        mode="sync",
        core_model="cycles",
        rounds=2,
        more_rounds=[0, 1],
        steps=40,
        seconds=[
            ComparedSeconds(of=of, counted_seconds=2.0, sampled_seconds=sampled_seconds, interval_seconds=0.02)
            for of in ("csd-00", ARRAY)
        ],
        sampling=SamplingRecord(counted_steps=4, steps=40, error=0.01, start_share=0.0),
        counted_decisions=[decision(8)],
        sampled_decisions=[decision(batch)],
        equal_decisions=equal,
        decisions=2 - equal,
        weights_difference=0.0,
        counted_weights_difference=0.125,
        counted_wall_seconds=100.0,
        sampled_wall_seconds=30.0,
        load_averages=[1.0, 1.0],
        sampled_notes=["csd-00: note: its steps are counted anew"],
    )


def test_what_lies_outside_its_interval_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_clocks(comparison(2.1, batch=8))
    said = capsys.readouterr().out
    assert said.count("outside") == 2
    assert "+5.00%" in said
    assert "0.30 of it" in said
    assert "1 of 1 are equal" in said
    assert "counted anew" in said
    assert "1 round more" in said
    print_clocks(comparison(2.01, batch=8))
    assert capsys.readouterr().out.count("inside") == 2


def test_other_decisions_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    print_clocks(comparison(2.0, batch=16))
    said = capsys.readouterr().out
    assert "0 of 2 are equal" in said
    assert "counted: step 4 retune csd-00 8" in said
    assert "sampled: step 4 retune csd-00 16" in said


def test_bands_stand_below_the_seconds_and_cancel_in_their_difference(capsys: pytest.CaptureFixture[str]) -> None:
    plain = comparison(2.1, batch=8)
    print_clocks(plain)
    assert "bands" not in capsys.readouterr().out
    bands = {"counted_band": Band(1.0, 4.0), "sampled_band": Band(1.05, 4.2)}
    seconds = [msgspec.structs.replace(each, **bands) for each in plain.seconds]
    print_clocks(msgspec.structs.replace(plain, seconds=seconds))
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("to 4)") == said.count("to 4.2)") == 2
    assert "the array's difference: +5.00% (100% of their bands cancels)" in said
