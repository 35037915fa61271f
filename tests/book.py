"""A store of several servers in memory, as `host.servers` uses torch's."""

from __future__ import annotations

import threading
import time

import msgspec

from host.servers.membership import Claim

KEY = "hall/run"


class Book:
    """A store of counters and texts in memory, whose clock is off by `skew_seconds`."""

    def __init__(self, skew_seconds: float = 0.0) -> None:
        self.texts: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.skew_seconds, self._lock = skew_seconds, threading.Lock()

    def add(self, key: str, amount: int, /) -> int:
        with self._lock:
            self.counts[key] = self.counts.get(key, 0) + amount
            return self.counts[key]

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        with self._lock:
            if self.texts.get(key, "") == expected:
                self.texts[key] = desired
            return self.texts.get(key, "").encode()

    def get(self, key: str, /) -> bytes:
        return repr(time.time() + self.skew_seconds).encode() if key == "time" else self.texts[key].encode()

    def check(self, keys: list[str], /) -> bool:
        return all(key in self.texts for key in keys)

    def claim(self) -> Claim | None:
        text = self.texts.get(KEY, "")
        return msgspec.json.decode(text, type=Claim) if text else None

    def add_member(self, server: str) -> None:
        """One that is lost without a word."""
        claim = self.claim()
        assert claim is not None
        lost = msgspec.structs.replace(claim, members=claim.members | {server: "lost"})
        self.texts[KEY] = msgspec.json.encode(lost).decode()
