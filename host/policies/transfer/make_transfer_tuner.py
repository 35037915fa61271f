"""From the schedule that a job's `communication` names to its transfer tuner."""

from __future__ import annotations

from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES
from firmware_agent.common.send_queue import TransferSettings
from host.config.plugins.kinds import TRANSFER_TUNER
from host.config.plugins.plugin_section import accepted
from host.policies.transfer.setting_grid import DEFAULT
from host.policies.transfer.transfer_tuner import TransferTuner


def make_tuner(
    schedule: str, first: TransferSettings = DEFAULT, seed: int = 0, block_bytes: int = BLOCK_BYTES
) -> TransferTuner:
    """Return the tuner, which takes of the other arguments what its constructor names.

    Args:
        schedule: its name, as a job file has it.
        first: the setting that the run begins with.
        seed: of a search's random points.
        block_bytes: the host steps ranges of so many bytes.

    Raises:
        ConfigurationError: a tuner cannot begin with `first`, or the name is not known.
    """
    kind = TRANSFER_TUNER.load(schedule)
    tuner: TransferTuner = kind(**accepted(kind, {"first": first, "seed": seed, "block_bytes": block_bytes}))
    return tuner
