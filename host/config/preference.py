"""Preference of a planner: time, power, energy, their product, or weights. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from firmware_agent.common.errors import ConfigurationError

QUANTITIES = ("time", "power", "energy")
NAMED = {
    "time": {"time": 1.0},
    "power": {"power": 1.0},
    "energy": {"energy": 1.0},
    "edp": {"energy": 1.0, "time": 1.0},
}
_HOW = "write time, power, energy, edp, or weights such as time=2,energy=1"


@dataclass(frozen=True)
class Preference:
    """Weights of the logarithms of time, power and energy: less of the weighted sum is better.

    So units do not matter, edp is time and energy with equal weights, and time=2,energy=1 is energy x time squared.
    """

    time: float = 0.0
    power: float = 0.0
    energy: float = 0.0

    @property
    def label(self) -> str:
        """As a person, and `parse_preference`, reads it."""
        weights = {name: getattr(self, name) for name in QUANTITIES if getattr(self, name)}
        listed = ",".join(f"{name}={weight:g}" for name, weight in weights.items())
        return next((name for name, known in NAMED.items() if weights == known), listed)

    def score(self, seconds: float, watts: float, joules: float) -> float:
        """Return the weighted sum of logarithms; all three must be positive."""
        pairs = ((self.time, seconds), (self.power, watts), (self.energy, joules))
        return sum(weight * math.log(value) for weight, value in pairs if weight)


def parse_preference(text: str) -> Preference:
    """Return the preference that `text` says.

    Raises:
        ConfigurationError: it does not parse.
    """
    if (known := NAMED.get(text.strip())) is not None:
        return Preference(**known)
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (each.strip() for each in part.partition("="))
        # A value that is one word is named once.
        where = "prefer" if name == text.strip() else f"prefer: {text!r}"
        if name not in QUANTITIES:
            raise ConfigurationError(f"{where}: {name!r} is no quantity; {_HOW}")
        if name in weights:
            raise ConfigurationError(f"{where}: {name!r} is there twice; give it one weight")
        weights[name] = _weight(text, number)
    if not any(weights.values()):
        raise ConfigurationError(f"prefer: {text!r}: all weights are 0; {_HOW}")
    return Preference(**weights)


def _weight(text: str, number: str) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not 0 <= weight <= 100:
        raise ConfigurationError(f"prefer: {text!r}: {number!r} is no weight from 0 to 100; {_HOW}")
    return weight
