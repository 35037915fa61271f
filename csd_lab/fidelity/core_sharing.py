"""Cores of one cluster: how much faster several are than one, given what they ask of the DRAM that they share."""

from __future__ import annotations


def seconds_on_cores(
    one_core_seconds: float, dram_bytes: float, cores: float, serial_share: float, dram_bytes_per_second: float
) -> float:
    """Return the seconds that work takes on so many equal cores.

    A share of it runs on one core, the rest on all (Amdahl, AFIPS 1967), and all together move their bytes no faster
    than DRAM gives them (the roofline of Williams, Waterman and Patterson, CACM 52 (4), 2009):
    ``max(T (s + (1 - s) / n), bytes / bandwidth)``, and no longer than on one core.

    Args:
        one_core_seconds: T.
        dram_bytes: that cross the bus.
        cores: n, at least 1.
        serial_share: s, 0 to 1.
        dram_bytes_per_second: of all cores together.
    """
    computing = one_core_seconds * (serial_share + (1 - serial_share) / cores)
    return min(one_core_seconds, max(computing, dram_bytes / dram_bytes_per_second))
