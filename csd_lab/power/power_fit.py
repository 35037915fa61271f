"""`csd-emu power fit`: a profile with the watts of a meter log, as JSON and for people."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml
from rich.markup import escape

from csd_emu.profiles import get_profile
from csd_emu.profiles.profile_files import check_name
from csd_emu.util.paths import Paths
from csd_lab.power.meter_log import fit_power, fitted_profile, read_log
from firmware_agent.common.errors import ConfigurationError
from host.core.console import console
from host.core.owned_files import write_whole


class PowerFitReport(msgspec.Struct, frozen=True):
    """`csd-emu power fit`: watts from a meter log, and the profile written with them.

    `active_watts` is what all busy cores draw above `idle_watts`; `residual_watts` what the model leaves (root mean
    square).
    """

    profile: str
    path: str
    base: str
    samples: int
    seconds: float
    idle_watts: float
    idle_standard_error_watts: float
    active_watts: float
    active_standard_error_watts: float
    residual_watts: float


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
    write_whole(path, text.encode(), "free space or mend its folder", "the profile", folder=True)
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


def print_power_fit(report: PowerFitReport) -> None:
    """Print fitted watts with their standard errors, and where the profile is."""
    console.print(f"idle   {report.idle_watts:.3f} W, standard error {report.idle_standard_error_watts:.3f} W")
    console.print(f"active {report.active_watts:.3f} W more, standard error {report.active_standard_error_watts:.3f} W")
    console.print(f"residual {report.residual_watts:.3f} W over {report.samples} rows in {report.seconds:.6g} s")
    console.print(f"profile {report.profile} (on {report.base}): {escape(report.path)}")
