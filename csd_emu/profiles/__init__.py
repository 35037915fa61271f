"""Profiles of drives and hosts; every figure has its source or says `assumed`."""

from csd_emu.profiles.profile import PARALLEL_PHASES, REFERENCE_HERTZ, HostRatio, Power, Profile, Sourced
from csd_emu.profiles.profile_files import built_in_profiles, get_profile, user_profiles

PROFILES = built_in_profiles()

__all__ = [
    "PARALLEL_PHASES",
    "PROFILES",
    "REFERENCE_HERTZ",
    "HostRatio",
    "Power",
    "Profile",
    "Sourced",
    "get_profile",
    "user_profiles",
]
