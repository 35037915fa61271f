"""What one device returned from a federated round."""

from __future__ import annotations

from dataclasses import dataclass

from firmware_agent.common.slices import Array
from host.core.tensor_sums import Scan
from host.fleet.device_session import DeviceSession
from host.training.accounting import DeviceReport


@dataclass(frozen=True)
class RoundAnswer:
    """What one device returned from a round; the weights' memory goes back to the session once they are aggregated."""

    session: DeviceSession
    weights: dict[str, Array]
    returned: DeviceReport
    scan: Scan
