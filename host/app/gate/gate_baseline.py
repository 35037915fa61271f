"""The baseline file: what a run's figures were, and everything that says whether another run can be compared with it.

Job and array must be the same. The model's source, the agent, versions and profiles may differ, for what they cost is
what a gate is there to find; they are written down so that a failure can say what has changed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles.core_sharing import core_model_constants
from csd_emu.util.renamed import renamed_figure
from firmware_agent.common.errors import ConfigurationError
from host.app.gate.gate_checks import KINDS, NO_CLOCK, ExpectedFigure
from host.config.job_file import JobConfig
from host.core.owned_files import write_whole
from host.core.readers.source_names import is_path

FORMAT = 1
# What moves none of the figures, and may be another on each runner.
_FREE_JOB_KEYS = {"checkpoint", "watchdog", "on_failure"}
_FREE_ARRAY_KEYS = {"name", "engine", "hypervisors", "spread", "memory", "samplers", "calibrate"}
_FREE_HOST_KEYS = {"address", "port", "metrics_port", "names", "power_cap"}


class GateBaseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A baseline.

    Attributes:
        format: of this file.
        engine: on which it was measured.
        clock: of its device seconds.
        seed: of everything random; it is in `job`, too.
        job, array: as resolved, without what moves no figure.
        job_sha256, array_sha256: their hashes.
        figures: name -> what is expected.
        information: what was the case when it was written; it may differ.
    """

    format: int
    engine: str
    clock: str
    seed: int
    job: dict[str, Any]
    array: dict[str, Any]
    job_sha256: str
    array_sha256: str
    figures: dict[str, ExpectedFigure]
    information: dict[str, str]


def describe_job(job: JobConfig) -> dict[str, Any]:
    """Return what of a job decides its figures; what is as by default is left out, so that a new key breaks nothing.

    Data of the user's own are known by their name: every checkout has them elsewhere. Their hash is in `information`.
    """
    if is_path(job.data.source):
        data = job.data.model_copy(update={"source": f"./{Path(job.data.source).name}"})
        job = job.model_copy(update={"data": data})
    return job.model_dump(mode="json", exclude=_FREE_JOB_KEYS, exclude_defaults=True)


def describe_array(array: ArrayConfig) -> dict[str, Any]:
    """Return what of an array decides its figures, constants of its core model included; defaults are left out."""
    described = array.model_dump(mode="json", exclude=_FREE_ARRAY_KEYS | {"host"}, exclude_defaults=True)
    host = array.host.model_dump(mode="json", exclude=_FREE_HOST_KEYS, exclude_defaults=True)
    return described | core_model_constants(array.core_model) | {"host": host}


def make_baseline(
    job: JobConfig,
    array: ArrayConfig,
    clock: str,
    figures: dict[str, ExpectedFigure],
    information: dict[str, str],
) -> GateBaseline:
    """Return the baseline of a run of `job` on `array`."""
    described_job, described_array = describe_job(job), describe_array(array)
    return GateBaseline(
        *(FORMAT, array.engine, clock, job.seed, described_job, described_array),
        *(content_sha256(described_job), content_sha256(described_array)),
        *(figures, information),
    )


def write_baseline(path: Path, baseline: GateBaseline) -> None:
    """Write a baseline in one step; it is a text file, made to be kept under version control.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    write_whole(path, msgspec.json.format(msgspec.json.encode(baseline)) + b"\n", "give another", "the baseline")


def read_baseline(path: Path) -> GateBaseline:
    """Read a baseline.

    Raises:
        ConfigurationError: it is missing, damaged, or of another version.
    """
    try:
        baseline = msgspec.json.decode(path.read_bytes(), type=GateBaseline)
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: there is no baseline yet; run the same command with --write-baseline where the figures are "
            "known to be good, and keep the file under version control"
        ) from None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error
    hashes = content_sha256(baseline.job), content_sha256(baseline.array)
    for why, damaged in {
        f"its format is {baseline.format}, this csd-emu reads {FORMAT}": baseline.format != FORMAT,
        "job or array do not have the hashes beside them": hashes != (baseline.job_sha256, baseline.array_sha256),
        f"its seed {baseline.seed} is not that of its job": (
            baseline.seed != baseline.job.get("seed", JobConfig.model_fields["seed"].default)
        ),
    }.items():
        if damaged:
            raise _damaged(path, why)
    baseline = msgspec.structs.replace(baseline, figures=_with_new_names(path, baseline.figures))
    _check_figures(path, baseline)
    return baseline


def check_comparable(path: Path, baseline: GateBaseline, job: JobConfig, array: ArrayConfig) -> None:
    """Return if a run of `job` on `array` can be compared with the baseline that was read from `path`.

    Raises:
        ConfigurationError: it cannot; every difference is named.
    """
    mine = {"job": describe_job(job), "array": describe_array(array), "engine": array.engine}
    differences = list_differences({"job": baseline.job, "array": baseline.array, "engine": baseline.engine}, mine)
    if differences:
        raise _incomparable(path, differences)


def check_clock(path: Path, baseline: GateBaseline, clock: str) -> None:
    """Return if the seconds of a run on `clock` can be compared with the baseline's.

    Raises:
        ConfigurationError: they cannot.
    """
    if clock != baseline.clock:
        raise _incomparable(path, [f"clock: {baseline.clock} there, {clock} here"])


def list_differences(theirs: Mapping[str, Any], mine: Mapping[str, Any], where: str = "") -> list[str]:
    """Return in what two descriptions differ, for people: ``job.rounds: 3 there, 5 here``."""
    found: list[str] = []
    for key in sorted({*theirs, *mine}):
        left, right = theirs.get(key), mine.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            found += list_differences(left, right, f"{where}{key}.")
        elif left != right or (key in theirs) != (key in mine):
            found.append(f"{where}{key}: {_shown(left)} there, {_shown(right)} here")
    return found


def content_sha256(content: Mapping[str, Any]) -> str:
    """Return the hash of something that JSON can hold; the order of its keys does not count."""
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def _with_new_names(path: Path, figures: Mapping[str, ExpectedFigure]) -> dict[str, ExpectedFigure]:
    named = {renamed_figure(name, str(path)): each for name, each in figures.items()}
    if len(named) < len(figures):
        raise _damaged(path, "it holds a figure under its old name and its new one")
    return named


def _check_figures(path: Path, baseline: GateBaseline) -> None:
    if not baseline.figures:
        raise _damaged(path, "it holds no figure")
    for name, figure in baseline.figures.items():
        if name not in KINDS:
            raise _damaged(path, f"{name} is no figure; it may be one of {', '.join(KINDS)}")
        if not (math.isfinite(figure.value) and figure.value > 0 and math.isfinite(figure.band) and figure.band >= 0):
            raise _damaged(path, f"{name}: value must be more than 0, and band 0 or more")
        meant = KINDS[name].unit, baseline.clock if KINDS[name].timed else NO_CLOCK
        if (figure.unit, figure.clock) != meant:
            raise _damaged(path, f"{name}: unit and clock must be {meant[0]} and {meant[1]}")


def _shown(value: Any) -> str:
    return "nothing" if value is None else msgspec.json.encode(value).decode()


def _incomparable(path: Path, differences: list[str]) -> ConfigurationError:
    return ConfigurationError(
        f"{path}: is the baseline of something else, so nothing can be compared: {'; '.join(differences)}; "
        "run what it was made for, or make it anew with --update-baseline"
    )


def _damaged(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path}: cannot be used as a baseline: {why}; restore it, or make it anew with --update-baseline"
    )
