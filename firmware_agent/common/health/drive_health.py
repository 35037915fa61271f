"""What a real drive's logs say of its health, on the wire and in the records of a run."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

# Bits of the critical warning, the lowest first (NVMe base specification, log page 02h).
WARNINGS = (
    "spare blocks below their threshold",
    "temperature beyond a threshold",
    "reliability degraded",
    "read-only",
    "volatile memory backup failed",
    "persistent memory region unreliable",
)
# The drive's counters have 128 bits; no drive has counted so far.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
# Less or more no drive has; percentages may go beyond 100, and one byte has 255 at most.
Celsius = Annotated[float, Meta(ge=-100, le=200)]
Ratio = Annotated[float, Meta(ge=0, le=2.55)]
Byte = Annotated[int, Meta(ge=0, le=255)]


class IoCounters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Commands that came from the host, and data units (1,000 sectors of 512 bytes) that they moved."""

    read_commands: Count | None = None
    write_commands: Count | None = None
    read_units: Count | None = None
    written_units: Count | None = None

    def since(self, before: IoCounters) -> IoCounters:
        """Return what came after `before`; None of what either does not tell, or of a counter that was set back."""
        return IoCounters(*map(_growth, msgspec.structs.astuple(self), msgspec.structs.astuple(before)))


class DriveHealth(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Health of one drive; None of what its logs do not have. Counters are of its whole life.

    Attributes:
        io: what the host has read and written.
        io_of_job: the same since the drive took the job.
        critical_warning: bits, see `WARNINGS`.
        temperature_celsius, hottest_celsius: the composite one, and that of its hottest sensor.
        available_spare, spare_threshold, used: ratios of the spare blocks and of the rated life.
        busy_minutes: in which the controller had commands.
        power_cycles, power_on_hours, unsafe_shutdowns, media_errors, error_log_entries: as they are called.
        throttle_transitions, throttle_seconds: of thermal management, both stages.
        power_watts: mean over the drive's last measuring interval.
        ocp_version: of the OCP log page C0h, from which all below come.
        throttling: level at which it is throttled now, 0 for none.
        throttle_events: how often that began.
        media_written_bytes, media_read_bytes: to and from flash, the drive's own work included.
        bad_user_blocks, uncorrectable_reads: of flash.
        capacitor_health: ratio; None of a drive without capacitors.
        power_loss_starts: times that the protection against loss of power began to work.
    """

    io: IoCounters = msgspec.field(default_factory=IoCounters)
    io_of_job: IoCounters | None = None
    critical_warning: Byte | None = None
    temperature_celsius: Celsius | None = None
    hottest_celsius: Celsius | None = None
    available_spare: Ratio | None = None
    spare_threshold: Ratio | None = None
    used: Ratio | None = None
    busy_minutes: Count | None = None
    power_cycles: Count | None = None
    power_on_hours: Count | None = None
    unsafe_shutdowns: Count | None = None
    media_errors: Count | None = None
    error_log_entries: Count | None = None
    throttle_transitions: Count | None = None
    throttle_seconds: Count | None = None
    power_watts: Annotated[float, Meta(ge=0, le=1000)] | None = None
    ocp_version: Byte | None = None
    throttling: Byte | None = None
    throttle_events: Count | None = None
    media_written_bytes: Count | None = None
    media_read_bytes: Count | None = None
    bad_user_blocks: Count | None = None
    uncorrectable_reads: Count | None = None
    capacitor_health: Annotated[float, Meta(ge=0, le=655.35)] | None = None
    power_loss_starts: Count | None = None

    @property
    def warnings(self) -> list[str]:
        """What the critical warning says, in words; bits that the specification reserves by their numbers."""
        set_bits = (bit for bit in range(8) if (self.critical_warning or 0) >> bit & 1)
        return [WARNINGS[bit] if bit < len(WARNINGS) else f"bit {bit}" for bit in set_bits]

    def has_throttled(self, before: DriveHealth) -> bool:
        """Whether it is throttled now, or was since `before`."""
        counters = ("throttle_events", "throttle_transitions")
        return bool(self.throttling) or any(_growth(getattr(self, name), getattr(before, name)) for name in counters)


def _growth(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None or now < before else now - before
