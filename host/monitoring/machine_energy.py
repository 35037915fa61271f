"""Energy of the machine that runs a run, where its processors count it."""

from __future__ import annotations

import msgspec

from csd_emu.engines.rapl import RaplMeter
from host.core.records import RoundRecord


class MachineMeter:
    """Adds the machine's joules to the records of rounds."""

    def __init__(self, meter: RaplMeter | None) -> None:
        """Take a meter that was just opened, or None where there is none."""
        self._meter, self._before = meter, 0.0

    def metered(self, record: RoundRecord) -> RoundRecord:
        """Return the record with the joules since the record before; as it is, where nothing counts them."""
        if self._meter is None:
            return record
        try:
            now = self._meter.joules()
        except OSError:  # the counters are a module of the kernel's, and may be unloaded
            self._meter = None
            return record
        spent, self._before = now - self._before, now
        return msgspec.structs.replace(record, machine_joules=spent)
