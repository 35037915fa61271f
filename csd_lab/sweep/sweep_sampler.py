"""Points of a sweep chosen by Optuna, one after the other, from what the ones before came to."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from csd_lab.sweep.sweep_points import Point, ValueRange, Values, by_seed, check_count
from csd_lab.sweep.swept_run import THE_MORE, SweptRun
from firmware_agent.common.errors import EnvironmentUnfit

if TYPE_CHECKING:
    import optuna


def sample_points(
    over: Mapping[str, Values], seeds: Sequence[int], samples: int, objective: str, train: Callable[[Point], SweptRun]
) -> list[SweptRun]:
    """Return the runs of `samples` points, with each seed (see `csd_lab.sweep.job_sweep.sweep`).

    The sampler is seeded: a sweep that goes on is given the same points again, and trains what is missing.

    Raises:
        EnvironmentUnfit: Optuna is not installed.
        ConfigurationError: there are no runs, or too many.
    """
    try:
        import optuna
    except ImportError as error:
        raise EnvironmentUnfit("samples are chosen by Optuna; pip install 'csd-emu[sweep]'") from error
    check_count(samples * len(seeds))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions = optuna.study.StudyDirection
    direction = directions.MAXIMIZE if objective in THE_MORE else directions.MINIMIZE
    study = optuna.create_study(direction=direction, sampler=optuna.samplers.TPESampler(seed=0))
    runs: list[SweptRun] = []
    for _ in range(samples):
        trial = study.ask()
        point = {key: _suggest(trial, key, values) for key, values in over.items()}
        trained = [train(each) for each in by_seed([point], seeds)]
        runs += trained
        values = [run.figures[objective] for run in trained if objective in run.figures]
        if values:
            study.tell(trial, statistics.fmean(values))
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return runs


def _suggest(trial: optuna.Trial, key: str, values: Values) -> object:
    if not isinstance(values, ValueRange):
        return trial.suggest_categorical(key, list(values))
    if values.whole:
        return trial.suggest_int(key, int(values.low), int(values.high), log=values.log)
    return trial.suggest_float(key, values.low, values.high, log=values.log)
