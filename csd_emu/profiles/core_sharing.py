"""Cores of one cluster: how much faster several are than one, given what they ask of the DRAM that they share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Raised when the law comes to give another gain for the same figures: seconds of before are of another law.
SHARING_VERSION = 2
# Part of a phase that runs on one core. Derived: with it ncnn's networks gain of two cores of an AXERA AX630C what is
# published, in the median (docs/boards.md, 0.0798). Kernels of torch are assumed to be alike: docs/cycles.md says what
# was counted of its threads, and why that is not used. Phases that are not here are serial.
SERIAL_SHARES: Mapping[str, float] = MappingProxyType(dict.fromkeys(("forward", "backward", "update", "tail"), 0.08))


def speed_up(dram_share: float, cores: int, serial_share: float) -> float:
    """Return how much faster work is on so many equal cores than on one.

    A share s of it runs on one core, the rest on all: ``1 / (s + (1 - s) / x(n))`` (Amdahl, AFIPS 1967). Of what they
    share a core spends u on the bus of DRAM, where the cores queue, and 1 - u elsewhere. That is a closed network with
    one queue, for which mean value analysis is exact: ``r(k) = u (1 + q(k - 1))``, ``x(k) = k / (1 - u + r(k))``,
    ``q(k) = x(k) r(k)`` (Reiser and Lavenberg, JACM 27 (2), 1980, eq. 3.1 to 3.3).

    Args:
        dram_share: u, of one core's time; more than 1 is taken for 1.
        cores: n, at least 1.
        serial_share: s, 0 to 1.
    """
    share, rate, queued = min(dram_share, 1.0), 1.0, 0.0
    for count in range(1, cores + 1):
        response = share * (1 + queued)
        rate = count / (1 - share + response)
        queued = rate * response
    return 1 / (serial_share + (1 - serial_share) / rate)


def phase_gain(phase: str, dram_share: float, cores: int) -> float:
    """Return how much faster a phase of a training step is on so many cores than one core was counted to be.

    `speed_up` with the phase's serial share. One core that asks more than the bus carries, u > 1, takes u times as long
    to begin with, so that no number of cores moves more bytes than the bus: the gain is 1 / u then.

    Args:
        phase: of a step; one that is not in `SERIAL_SHARES` is serial.
        dram_share: u, bytes that one core was counted to move per second, over what the bus carries; 0 or more.
        cores: n, at least 1.
    """
    return speed_up(dram_share, cores, SERIAL_SHARES.get(phase, 1.0)) / max(1.0, dram_share)


def core_model_constants(core_model: str) -> dict[str, dict[str, float]]:
    """Return the constants that decide seconds of a core model beside tables and profiles; for hashes and baselines.

    Of ``cycles`` they are version and serial shares of this module, under one key; ``instructions`` has none.
    """
    return {"core_sharing": {"version": SHARING_VERSION, **SERIAL_SHARES}} if core_model == "cycles" else {}
