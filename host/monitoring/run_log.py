"""A run in the log: each event, and each round that ends."""

from __future__ import annotations

import logging
from math import isfinite

from host.core.console import tell
from host.core.records import EventRecord, RoundRecord
from host.monitoring.run_listener import RunListener

log = logging.getLogger(__name__)


class RunLog(RunListener):
    """Logs one run."""

    def __init__(self, last_round: int = 0) -> None:
        """Begin a run, or go on behind `last_round` of one that is resumed, whose rounds are not logged again."""
        self._last_round = last_round
        tell(run=None, round=last_round or None)

    def add_event(self, event: EventRecord, listed: bool = True) -> None:
        """Log an event that is listed."""
        if listed:
            log.info("%s", event.detail or event.what, extra={"drive": event.device, "event": str(event.what)})

    def add_round(self, record: RoundRecord) -> None:
        """Log the end of a round."""
        if record.round > self._last_round:
            tell(round=record.round)
            classes = isfinite(record.accuracy)
            what, value = ("accuracy", record.accuracy) if classes else ("loss", record.test_loss)
            log.info("round %d: %s %.4f after %.3f array seconds", record.round, what, value, record.array_seconds)
