"""How the net does on drives. Each test gets an array; one that nothing has happened to stays up for the next test."""

from pathlib import Path

import pytest

from csd_emu.extend import ConfigurationError, CsdArray

JOB = Path(__file__).parents[1] / "job.yaml"


def test_it_learns(csd_array: CsdArray) -> None:
    result = csd_array.train(JOB)
    assert result.accuracy > 0.3
    assert result.summary.rounds == 5


def test_a_wider_net_costs_more_device_time(csd_array: CsdArray) -> None:
    narrow = csd_array.train(JOB, rounds=1)
    wide = csd_array.train(JOB, rounds=1, model_arguments={"width": 64})
    assert narrow.clock == wide.clock
    if narrow.clock == "counted":  # on wall time, which native drives have for a net without a table, nothing is sure
        assert wide.records_per_device_second < 0.7 * narrow.records_per_device_second


@pytest.mark.csd(devices=3)
def test_training_survives_the_loss_of_a_drive(csd_array: CsdArray) -> None:
    running = csd_array.submit(JOB, rounds=12)
    running.wait_for_round(1)
    csd_array.inject("csd-01", "kill")
    result = running.result()
    assert result.summary.rounds == 12
    # A drive that dies between two rounds has left, one that dies within a round is lost.
    assert "csd-01" in [event["device"] for event in result.events if event["what"] in ("left", "lost")]
    last = result.data.rounds[-1]
    assert last.lost or last.idle or len(last.devices) == 2


def test_a_misspelt_job_is_refused(csd_array: CsdArray) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'rounds'"):
        csd_array.train(JOB, round=3)
