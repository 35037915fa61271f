"""Speed tables of an array's devices, from what calibration measured: time, and what their memory holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from csd_emu.config.array_file import REMOTE, ArrayConfig, Device
from csd_emu.profiles import Profile, get_profile
from csd_emu.profiles.calibration import CalibrationTable, ModelTables
from csd_emu.profiles.profile import End, RatioName
from firmware_agent.common.errors import CalibrationError, ConfigurationError
from firmware_agent.common.units import format_bytes
from host.config.sync_section import SyncSection
from host.core.tuning.speed_table import Seconds, SpeedTable
from host.policies.batching.client_layers import WHOLE, Front
from host.policies.batching.memory_limit import Memory, device_memory

# No device gets more records per step, unless the job file says otherwise.
LARGEST_BATCH = 1 << 14
# Batches up to here are looked up one by one, larger ones every so many; the tables are straight lines there.
_DENSE_BATCHES, _SPACING = 1024, 64


@dataclass(frozen=True)
class DeviceClass:
    """Devices that are equally fast and have the same memory.

    Attributes:
        profile: of the devices.
        clock: that the table was measured on, and its core.
        speed: seconds against batch size; above `micro_batch` with accumulation.
        micro_batch: the largest batch that is computed at once; gradients of larger ones are accumulated.
        memory: what bounds it.
        covered: the batches that ran in calibration run the same kernels as `micro_batch`; else it is a guess.
    """

    profile: str
    clock: str
    speed: SpeedTable
    micro_batch: int
    memory: Memory
    covered: bool

    def needed_bytes(self, batch_size: int) -> int:
        """Return the peak memory that a step of this many records is expected to take."""
        return self.memory.needed_bytes(min(batch_size, self.micro_batch))


def device_classes(
    config: ArrayConfig,
    tables: ModelTables,
    sync: SyncSection,
    ratio: RatioName = "middle",
    shard_bytes: int = 0,
    front: Front = WHOLE,
    end: End | None = None,
) -> dict[str, DeviceClass]:
    """Return the class of each device, in participant order: the drives, then ``host`` if it trains.

    Args:
        config: the array.
        tables: of what will be trained.
        sync: bounds of batches.
        ratio: how many `newport` drives the host is worth: the lower end of its profile's band, the middle, the upper.
        shard_bytes: of the largest shard, which the agent keeps in memory if it takes a quarter of it or less.
        front: the part of the model that the devices have.
        end: of the bands of the profiles' figures at which all stand; None: the figures themselves.

    Raises:
        CalibrationError: a table is missing or damaged.
        ConfigurationError: the smallest batch does not fit into a device.
    """
    found: dict[tuple[str, str], DeviceClass] = {}
    dense: dict[str, _Dense] = {}
    classes = {}
    for device in config.list_nodes():
        kind = device.profile, device.engine
        if kind not in found:
            table, model = tables.require(device.profile), tables.spec.name
            if device.engine == REMOTE and table.clock != "wall":
                raise CalibrationError(
                    f"{device.name}: how fast a real {device.profile} trains {model!r} was never measured; run "
                    f"csd-emu calibrate {model} --inventory {config.inventory} --drive {device.name}"
                )
            costs = dense.setdefault(table.key.digest, _Dense(table, front))
            found[kind] = _device_class(config, device, costs, sync, ratio, shard_bytes, end)
        classes[device.name] = found[kind]
    return classes


def speed_tables(classes: Mapping[str, DeviceClass]) -> dict[str, SpeedTable]:
    """Return the speed table of each device."""
    return {device: known.speed for device, known in classes.items()}


def accumulated(seconds: Seconds, encode_seconds: float, largest_batch: int) -> Seconds:
    """Return the seconds of batches of which only the first `len(seconds)` are computed at once.

    A step of b records is computed in k = ceil(b / m) parts of nearly equal size and encoded once: with s = b div k,
    tau(b) = (b mod k) f(s + 1) + (k - b mod k) f(s) + e. Never falling: where a table says that a batch takes less than
    a smaller one, it takes as long as that.

    Args:
        seconds: (m,) float64, f: forward and backward of 1 to m records.
        encode_seconds: e, once per step.
        largest_batch: the length of the answer.
    """
    batches = np.arange(1, largest_batch + 1)
    parts = -(-batches // len(seconds))
    size, more = np.divmod(batches, parts)
    costs = more * seconds[np.minimum(size, len(seconds) - 1)] + (parts - more) * seconds[size - 1] + encode_seconds
    return np.maximum.accumulate(costs)


class _Dense:
    """The seconds of every batch size in one table, for several profiles."""

    def __init__(self, table: CalibrationTable, front: Front) -> None:
        self.table, self.front = table, front
        self._phases: npt.NDArray[np.float64] = np.empty((2, 0))

    def seconds(self, largest_batch: int, profile: Profile) -> Seconds:
        """Return forward and backward of 1 to `largest_batch` records on a drive of `profile`, (largest_batch,)."""
        if self._phases.shape[1] < largest_batch:
            self._phases = self._look_up(largest_batch)
        shares = np.array([[self.front.forward_share], [self.front.backward_share]])
        forward, backward = shares * self._phases[:, :largest_batch]
        scales = [self.table.scale(profile, phase) for phase in ("forward", "backward")]
        return np.asarray(scales[0] * forward + scales[1] * backward)

    def encode_seconds(self, profile: Profile) -> float:
        """Return the seconds of copying the gradients out; they are as many as the weights that were measured."""
        return self.table.encode_seconds_median * self.front.encode_share * self.table.scale(profile, "encode")

    def _look_up(self, largest_batch: int) -> npt.NDArray[np.float64]:
        near = [batch + step for batch in self.table.batches for step in (-1, 0, 1)]
        wide = [*range(1, min(_DENSE_BATCHES, largest_batch) + 1), *range(_DENSE_BATCHES, largest_batch, _SPACING)]
        knots = sorted({batch for batch in [*near, *wide, largest_batch] if 1 <= batch <= largest_batch})
        steps = [self.table.step_seconds(batch) for batch in knots]
        batches = np.arange(1, largest_batch + 1)
        return np.array(
            [np.interp(batches, knots, [getattr(step, phase) for step in steps]) for phase in ("forward", "backward")]
        )


def _device_class(
    config: ArrayConfig,
    device: Device,
    costs: _Dense,
    sync: SyncSection,
    ratio: RatioName,
    shard_bytes: int,
    end: End | None,
) -> DeviceClass:
    profile, table = get_profile(device.profile), costs.table
    largest = sync.tuning.largest_batch or LARGEST_BATCH
    memory = replace(device_memory(config, device, profile, table, shard_bytes), front=costs.front)
    if (micro_batch := memory.largest_batch(min(largest, sync.micro_batch or largest))) == 0:
        raise ConfigurationError(
            f"{device.name}: one record of {table.model} at {table.key.shape_text} needs "
            f"{format_bytes(memory.needed_bytes(1))} of memory, this {device.profile} has "
            f"{format_bytes(max(0, memory.available_bytes))} for it ({format_bytes(memory.device_bytes)} less the "
            "system's share and a shard in memory); give it more (memory in the array file), take a smaller model, let "
            "the host have its late layers (placement: auto), or leave the drive out"
        )
    # A statistic over all records of a step cannot be had from parts of them.
    bound = micro_batch if sync.batch_norm == "synchronised" else largest
    unit, worth = table.speed_of(profile, ratio)
    seconds = costs.seconds(micro_batch, unit.at(end)) / worth
    return DeviceClass(
        profile=device.profile,
        clock=f"{table.clock}, {table.core} core" + (f", over {worth:g}" if worth != 1.0 else ""),
        speed=SpeedTable(
            device.profile, accumulated(seconds, costs.encode_seconds(unit.at(end)) / worth, bound), _error(table)
        ),
        micro_batch=micro_batch,
        memory=memory,
        covered=table.covers(micro_batch),
    )


def _error(table: CalibrationTable) -> float:
    """Return the largest error of the rows that have one below them; what no row bounds is a guess of another kind."""
    errors = [abs(error) for batch, error in table.error_estimate().items() if batch > table.batches[0]]
    return max(errors, default=float("nan"))
