"""Structure of what `csd-emu top --json` prints."""

from __future__ import annotations

from typing import Annotated

from csd_emu.util.renamed import Renamed, old_name_of


class TopDevice(Renamed, frozen=True):
    """One drive (or the ``host``) in `csd-emu top`.

    Attributes:
        device: its name.
        state: ``defined``, ``booting``, ``ready``, ``training`` or ``lost``; empty for the host.
        clock: of its seconds.
        batch_size: records per step; null before the first round.
        slowdown_ratio: observed over expected seconds of its last synchronous step; null without a table.
        records_per_device_second: over compute seconds.
        compute_seconds: device seconds in which it computed, since the run began.
        device_seconds: elapsed device time since the run began, waiting included.
        power_watts: mean over elapsed device time.
        energy_joules: since the run began.
        host_link_bytes: over the link, both ways, since the run began.
        memory_bytes: most memory that the agent has held; null if it is not known.
    """

    device: str
    state: str
    clock: str
    batch_size: int | None
    records_per_device_second: float | None
    compute_seconds: float
    device_seconds: float
    power_watts: float | None
    energy_joules: float
    host_link_bytes: int
    memory_bytes: int | None
    slowdown_ratio: float | None = None
    images_per_device_second: Annotated[float | None, old_name_of("records_per_device_second")] = None


class TopReport(Renamed, frozen=True):
    """`csd-emu top`: a run in progress. Rates and watts are means since the run began; null where nothing has ended.

    `clock` is of the array's seconds, in which `records_per_array_second` counts; `wall_seconds` of the rounds are the
    cost of emulation. `step`, `global_batch_size` and `retunes` are of synchronous runs, null in others; `retunes` are
    changes of a device's batch, all devices together.
    """

    array: str
    engine: str
    model: str
    run_directory: str
    address: str
    clock: str
    round: int
    accuracy: float | None
    records_per_array_second: float | None
    array_seconds: float
    energy_joules: float
    host_link_bytes: int
    wall_seconds: float
    devices: list[TopDevice]
    step: int | None = None
    global_batch_size: int | None = None
    retunes: int | None = None
    images_per_array_second: Annotated[float | None, old_name_of("records_per_array_second")] = None
