"""Cores of one cluster: how much faster several are than one, given what they ask of the DRAM that they share."""

from __future__ import annotations


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
