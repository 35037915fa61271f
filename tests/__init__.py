"""The tests: unit (by package), contract, integration, vm and compose; what they share is in `support`."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
