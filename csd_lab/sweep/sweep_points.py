"""Points of a sweep: which keys of a job have which values, over which seeds. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from csd_emu.util.yaml_files import parse_yaml
from firmware_agent.common.errors import ConfigurationError

MOST_RUNS = 10_000


@dataclass(frozen=True)
class ValueRange:
    """Numbers that a sampler chooses from.

    Attributes:
        low, high: its ends, both possible.
        whole: whether it has whole numbers alone.
        log: whether their logarithms are chosen evenly.
    """

    low: float
    high: float
    whole: bool
    log: bool = False


Values = Sequence[Any] | ValueRange
Point = dict[str, Any]


def name_point(point: Point) -> Point:
    """Return a point as it can be written down: a class or function by its name."""
    return {key: value.__name__ if callable(value) else value for key, value in point.items()}


def parse_over(text: str) -> tuple[str, Values]:
    """Return the key and values of ``batch_size=16,32,64`` or of a range, ``learning_rate=0.01..0.1`` or ``...:log``.

    Raises:
        ConfigurationError: it is neither.
    """
    key, equals, listed = text.partition("=")
    if not (equals and key.strip() and listed.strip()):
        raise ConfigurationError(f"--over {text}: write KEY=VALUE,VALUE or KEY=LOW..HIGH, as in batch_size=16,32")
    low, dots, high = listed.removesuffix(":log").partition("..")
    if not dots:
        values = parse_yaml(f"[{listed}]", f"--over {text}")
        return key.strip(), values
    ends = [parse_yaml(each, f"--over {text}") for each in (low, high)]
    log = listed.endswith(":log")
    number = all(isinstance(each, int | float) and not isinstance(each, bool) for each in ends)
    if not number or not ends[0] < ends[1] or (log and ends[0] <= 0):
        raise ConfigurationError(f"--over {text}: LOW..HIGH are numbers, the lower first, and above 0 with :log")
    return key.strip(), ValueRange(ends[0], ends[1], all(isinstance(each, int) for each in ends), log)


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of ``0:5``, which are 0 to 4, or ``1,2,7``.

    Raises:
        ConfigurationError: it is neither.
    """
    begin, colon, end = text.partition(":")
    try:
        seeds = list(range(int(begin), int(end))) if colon else [int(each) for each in text.split(",")]
    except (ValueError, OverflowError, MemoryError):
        seeds = []
    if not seeds or len(seeds) > MOST_RUNS or len(set(seeds)) != len(seeds):
        raise ConfigurationError(f"--seeds {text[:40]}: write FIRST:END, as in 0:5, or different numbers, as in 1,2,7")
    return seeds


def list_points(over: Mapping[str, Values]) -> list[Point]:
    """Return every combination of the values.

    Raises:
        ConfigurationError: there is none, a key has a range, or there are too many.
    """
    if ranges := [key for key, values in over.items() if isinstance(values, ValueRange)]:
        raise ConfigurationError(f"{ranges[0]}: a range is sampled, not gone through; give samples, or list its values")
    lists = {key: list(values) for key, values in over.items() if not isinstance(values, ValueRange)}
    check_count(math.prod(len(values) for values in lists.values()))
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def check_count(runs: int) -> None:
    """Return if a sweep may have so many runs.

    Raises:
        ConfigurationError: it has none, or more than `MOST_RUNS`.
    """
    if not 0 < runs <= MOST_RUNS:
        raise ConfigurationError(f"the sweep has {runs} runs; it may have 1 to {MOST_RUNS}")


def by_seed(points: Iterable[Point], seeds: Sequence[int]) -> list[Point]:
    """Return the points with each seed; seeds change last, for drives stay up while seed and data are the same."""
    points = list(points)
    check_count(len(points) * len(seeds))
    return [{**point, "seed": seed} for seed in seeds for point in points]
