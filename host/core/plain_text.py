"""Text for people: counted nouns, and untrusted text without what steers a terminal. Pure."""

from __future__ import annotations

import re

# Control characters but tab and line feed (C0, DEL, C1), marks that turn the direction of writing or are not seen,
# other ends of lines, halves of characters, and the invisible copies of ASCII.
_LONGEST_NAME = 64
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_INSTEAD = "\N{REPLACEMENT CHARACTER}"


def plain(text: str) -> str:
    """Return `text` with a replacement character in place of each that would steer a terminal or hide on it."""
    return _STEERING.sub(_INSTEAD, text.replace("\r\n", "\n"))


def plain_json(data: bytes) -> bytes:
    r"""Return JSON in which such characters are escaped, as ``\u009b``: it says the same.

    JSON has none below U+0020 inside of strings, and none above U+007E outside of them.
    """
    return data if data.isascii() and b"\x7f" not in data else _STEERING.sub(_escape, data.decode()).encode()


def _escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def counted(count: int, name: str) -> str:
    """Return ``1 step`` or ``2 steps``."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def plain_name(text: str) -> str:
    """Return a text as the name of a run: what a name may not have becomes a dash."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:_LONGEST_NAME] or "run"
