"""Whose seconds a job's drives have is known before any of them is started."""

from typing import Any, get_args

import pytest

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.engine_names import Clock
from host.training.job_inputs import JobInputs

TABLE: Any = object()


def inputs(engine: str, clock: str, modelled: bool) -> JobInputs:
    content = {"name": "lab", "engine": engine, "clock": clock, "devices": [{"profile": "newport"}]}
    unused: Any = None
    config, models = ArrayConfig.model_validate(content), {"csd-00": TABLE} if modelled else {}
    return JobInputs(config, unused, unused, unused, unused, unused, unused, models)


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
