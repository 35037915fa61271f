"""Token bucket with the clock handed in: it says when bytes have passed."""

from __future__ import annotations

from firmware_agent.common.errors import ConfigurationError


class TokenBucket:
    """Serves bytes in the order of asking, at one rate; all times are seconds of one clock that never runs back.

    Between any two moments s < t at most rate * (t - s) + burst bytes have passed. Who asks late, by no more than the
    burst lasts, loses nothing: what was not used meanwhile is made good.
    """

    def __init__(self, bytes_per_second: float, burst_seconds: float, now: float) -> None:
        """Begin with a full bucket.

        Args:
            bytes_per_second: of what passes.
            burst_seconds: at most the bytes of so many seconds pass at once after a rest.
            now: the clock.

        Raises:
            ConfigurationError: the rate is not positive, or the burst negative.
        """
        if burst_seconds < 0:
            raise ConfigurationError(f"a bucket's burst of {burst_seconds} s is negative")
        self._burst_seconds = burst_seconds
        self._seconds_per_byte = _inverse(bytes_per_second)
        # When what was asked for so far has passed, at the rate.
        self._free_at = now - burst_seconds

    def take(self, size_bytes: int, now: float) -> float:
        """Return when the last of `size_bytes`, asked for now, has passed: `now` at the earliest."""
        begin = max(self._free_at, now - self._burst_seconds)
        self._free_at = begin + size_bytes * self._seconds_per_byte
        return max(now, self._free_at)

    def change(self, bytes_per_second: float, now: float) -> None:
        """Serve what has not passed yet, and all that is asked for later, at another rate."""
        old, self._seconds_per_byte = self._seconds_per_byte, _inverse(bytes_per_second)
        self._free_at = now + (self._free_at - now) * self._seconds_per_byte / old if self._free_at > now else now


def _inverse(bytes_per_second: float) -> float:
    if not bytes_per_second > 0:
        raise ConfigurationError(f"a bucket's rate is {bytes_per_second!r}; it must be a positive number")
    return 1 / bytes_per_second
