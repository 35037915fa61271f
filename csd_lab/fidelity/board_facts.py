"""What a board is, from what `guest/board_facts.sh` wrote there. Pure; nothing of it is believed unchecked."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from firmware_agent.common.errors import DriveUnfit

# Who made a Cortex-A53, and its part number: ARM's MIDR_EL1, as /proc/cpuinfo has it.
_A53 = (0x41, 0xD03)
_MOST_CORES, _MOST_LINES, _MOST_CHARACTERS = 4096, 20_000, 80
_MACHINES = ("aarch64", "arm64")
_TOOLS = ("taskset", "tar", "head", "tail", "tr", "sed", "mktemp")
_CORE_NUMBER = re.compile(r"\d{1,4}")
_PART = re.compile(r"(?:0x)?[0-9a-fA-F]{1,4}")
_PYTHON = re.compile(r"cp3\d{1,2}")
_TORCH = re.compile(r"(\d{1,3})\.(\d{1,3})[0-9A-Za-z.+]{0,40}")


class BoardFacts(msgspec.Struct, frozen=True):
    """A board with 64-bit ARM Linux and Cortex-A53 cores.

    Attributes:
        model: as its device tree says; the kernel's release if it says nothing.
        kernel: its release.
        a53_cores: numbers of the cores that are Cortex-A53 and online.
        other_cores: how many others are.
        memory_bytes: None if not known.
        python: tag of its `python3` as wheels have it, `cp311`; empty if it has none.
        torch: release that this Python imports with all that the agent's training steps need; empty if it does not.
        torch_problem: why not; empty if it does.
    """

    model: str
    kernel: str
    a53_cores: list[int]
    other_cores: int
    memory_bytes: int | None
    python: str
    torch: str
    torch_problem: str

    @property
    def core(self) -> int:
        """The core to measure on: the last Cortex-A53, for the first takes most interrupts."""
        return self.a53_cores[-1]


def parse_facts(where: str, text: str) -> BoardFacts:
    """Return the facts in what the script wrote.

    Args:
        where: names the board in errors.
        text: of the other side; of too many lines the first count.

    Raises:
        DriveUnfit: the script did not come to its end, or csd-emu's programs do not run there.
    """
    lines = [line.partition("=") for line in text.splitlines()[:_MOST_LINES]]
    found = {key: clean_text(value) for key, _, value in reversed(lines)}
    if "end" not in found:
        raise DriveUnfit(f"{where}: the script that reads its facts did not come to its end; log in and run /bin/sh")
    system, machine = found.get("system", ""), found.get("machine", "")
    if system != "Linux" or machine not in _MACHINES:
        raise DriveUnfit(
            f"{where}: runs {system or 'an unknown system'} on {machine or 'an unknown machine'}; the programs are for "
            "64-bit ARM Linux (uname -m: aarch64), so install a 64-bit system there"
        )
    parts = dict(_cores(lines))
    a53 = sorted(core for core, part in parts.items() if part == _A53)
    if not a53:
        kinds = sorted({f"implementer {made:#x} part {part:#x}" for made, part in parts.values()})
        raise DriveUnfit(
            f"{where}: none of its {len(parts)} cores is a Cortex-A53, which the core model is of "
            f"({', '.join(kinds[:4]) or '/proc/cpuinfo names none'}); name a board that has one"
        )
    tools = {clean_text(value) for key, _, value in lines if key == "tool"}
    if missing := [tool for tool in _TOOLS if tool not in tools]:
        raise DriveUnfit(f"{where}: lacks {', '.join(missing)}; install coreutils, sed, tar and util-linux there")
    kernel, kib, torch = found.get("kernel", ""), found.get("memory_kib", ""), found.get("torch", "")
    return BoardFacts(
        model=found.get("model") or f"board with Linux {kernel}",
        kernel=kernel,
        a53_cores=a53,
        other_cores=len(parts) - len(a53),
        memory_bytes=int(kib) * 1024 if re.fullmatch(r"\d{1,12}", kib) else None,
        python=found["python"] if _PYTHON.fullmatch(found.get("python", "")) else "",
        torch=torch if _TORCH.fullmatch(torch) else "",
        torch_problem="" if _TORCH.fullmatch(torch) else torch or "there is no python3",
    )


def is_older(release: str, wanted: str) -> bool:
    """Return whether a release of torch is older than another, by its first two numbers; so is one without."""
    numbers = [tuple(map(int, match.groups())) if (match := _TORCH.match(each)) else () for each in (release, wanted)]
    return numbers[0] < numbers[1]


def clean_text(text: str) -> str:
    """Return a text of the other side without what a terminal or a table would obey, and not too long."""
    return "".join(each if each.isprintable() and each.isascii() else "?" for each in text.strip()[:_MOST_CHARACTERS])


def _cores(lines: list[tuple[str, str, str]]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield number, implementer and part of each core; a line that makes no sense is passed over."""
    number, made = None, 0
    for key, _, value in lines:
        value = value.strip()
        if key == "processor":
            number, made = int(value) if _CORE_NUMBER.fullmatch(value) and int(value) < _MOST_CORES else None, 0
        elif key in ("implementer", "part") and _PART.fullmatch(value):
            if key == "implementer":
                made = int(value, 16)
            elif number is not None:
                yield number, (made, int(value, 16))
