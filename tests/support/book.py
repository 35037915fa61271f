"""A store of several servers in memory, as `host.training.multi_server` uses one."""

from __future__ import annotations

import threading

import msgspec

from host.training.multi_server.membership import Claim

KEY = "hall/run"


class Book:
    """A store of counters and texts in memory."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, key: str, amount: int, /) -> int:
        with self._lock:
            self.counts[key] = self.counts.get(key, 0) + amount
            return self.counts[key]

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        with self._lock:
            if self.texts.get(key, "") == expected:
                self.texts[key] = desired
            return self.texts.get(key, "").encode()

    def read(self, keys: list[str], /) -> list[bytes | None]:
        with self._lock:
            return [self.texts[key].encode() if self.texts.get(key) else None for key in keys]

    def forget(self, prefix: str, /) -> None:
        with self._lock:
            for entries in (self.texts, self.counts):
                for key in [key for key in entries if key.startswith(prefix)]:
                    del entries[key]  # type: ignore[attr-defined]

    def claim(self) -> Claim | None:
        text = self.texts.get(KEY, "")
        return msgspec.json.decode(text, type=Claim) if text else None

    def add_member(self, server: str) -> None:
        """One that is lost without a word."""
        claim = self.claim()
        assert claim is not None
        lost = msgspec.structs.replace(claim, members=claim.members | {server: "lost"})
        self.texts[KEY] = msgspec.json.encode(lost).decode()
