"""The seconds of a job on the clock ``sampled`` beside those of the same job, counted."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from csd_emu.config.array_file import REMOTE, ArrayConfig
from csd_emu.util.progress import Progress
from csd_lab.clocks.clock_runs import ClockRun, RunClock, run_on_clock
from csd_lab.clocks.decisions import Decision, equal_decisions, read_decisions
from csd_lab.testkit.final_weights import difference, read_weights
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.core.figure_bands import Band
from host.core.records import RoundRecord
from host.core.run_stats import RunStats
from host.core.sampling.sampling_record import SamplingRecord, add_sampling

ARRAY: Final = "array"
_OF_BOTH = "both runs have to be whole to be compared"


class ComparedSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a whole run, on both clocks.

    Attributes:
        of: a drive, of which they are compute seconds; or ``array``, of which they are composed ones.
        counted_seconds: of the run all of whose steps were counted.
        sampled_seconds: of the other.
        interval_seconds: half width of the 95 % interval of `sampled_seconds`, as the run states it.
        equal_work_error: sampled over counted seconds, less 1, each over what the calibration table expects of the
            batches that the drive had in that run: a tuner may decide a little otherwise. None where that is not known.
        counted_band, sampled_band: of the seconds, by the profiles' figures; None where that is not known.
    """

    of: str
    counted_seconds: float
    sampled_seconds: float
    interval_seconds: float
    equal_work_error: float | None = None
    counted_band: Band | None = None
    sampled_band: Band | None = None

    @property
    def error(self) -> float:
        """Sampled over counted seconds, less 1."""
        return self.sampled_seconds / self.counted_seconds - 1 if self.counted_seconds else math.inf

    @property
    def inside(self) -> bool:
        """Whether the interval holds the counted seconds."""
        return abs(self.sampled_seconds - self.counted_seconds) <= self.interval_seconds


class ClockComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A job on both clocks: `csd-emu clocks`.

    Attributes:
        job: its file, or its name.
        array: name of the array.
        mode: of the job.
        core_model: of the array.
        rounds, steps: that both runs have, of all drives; these alone are compared.
        more_rounds: that the counted, and the sampled run have beyond: a target is reached in another round where
            processors round otherwise.
        seconds: of each drive, and of the array.
        sampling: how far the sampled seconds rest on counted steps, of the whole run.
        counted_decisions, sampled_decisions: what tuner, planner and placement decided.
        equal_decisions: how many of them both runs have.
        decisions: how many there are in either.
        weights_difference: largest absolute difference of a final weight from those of an array of engine native that
            decided the same; None if it decided otherwise, or was not run.
        counted_weights_difference: the same from those of the counted run, whose processor rounds otherwise.
        counted_wall_seconds, sampled_wall_seconds: of the whole command.
        load_averages: of the machine when the runs began: counted, sampled.
        sampled_notes: what the sampled run noted, and the counted one did not.
    """

    job: str
    array: str
    mode: str
    core_model: str
    rounds: int
    more_rounds: list[int]
    steps: int
    seconds: list[ComparedSeconds]
    sampling: SamplingRecord
    counted_decisions: list[Decision]
    sampled_decisions: list[Decision]
    equal_decisions: int
    decisions: int
    weights_difference: float | None
    counted_weights_difference: float
    counted_wall_seconds: float
    sampled_wall_seconds: float
    load_averages: list[float]
    sampled_notes: list[str]

    @property
    def wall_over_counted(self) -> float:
        """Wall seconds of the sampled run over those of the counted one."""
        return self.sampled_wall_seconds / self.counted_wall_seconds

    @property
    def error_worst(self) -> float:
        """Largest absolute error of a drive's or the array's seconds."""
        return max(abs(each.error) for each in self.seconds)


def compare_clocks(job: Path, array: ArrayConfig, runs: Path, native: bool, progress: Progress) -> ClockComparison:
    """Run a job counted, then sampled, and compare the two.

    Args:
        job: its file.
        array: on which it runs, whatever its engine and clock are.
        runs: folder of the run directories.
        native: whether it is run a third time on native drives, whose weights the sampled run's must be.
        progress: is shown what goes on.

    Raises:
        ConfigurationError: the array has real drives.
        EnvironmentUnfit: a run failed.
    """
    check_made(array)
    clocks: list[RunClock] = ["counted", "sampled"]
    with tempfile.TemporaryDirectory(prefix="csd-clocks-") as name:
        done: dict[RunClock, ClockRun] = {}
        for clock in clocks + ["native"] * native:
            progress.stage(f"{job} on {array.name}: {clock}")
            done[clock] = run_on_clock(job, array, clock, Path(name), runs)
    progress.stage("")
    return compare_runs(str(job), array.name, array.core_model, done)


def check_made(array: ArrayConfig) -> None:
    """Return if all drives of an array are made by csd-emu.

    Raises:
        ConfigurationError: some are real: their clock is the wall's.
    """
    if REMOTE in array.engines:
        real = ", ".join(device.name for device in array.list_devices() if device.engine == REMOTE)
        raise ConfigurationError(f"array {array.name}: {real}: real drives, whose steps nobody counts; take them out")


def compare_runs(job: str, array: str, core_model: str, runs: Mapping[RunClock, ClockRun]) -> ClockComparison:
    """Compare two runs of a job.

    Args:
        job: name of the job.
        array: name of the array.
        core_model: of the array.
        runs: ``counted`` and ``sampled``, and ``native`` if the weights are to be compared with those.

    Raises:
        EnvironmentUnfit: a run has no rounds, or the sampled one's seconds do not rest on samples.
    """
    counted, sampled = runs["counted"], runs["sampled"]
    all_rounds = counted.read_rounds(), sampled.read_rounds()
    common = min(map(len, all_rounds))
    rounds, others = all_rounds[0][:common], all_rounds[1][:common]
    sampling = whole_sampling(others)
    if not rounds or sampling is None:
        raise EnvironmentUnfit(f"{job}: {counted.directory} or {sampled.directory} has no rounds; {_OF_BOTH}")
    decisions = read_decisions(rounds, counted.directory), read_decisions(others, sampled.directory)
    noted = counted.read_notes()
    equal, all_decisions = equal_decisions(*decisions)
    return ClockComparison(
        job=job,
        array=array,
        mode="sync" if rounds[0].steps else "federated",
        core_model=core_model,
        rounds=common,
        more_rounds=[len(each) - common for each in all_rounds],
        steps=sum(part.steps for record in rounds for part in record.devices),
        seconds=compare_seconds(rounds, others, sampling),
        sampling=sampling,
        counted_decisions=decisions[0],
        sampled_decisions=decisions[1],
        equal_decisions=equal,
        decisions=all_decisions,
        weights_difference=_native_difference(sampled, decisions[1], runs.get("native")),
        counted_weights_difference=weights_difference(counted, sampled),
        counted_wall_seconds=counted.wall_seconds,
        sampled_wall_seconds=sampled.wall_seconds,
        load_averages=[counted.load_average, sampled.load_average],
        sampled_notes=[note for note in sampled.read_notes() if note not in noted],
    )


def whole_sampling(rounds: Sequence[RoundRecord]) -> SamplingRecord | None:
    """Return how far all rounds of a run rest on samples; None on another clock."""
    of_rounds = [(record.sampling, record.array_seconds) for record in rounds if record.sampling is not None]
    return add_sampling(of_rounds)


def compare_seconds(
    counted: Sequence[RoundRecord], sampled: Sequence[RoundRecord], sampling: SamplingRecord
) -> list[ComparedSeconds]:
    """Return the seconds of each drive whose steps were sampled, in the array's order, and of the array."""
    ours, theirs = device_seconds(counted), device_seconds(sampled)
    names = {part.device for record in sampled for part in record.devices if part.clock == "sampled"}
    pairs = {device: (ours.get(device, 0.0), seconds) for device, seconds in theirs.items() if device in names}
    pairs[ARRAY] = sum(r.array_seconds for r in counted), sum(r.array_seconds for r in sampled)
    expected = expected_seconds(counted), expected_seconds(sampled)
    bands = bands_of(counted), bands_of(sampled)
    same = batches_of(counted) == batches_of(sampled)

    def equal_work_error(name: str, one: float, two: float) -> float | None:
        if same:
            return two / one - 1 if one else None
        work = [each.get(name, 0.0) for each in expected]
        return two / work[1] / (one / work[0]) - 1 if all(work) and one else None

    return [
        ComparedSeconds(
            of=name,
            counted_seconds=one,
            sampled_seconds=two,
            interval_seconds=sampling.drives.get(name, sampling).error * two,
            equal_work_error=equal_work_error(name, one, two),
            counted_band=bands[0].get(name),
            sampled_band=bands[1].get(name),
        )
        for name, (one, two) in pairs.items()
    ]


def bands_of(rounds: Sequence[RoundRecord]) -> dict[str, Band]:
    """Return device, or ``array`` -> the band of its seconds, where it is known; work that came too late has none."""
    run, seconds = RunStats.of(rounds), device_seconds(rounds)
    of_devices = {name: own["device_seconds"] for name, own in run.device_bands.items() if "device_seconds" in own}
    known = {name: band for name, band in of_devices.items() if run.device_seconds.get(name) == seconds.get(name)}
    return known | ({ARRAY: run.bands["array_seconds"]} if "array_seconds" in run.bands else {})


def expected_seconds(rounds: Sequence[RoundRecord]) -> dict[str, float]:
    """Return device -> what its table expects of its synchronous steps, undisturbed."""
    found: dict[str, float] = {}
    for part in (part for record in rounds for step in record.steps for part in step.devices):
        found[part.device] = found.get(part.device, 0.0) + part.expected_seconds
    return found


def batches_of(rounds: Sequence[RoundRecord]) -> list[dict[str, int]]:
    """Return device -> records of each synchronous step."""
    return [{part.device: part.batch_size for part in step.devices} for record in rounds for step in record.steps]


def device_seconds(rounds: Sequence[RoundRecord]) -> dict[str, float]:
    """Return device -> its compute seconds in all rounds."""
    found: dict[str, float] = {}
    for part in (part for record in rounds for part in record.devices):
        found[part.device] = found.get(part.device, 0.0) + part.device_seconds.total
    return found


def errors_of(comparisons: Sequence[ClockComparison], of_array: bool, equal_work: bool) -> list[float]:
    """Return absolute errors of whole runs, of arrays or of all drives; at equal work those that are known."""
    each_of = [each for one in comparisons for each in one.seconds if (each.of == ARRAY) is of_array]
    errors = [each.equal_work_error if equal_work else each.error for each in each_of]
    return [abs(error) for error in errors if error is not None]


def weights_difference(one: ClockRun, other: ClockRun) -> float:
    """Return the largest absolute difference of a final weight.

    Raises:
        EnvironmentUnfit: a run left none.
    """
    pairs = [(run, read_weights(run.directory)) for run in (one, other)]
    for run, weights in pairs:
        if weights is None:
            raise EnvironmentUnfit(f"{run.directory} has no final weights; {_OF_BOTH}")
    return difference(*(weights for _, weights in pairs if weights is not None))


def _native_difference(sampled: ClockRun, decisions: Sequence[Decision], native: ClockRun | None) -> float | None:
    """Return the difference from a native run; None if that decided otherwise, or there is none."""
    if native is None:
        return None
    theirs = read_decisions(native.read_rounds(), native.directory)
    return weights_difference(sampled, native) if list(decisions) == theirs else None
