"""Scrapers of a run and their intervals; a run that has ended waits until its last figures have been fetched."""

from __future__ import annotations

from dataclasses import dataclass

# How long to wait for a scraper that came once and whose interval is not known, and for any at most.
FIRST_GUESS_SECONDS = 5.0
LONGEST_SECONDS = 20.0
# A scraper is late if it does not come within its interval times this.
_PATIENCE = 1.5
_MOST_SCRAPERS = 16


@dataclass(frozen=True)
class _Scraper:
    last_seconds: float
    interval_seconds: float
    revision: int


class Scrapers:
    """Scrapers by name, each with its last visit. Moments are seconds of any one clock."""

    def __init__(self) -> None:
        """Nobody has come yet."""
        self._known: dict[str, _Scraper] = {}

    def note(self, name: str, revision: int, now_seconds: float) -> None:
        """Note that `name` has got the state of this revision."""
        if (before := self._known.get(name)) is not None or len(self._known) < _MOST_SCRAPERS:
            interval = FIRST_GUESS_SECONDS / _PATIENCE if before is None else now_seconds - before.last_seconds
            self._known[name] = _Scraper(now_seconds, interval, revision)

    def wait_seconds(self, revision: int, now_seconds: float) -> float:
        """Return how long to wait for those that will come again and have not got `revision`; 0 if there is none."""
        due = (
            min(LONGEST_SECONDS, _PATIENCE * scraper.interval_seconds) - (now_seconds - scraper.last_seconds)
            for scraper in self._known.values()
            if scraper.revision < revision
        )
        return max(0.0, *due, 0.0)
