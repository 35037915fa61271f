"""Parameters of the modelled core: clock, caches, latencies, prefetcher and memory."""

from __future__ import annotations

import hashlib

import msgspec

from firmware_agent.common.errors import ConfigurationError

# Raised when the model comes to count other cycles of the same code: tables of before are of another core.
MODEL_VERSION = 3


class CoreParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Cortex-A53 and its memory. docs/cycles.md has the source of each figure.

    Attributes:
        clock_megahertz: turns the memory's nanoseconds into cycles.
        l1_data_kibibytes, l1_instruction_kibibytes, l2_kibibytes: sizes of the caches.
        l2_cycles: more than the first level, of a load that the second level has.
        dram_nanoseconds: beyond the second level, of a load that neither has.
        dram_megabytes_per_second: of the memory's bus, for one core.
        line_fills: misses of the first level that can be under way at once.
        prefetch_streams: that the prefetcher follows at once; 0 for no prefetcher.
        prefetch_lines: how far ahead of a stream it reads, and how many lines are under way at once.
        mispredict_cycles: lost at a branch that was predicted wrongly.
    """

    clock_megahertz: int = 1000
    l1_data_kibibytes: int = 32
    l1_instruction_kibibytes: int = 32
    l2_kibibytes: int = 512
    l2_cycles: int = 12
    dram_nanoseconds: int = 110
    dram_megabytes_per_second: int = 4000
    line_fills: int = 3
    prefetch_streams: int = 4
    prefetch_lines: int = 5
    mispredict_cycles: int = 8

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigurationError: no such core can be.
        """
        for name, (low, high) in RANGES.items():
            value, of_cache = getattr(self, name), name.endswith("_kibibytes")
            if not low <= value <= high or (of_cache and value & (value - 1)):
                raise ConfigurationError(
                    f"{name}: {value} is no core's; {low} to {high} can be modelled"
                    f"{', powers of two alone' if of_cache else ''}"
                )

    def options(self) -> str:
        """Return the parameters as the plugin takes them: ``name=value``, with commas between."""
        return ",".join(f"{name}={value}" for name, value in msgspec.structs.asdict(self).items())

    @property
    def digest(self) -> str:
        """16 hex digits that another core, or another version of the model, would not have."""
        return hashlib.sha256(f"{MODEL_VERSION} {self.options()}".encode()).hexdigest()[:16]


# The plugin has the same (core_model/core.c), for it is started by hand too.
RANGES = {
    "clock_megahertz": (100, 5000),
    "l1_data_kibibytes": (4, 64),
    "l1_instruction_kibibytes": (4, 64),
    "l2_kibibytes": (64, 4096),
    "l2_cycles": (1, 200),
    "dram_nanoseconds": (1, 2000),
    "dram_megabytes_per_second": (50, 100_000),
    "line_fills": (1, 8),
    "prefetch_streams": (0, 8),
    "prefetch_lines": (1, 16),
    "mispredict_cycles": (0, 50),
}
