"""What `csd-emu profiles` and `csd-emu power fit` report."""

from __future__ import annotations

from pathlib import Path

import yaml

from csd_emu.meter import fit_power, fitted_profile, read_log
from csd_emu.paths import Paths
from csd_emu.profiles import PROFILES, Profile, get_profile, user_profiles
from csd_emu.profiles.files import check_name
from firmware_agent.errors import ConfigurationError, EnvironmentUnfit
from host.files import replace_file
from host.outputs import FigureEntry, PowerFitReport, ProfileEntry, ProfilesReport


def report_profiles(name: str | None, paths: Paths) -> ProfilesReport:
    """Return every figure of the profile called `name`, or of all: the built-in ones and the user's.

    Raises:
        ConfigurationError: there is no such profile, or a user's file is wrong.
    """
    if name is not None:
        return ProfilesReport([_entry(get_profile(name, paths.profiles))])
    return ProfilesReport(
        [_entry(profile) for profile in [*PROFILES.values(), *user_profiles(paths.profiles).values()]]
    )


def fit_log(log: Path, profile: str, name: str, paths: Paths) -> PowerFitReport:
    """Fit the watts in a meter's `log` and write the user profile `name`: `profile` with these watts.

    Raises:
        ConfigurationError: the log is bad, there is no such profile, or the name is taken.
        EnvironmentUnfit: the profile cannot be written.
    """
    base = get_profile(profile, paths.profiles)
    check_name(name, "--name")
    path = paths.profiles / f"{name}.yaml"
    if path.exists():
        raise ConfigurationError(
            f"{path}: there is a profile {name!r} already; choose another --name, or remove the file"
        )
    fit = fit_power(read_log(log))
    text = yaml.safe_dump(fitted_profile(base, fit, log.name), sort_keys=False, allow_unicode=True, width=120)
    _write_new(path, text)
    return PowerFitReport(
        profile=name,
        path=str(path),
        base=base.name,
        samples=fit.samples,
        seconds=fit.seconds,
        idle_watts=fit.idle_watts,
        idle_standard_error_watts=fit.idle_standard_error_watts,
        active_watts=fit.active_watts,
        active_standard_error_watts=fit.active_standard_error_watts,
        residual_watts=fit.residual_watts,
    )


def _entry(profile: Profile) -> ProfileEntry:
    figures = [
        FigureEntry(name, figure.value, figure.unit, figure.source, figure.assumed)
        for name, figure in profile.sources().items()
    ]
    return ProfileEntry(profile.name, profile.kind, figures)


def _write_new(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode("utf-8"))
    except OSError as error:
        raise EnvironmentUnfit(
            f"{path}: the profile cannot be written ({error}); free space or mend its folder"
        ) from error
