"""Whose seconds a job's drives have is known before any of them is started."""

from typing import Any, get_args

import pytest

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.engine_names import Clock
from host.config.job_file import JobConfig
from host.training.job_inputs import JobInputs

TABLE: Any = object()


def inputs(engine: str, clock: str, modelled: bool, job: JobConfig | None = None) -> JobInputs:
    content = {"name": "lab", "engine": engine, "clock": clock, "devices": [{"profile": "newport"}]}
    unused: Any = None
    config, models = ArrayConfig.model_validate(content), {"csd-00": TABLE} if modelled else {}
    return JobInputs(config, job or unused, unused, unused, unused, unused, unused, models)


@pytest.mark.parametrize("clock", get_args(Clock))
@pytest.mark.parametrize("modelled", [True, False])
def test_seconds_are_this_machines_own_of_native_drives_that_are_neither_modelled_nor_sampled(
    clock: str, modelled: bool
) -> None:
    assert inputs("native", clock, modelled).wall == (clock != "sampled" and not modelled)
    if clock in ("auto", "sampled"):
        assert not inputs("qemu", clock, modelled=False).wall
    else:
        with pytest.raises(ValueError, match="is for native drives"):
            inputs("qemu", clock, modelled=False)


@pytest.mark.parametrize(
    ("keys", "other"),
    [
        ({}, None),
        ({"optimizer": {"name": "SGD", "nesterov": True}}, None),
        ({"optimizer": "Adam"}, "Adam updates"),
        ({"clip_norm": 1.0}, "SGD with clip_norm updates"),
        ({"mode": "sync", "optimizer": "Adam"}, None),  # the host steps
        ({"mode": "sync", "augment": ["flip"]}, "which has neither augment nor collate"),
        ({"collate": "pad"}, "seconds of steps are without them"),
    ],
)
def test_where_a_table_stands_for_more_than_was_measured_is_told(keys: dict[str, Any], other: str | None) -> None:
    job = JobConfig.model_validate({"model": "digits_cnn", "data": {"source": "digits"}} | keys)
    notes = inputs("native", "auto", modelled=True, job=job).clock_notes()
    assert (notes == []) == (other is None)
    if other is not None:
        assert notes[0].startswith("csd-00: modelled from a calibration table")
        assert other in notes[0]
    assert inputs("native", "auto", modelled=False, job=job).clock_notes() == []
