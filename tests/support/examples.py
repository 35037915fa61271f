"""Number of examples that a law draws: its own, or fewer under the profile `quick` (`make unit`)."""

from hypothesis import settings

QUICK_EXAMPLES = 10


def examples(number: int) -> int:
    """Return how many examples a law that needs `number` of them draws under the profile that is loaded."""
    profile = settings.default.max_examples if settings.default else number
    return min(number, profile) if profile <= QUICK_EXAMPLES else number
