"""What a drive's engine is: the figures of each profile, every one with its source or `assumed`.

A VM under the counted clock is one core that retires one instruction per nanosecond. A profile's CPU is that core times
a scale, never a quota: serial work gets clock x instructions per cycle, parallel kernels also cores x efficiency.
"""

from __future__ import annotations

from dataclasses import dataclass

from firmware_agent.errors import ConfigurationError
from firmware_agent.wire import PhaseSeconds

REFERENCE_HERTZ = 1e9
# Which phases are kernels that a drive spreads over its cores; the others are serial (interpreter, copying).
PARALLEL_PHASES = frozenset({"forward", "backward", "update"})


@dataclass(frozen=True)
class Sourced:
    """A figure and where it comes from; ``assumed`` where nothing published could be read."""

    value: float
    source: str


@dataclass(frozen=True)
class Profile:
    """One class of drive.

    Attributes:
        name: as array files write it.
        cores: CPU cores of the engine.
        clock_hertz: their clock.
        instructions_per_cycle: of training code on one core.
        parallel_efficiency: share of `cores` that parallel kernels gain, 0 to 1.
    """

    name: str
    cores: Sourced
    clock_hertz: Sourced
    instructions_per_cycle: Sourced
    parallel_efficiency: Sourced

    def scale(self, phase: str) -> float:
        """Return what the reference core's seconds of `phase` are multiplied by to become this drive's."""
        speed = self.clock_hertz.value * self.instructions_per_cycle.value / REFERENCE_HERTZ
        if phase in PARALLEL_PHASES:
            speed *= max(1.0, self.cores.value * self.parallel_efficiency.value)
        return 1.0 / speed

    def device_seconds(self, counted: PhaseSeconds) -> PhaseSeconds:
        """Return this drive's seconds for the reference core's `counted` seconds, phase by phase."""
        return PhaseSeconds(
            **{phase: getattr(counted, phase) * self.scale(phase) for phase in PhaseSeconds.__struct_fields__}
        )


_SOLANA = "Solana, ISQED 2022: quad-core ARM Cortex-A53"
PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            name="newport",
            cores=Sourced(4, f"{_SOLANA}, the same controller family"),
            clock_hertz=Sourced(1.0e9, "assumed: third-party notes say 1.0-1.2 GHz"),
            instructions_per_cycle=Sourced(1.0, "assumed"),
            parallel_efficiency=Sourced(0.85, "assumed"),
        ),
        Profile(
            name="generic-a53",
            cores=Sourced(1, "by definition: the reference core itself"),
            clock_hertz=Sourced(1.0e9, "by definition"),
            instructions_per_cycle=Sourced(1.0, "by definition"),
            parallel_efficiency=Sourced(1.0, "by definition"),
        ),
    )
}


def get_profile(name: str) -> Profile:
    """Return the profile called `name`.

    Raises:
        ConfigurationError: there is none.
    """
    if name not in PROFILES:
        raise ConfigurationError(f"profile {name!r} is not known; choose one of: {', '.join(PROFILES)}")
    return PROFILES[name]
