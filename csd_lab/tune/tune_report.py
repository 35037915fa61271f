"""Structure of what `csd-emu tune` prints with ``--json``."""

from __future__ import annotations

from typing import Annotated

import msgspec

from csd_emu.util.renamed import Renamed, old_name_of
from host.core.device_time import MODELLED
from host.core.figure_bands import Band
from host.core.summary import INSTRUCTIONS


class TunedDevice(Renamed, frozen=True, kw_only=True):
    """One device under STANNIS, and with equal batches.

    Attributes:
        device, profile: its name and class.
        clock: that its calibration table was measured on, the core, and for the host what its seconds are divided by.
        batch_size: records per step.
        micro_batch: of these at most so many are computed at a time; the gradients of more are accumulated.
        compute_seconds: device seconds of a step: forward, backward, encoding.
        records_per_second: batch_size / compute_seconds.
        needed_bytes: peak memory that the table expects of the agent.
        available_bytes: memory for the agent: the device's without the system's reserve and a shard in memory.
        error_estimate: relative, of the seconds; null if the table has too few rows.
        covered: whether the table has a row that ran the kernels of this batch.
        private_records: that lie on it alone.
        public_records: of the pool, that it sees in an epoch.
        left_out_records: private ones that an epoch has no room for.
        equal_batch_size, equal_compute_seconds: the same, with the global batch dealt out equally.
        bands: of ``compute_seconds``, ``records_per_second`` and ``equal_compute_seconds``, with these batches.
        batch_at_ends: end of the bands, ``low`` or ``high`` -> the batch that STANNIS would choose there.
    """

    device: str
    profile: str
    clock: str
    batch_size: int
    micro_batch: int
    compute_seconds: float
    records_per_second: float
    needed_bytes: int
    available_bytes: int
    error_estimate: float | None
    covered: bool
    private_records: int
    public_records: int
    left_out_records: int
    equal_batch_size: int
    equal_compute_seconds: float
    bands: dict[str, Band] = msgspec.field(default_factory=dict)
    batch_at_ends: dict[str, int] = msgspec.field(default_factory=dict)
    images_per_second: Annotated[float, old_name_of("records_per_second")] = 0.0


class TuneReport(Renamed, frozen=True, kw_only=True):
    """`csd-emu tune`: batches with which all finish a step together, from calibration tables; nothing was trained.

    Attributes:
        model, input_shape, array: what was tuned for.
        host_ratio: how many `newport` drives the host is worth here; null if it does not train.
        devices: in participant order.
        step_seconds: the longest compute seconds, and the exchange.
        exchange_seconds: sending weights and gradients, and the host's sum and optimiser: a part of each step.
        imbalance: (max - min) / max of the compute seconds.
        records_per_second: of all together, exchange included.
        equal_records_per_second, equal_imbalance: the same, with the global batch dealt out equally.
        steps_per_epoch: of which the last may be smaller.
        repeated_records: public records that are seen again in an epoch.
        notes: what was done about records that equal steps have no room for, and what else must be known.
        clock: of all seconds: ``modelled``.
        core_model: what a nanosecond of them stands for: one of ``instructions`` or of ``cycles``.
        bands: of ``step_seconds``, ``exchange_seconds``, ``records_per_second`` and ``equal_records_per_second``, with
            these batches.
    """

    model: str
    input_shape: list[int]
    array: str
    host_ratio: float | None
    devices: list[TunedDevice]
    step_seconds: float
    exchange_seconds: float
    imbalance: float
    records_per_second: float
    equal_records_per_second: float
    equal_imbalance: float
    steps_per_epoch: int
    repeated_records: int
    notes: list[str]
    clock: str = MODELLED
    core_model: str = INSTRUCTIONS
    bands: dict[str, Band] = msgspec.field(default_factory=dict)
    images_per_second: Annotated[float, old_name_of("records_per_second")] = 0.0
    equal_images_per_second: Annotated[float, old_name_of("equal_records_per_second")] = 0.0
