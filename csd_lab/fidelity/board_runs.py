"""What `guest/board_run.sh` wrote of a program's repetitions on a board, and whether the board throttled. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from csd_lab.fidelity.board_facts import clean_text
from firmware_agent.common.errors import DriveUnfit

# The clock may fall so far below what it was, and the last repetition may differ so far from the first.
MOST_CLOCK_FALL, MOST_DRIFT = 0.02, 0.05
# Of Raspberry Pi's firmware, now; the same since boot is 16 bits higher (Raspberry Pi documentation, vcgencmd
# get_throttled, read 2026-11-27).
_FIRMWARE_FLAGS = {0: "under-voltage", 1: "clock capped", 2: "throttled", 3: "soft temperature limit"}
_SINCE_BOOT = 16
_CLOCK_KHZ, _MILLIDEGREES = (10_000, 10_000_000), (-50_000, 200_000)
_WHEN = ("before", "during", "after")
_MOST_LINES, _MOST_TEMPERATURES = 100_000, 16


@dataclass(frozen=True)
class BoardSample:
    """Clock and heat of a core at one moment; None: the board does not say, or says nonsense.

    Attributes:
        when: before, during or after a repetition.
        clock_khz, most_khz: of the core as the system says, now and at most.
        firmware: flags of Raspberry Pi's firmware.
        celsius: of the hottest sensor.
    """

    when: str
    clock_khz: int | None = None
    most_khz: int | None = None
    firmware: int | None = None
    celsius: float | None = None


@dataclass(frozen=True)
class Repetition:
    """One run of a program: what it wrote, and samples from before to after it."""

    output: str
    samples: tuple[BoardSample, ...]


def parse_run(where: str, text: str, repetitions: int) -> list[Repetition]:
    """Return the repetitions that the script wrote.

    Args:
        where: names board and program in errors.
        text: of the other side.
        repetitions: that were asked for.

    Raises:
        DriveUnfit: one failed, or there are fewer or more of them.
    """
    runs: list[Repetition] = []
    output: list[str] = []
    errors: list[str] = []
    samples: list[BoardSample] = []
    for line in text.splitlines()[:_MOST_LINES]:
        kind, _, rest = line.partition(" ")
        if kind == "sample" and (sample := parse_sample(rest)) is not None:
            samples.append(sample)
        elif kind in ("out", "err"):
            (output if kind == "out" else errors).append(rest)
        elif kind == "ended":
            if rest != "0":
                said = clean_text((errors or output or ["it said nothing"])[-1])
                raise DriveUnfit(f"{where} failed (exit code {clean_text(rest)}): {said}{_hint(rest, said)}")
            runs.append(Repetition("\n".join(output), tuple(samples)))
            output, errors, samples = [], [], []
    if len(runs) != repetitions:
        raise DriveUnfit(f"{where}: {len(runs)} of {repetitions} repetitions came to their end; try again")
    return runs


def _hint(code: str, said: str) -> str:
    if code == "137":
        return " (killed: it took too long, or the memory was short)"
    return "; is /tmp mounted noexec there?" if "ermission denied" in said else ""


def parse_sample(text: str) -> BoardSample | None:
    """Return a sample from the words behind ``sample``; None if they are none."""
    words = text.split()[: 4 + _MOST_TEMPERATURES]
    if len(words) < 4 or words[0] not in _WHEN:
        return None
    degrees = [value for word in words[4:] if (value := _number(word, _MILLIDEGREES)) is not None]
    firmware = words[3].removeprefix("0x")
    return BoardSample(
        words[0],
        _number(words[1], _CLOCK_KHZ),
        _number(words[2], _CLOCK_KHZ),
        int(firmware, 16) if re.fullmatch(r"[0-9a-fA-F]{1,8}", firmware) else None,
        max(degrees) / 1000 if degrees else None,
    )


def _number(word: str, limits: tuple[int, int]) -> int | None:
    """Return a whole number within limits; None of all else."""
    if not re.fullmatch(r"-?\d{1,9}", word):
        return None
    return number if limits[0] <= (number := int(word)) <= limits[1] else None


def running_clocks(samples: Sequence[BoardSample]) -> list[int]:
    """Return the clocks while a program ran, in kHz; none of one that ended before the first look.

    Before and after it a core may idle at a lower clock.
    """
    return [each.clock_khz for each in samples if each.when == "during" and each.clock_khz is not None]


def find_throttling(samples: Sequence[BoardSample], highest_khz: int = 0) -> str:
    """Return what says that a board throttled; empty if nothing does.

    Args:
        samples: of all repetitions, in order.
        highest_khz: of the clocks while programs ran before; 0 if none did.
    """
    clocks = running_clocks(samples)
    if clocks and min(clocks) < (begin := max(highest_khz, clocks[0])) * (1 - MOST_CLOCK_FALL):
        return f"its clock fell from {begin / 1000:.0f} to {min(clocks) / 1000:.0f} MHz"
    flags = [each.firmware for each in samples if each.firmware is not None]
    for bit, name in _FIRMWARE_FLAGS.items():
        # Linux' driver reads the flags and clears them, so that one may be set in the middle alone.
        began = flags and any(value & ~flags[0] & 1 << bit + _SINCE_BOOT for value in flags)
        if began or any(value & 1 << bit for value in flags):
            return f"its firmware says: {name}"
    return ""


def find_drift(values: Sequence[float]) -> str:
    """Return how far the last of the repetitions' figures differs from the first, if too far; else an empty text.

    Args:
        values: seconds, or a rate; positive.
    """
    if not values or abs(drift := values[-1] / values[0] - 1) <= MOST_DRIFT:
        return ""
    return f"its last repetition differs from the first by {drift:+.0%}"


def hottest(samples: Sequence[BoardSample]) -> float | None:
    """Return the highest temperature in degrees Celsius; None if none is known."""
    return max((each.celsius for each in samples if each.celsius is not None), default=None)


def reported_megahertz(samples: Sequence[BoardSample]) -> float | None:
    """Return the highest clock that the system told; None if it told none."""
    clocks = [each.clock_khz for each in samples if each.clock_khz is not None]
    return max(clocks) / 1000 if clocks else None
