"""Watts from a meter log: idle and active power of a real drive or host, fitted by least squares.

A log is a CSV file with the header ``seconds,utilisation,watts``: seconds that rise, the share of all cores that was
busy (0 to 1), and what the meter showed. The model is watts = idle + active x utilisation.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TextIO

import numpy as np

from csd_emu.profiles import Profile
from firmware_agent.common.errors import ConfigurationError

COLUMNS = ("seconds", "utilisation", "watts")
LEAST_ROWS = 10
# An interval of so many medians is a gap: the meter or the logger stopped.
GAP_FACTOR = 5.0
# Below such a span of utilisation the slope is noise.
LEAST_SPREAD = 0.2


@dataclass(frozen=True)
class Sample:
    """One row of a meter log, and its line in the file."""

    line: int
    seconds: float
    utilisation: float
    watts: float


@dataclass(frozen=True)
class PowerFit:
    """What a log says about power.

    Attributes:
        idle_watts: at utilisation 0.
        active_watts: above idle at utilisation 1, with all cores busy; DRAM is in it.
        idle_standard_error_watts: of `idle_watts`.
        active_standard_error_watts: of `active_watts`.
        residual_watts: root mean square of what the model leaves, over the degrees of freedom.
        samples: rows used.
        seconds: from the first to the last row.
    """

    idle_watts: float
    active_watts: float
    idle_standard_error_watts: float
    active_standard_error_watts: float
    residual_watts: float
    samples: int
    seconds: float


def read_log(path: Path) -> list[Sample]:
    """Read a meter log.

    Raises:
        ConfigurationError: it cannot be read, has another header or too few rows, or a line breaks the rules: no
            number, NaN, utilisation outside 0 to 1, negative watts, time that does not rise, a gap.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = _read_rows(file, path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{path}: cannot be read ({error}); give a CSV file of a meter") from error
    if len(rows) < LEAST_ROWS:
        raise ConfigurationError(f"{path}: has {len(rows)} rows; record at least {LEAST_ROWS}")
    _check_times(path, rows)
    return rows


def fit_power(samples: Sequence[Sample]) -> PowerFit:
    """Return the least-squares fit of watts = idle + active x utilisation.

    Raises:
        ConfigurationError: the samples cannot tell: utilisation hardly varies, or power falls with it.
    """
    use = np.array([sample.utilisation for sample in samples], dtype=np.float64)
    watts = np.array([sample.watts for sample in samples], dtype=np.float64)
    if len(samples) < LEAST_ROWS or float(np.ptp(use)) < LEAST_SPREAD:
        raise ConfigurationError(
            f"the log's utilisation spans less than {LEAST_SPREAD} of all cores, or it has under {LEAST_ROWS} rows; "
            "record the machine both at rest and at work"
        )
    centred = use - use.mean()
    active = float(centred @ watts / (centred @ centred))
    idle = float(watts.mean() - active * use.mean())
    rounding = 1e-9 * float(watts.max())
    if min(idle, active) < -rounding:
        raise ConfigurationError(
            f"the log gives {idle:.3g} W idle and {active:.3g} W more at work, which no machine has; "
            "check that its columns are in step and in watts"
        )
    residual = math.sqrt(float(((watts - idle - active * use) ** 2).sum()) / (len(samples) - 2))
    spread = float(centred @ centred)
    return PowerFit(
        idle_watts=max(0.0, idle),
        active_watts=max(0.0, active),
        idle_standard_error_watts=residual * math.sqrt(1 / len(samples) + float(use.mean()) ** 2 / spread),
        active_standard_error_watts=residual / math.sqrt(spread),
        residual_watts=residual,
        samples=len(samples),
        seconds=samples[-1].seconds - samples[0].seconds,
    )


def fitted_profile(base: Profile, fit: PowerFit, log: str) -> dict[str, object]:
    """Return the content of a profile file: `base` with the fitted watts, whose source is the `log`.

    A meter cannot tell cores from DRAM, so all active watts become the cores' and DRAM has none of its own.
    """
    source = f"fitted: meter log {log}, {fit.samples} rows in {fit.seconds:.6g} s, residual {fit.residual_watts:.3g} W"
    core = fit.active_watts / base.cores.value
    return {
        "base": base.name,
        "idle_power": _figure(fit.idle_watts, fit.idle_standard_error_watts, source),
        "core_power": _figure(core, fit.active_standard_error_watts / base.cores.value, source),
        "dram_power": {"value": "0 W", "source": f"fitted: in core_power, for a meter sees both ({log})"},
    }


def _figure(watts: float, error: float, source: str) -> dict[str, str]:
    return {"value": f"{watts:.6g} W", "source": f"{source}, standard error {error:.2g} W"}


def _read_rows(file: TextIO, path: Path) -> list[Sample]:
    reader = csv.reader(file)
    header = next(reader, [])
    if [name.strip() for name in header] != list(COLUMNS):
        raise ConfigurationError(f"{path}: line 1: the header is {','.join(header)!r}; write {','.join(COLUMNS)!r}")
    return [_sample(path, reader.line_num, row) for row in reader if row]


def _sample(path: Path, line: int, row: list[str]) -> Sample:
    where = f"{path}: line {line}"
    if len(row) != len(COLUMNS):
        raise ConfigurationError(f"{where}: has {len(row)} columns; write {','.join(COLUMNS)}")
    try:
        seconds, utilisation, watts = map(float, row)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {','.join(row)!r} are not three numbers; remove or mend it") from error
    if not all(map(math.isfinite, (seconds, utilisation, watts))):
        raise ConfigurationError(f"{where}: {','.join(row)!r} has a number that is not finite; remove the line")
    if not 0 <= utilisation <= 1:
        raise ConfigurationError(f"{where}: utilisation is {utilisation}; it is a share of all cores, from 0 to 1")
    if watts < 0:
        raise ConfigurationError(f"{where}: watts are {watts}; they cannot be negative")
    return Sample(line, seconds, utilisation, watts)


def _check_times(path: Path, rows: Sequence[Sample]) -> None:
    steps = [after.seconds - before.seconds for before, after in pairwise(rows)]
    for step, row in zip(steps, rows[1:], strict=True):
        if step <= 0:
            raise ConfigurationError(
                f"{path}: line {row.line}: time goes from {row.seconds - step:.9g} s to {row.seconds:.9g} s; "
                "sort the log, or cut it where the clock was set"
            )
    usual = median(steps)
    for step, row in zip(steps, rows[1:], strict=True):
        if step > GAP_FACTOR * usual:
            raise ConfigurationError(
                f"{path}: line {row.line}: a gap of {step:.6g} s, where {usual:.6g} s is usual; "
                "record anew, or cut the log at the gap"
            )
