"""Batches of a configuration: STANNIS over what tables say, corrected by what was seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firmware_agent.common.errors import ConfigurationError
from host.core.tuning.speed_table import SpeedTable
from host.core.tuning.stannis_rule import BALANCED, plan_classes
from host.policies.selection.beliefs.belief import Belief
from host.policies.selection.cluster import Counts, Floats
from host.policies.selection.costs.step_costs import Points, table_seconds
from host.policies.selection.search.configuration_search import Goal
from host.policies.selection.selection_rules import SelectionRules, score_weights

# Batches change for what is better by more than this share.
WORTH_CHANGING = 0.002


def subset_batches(
    tables: Sequence[SpeedTable],
    devices: Sequence[int],
    rules: SelectionRules,
    sync_seconds: Floats,
    record_seconds: float = 0.0,
) -> Counts:
    """Return (2 ** kinds, kinds) batches of every subset of kinds: bit k of a row's number says whether kind k is in.

    A kind's batch hardly depends on how many of it there are, so it is worked out once per subset, with all devices.

    Args:
        tables: one per kind, corrected.
        devices: (kinds,) how many there are; a kind without any is in no subset.
        rules: a batch that all have, or how STANNIS chooses.
        sync_seconds: (2 ** kinds,) that the exchange adds to a step of each subset.
        record_seconds: what each record of all devices adds beside.

    Raises:
        ConfigurationError: the batch that all have does not fit.
    """
    batches = np.zeros((1 << len(tables), len(tables)), np.int64)
    for number in range(1, len(batches)):
        kinds = [kind for kind in range(len(tables)) if number >> kind & 1]
        if not all(devices[kind] for kind in kinds):
            continue
        if rules.batch_size is not None:
            batches[number, kinds] = rules.batch_size
            continue
        own, counts = [tables[kind] for kind in kinds], [devices[kind] for kind in kinds]
        batches[number, kinds], _ = plan_classes(own, counts, rules.tuning, float(sync_seconds[number]), record_seconds)
    return batches


def sync_seconds(belief: Belief, devices: Sequence[int]) -> Floats:
    """Return (2 ** kinds,) what the exchange is believed to add to a step of all devices of each subset of kinds."""
    counts = (np.arange(1 << len(devices))[:, None] >> np.arange(len(devices)) & 1) * np.array(devices, np.int64)
    points = Points(counts, (counts > 0).astype(np.int64))
    costs = belief.model.costs(belief.mode, points)
    seconds = costs.seconds - costs.records * belief.model.figures.cluster.record_seconds
    return np.asarray(np.maximum(0.0, seconds - belief.model.compute_seconds(belief.mode, points).max(axis=1)))


def balanced_batches(
    tables: Sequence[SpeedTable],
    devices: Sequence[int],
    rules: SelectionRules,
    sync_seconds: Floats,
    record_seconds: float = 0.0,
) -> list[Counts]:
    """Return the batches of `subset_batches`, and those with which others end a little sooner or later.

    By so little that STANNIS takes it for equal. There are no such ones where all have one batch, where the others are
    to end sooner (`margin`), or where time does not count.
    """
    plain = subset_batches(tables, devices, rules, sync_seconds, record_seconds)
    seconds = table_seconds(list(tables), plain)
    others = (plain > 0) & (np.arange(len(tables)) != seconds.argmax(axis=1)[:, None])
    free = rules.batch_size is None and rules.tuning.margin == 0 and score_weights(rules)[0] > 0
    targets = [seconds.max(axis=1) * by for by in (1 - BALANCED, 1 + BALANCED) if free]
    moved = [
        np.stack([np.searchsorted(table.step_seconds, each, side="right") for table in tables], axis=1)
        for each in targets
    ]
    return [plain, *(np.where(others, np.maximum(each, 1), plain) for each in moved)]


def best_batches(
    belief: Belief, before: Counts | None, fresh: Sequence[Counts], devices: Sequence[int], rules: SelectionRules
) -> Counts:
    """Return (subsets, kinds) batches: those of before, but where fresh ones promise to be clearly better.

    So a hardly better batch costs no new trial.

    Args:
        belief: what is believed now.
        before: (subsets, kinds) batches; None: there are none, the first fresh ones take their place.
        fresh: (subsets, kinds) batches by what is believed now, at least one.
        devices: (kinds,) how many there are.
        rules: what is best; of batches the fastest where time does not count.
    """
    chosen = fresh[0].copy()
    rows = np.flatnonzero(chosen.any(axis=1))
    candidates = np.stack([each[rows] for each in (fresh[0] if before is None else before, *fresh)])
    goal = Goal(*(score_weights(rules) if score_weights(rules)[0] else (1.0, 0.0)))
    points = [Points((each > 0) * np.array(devices), each) for each in candidates]
    scores = np.stack([goal.score(belief.model.costs(belief.mode, each)) for each in points])
    scores[0] -= WORTH_CHANGING * (goal.time + goal.power)
    chosen[rows] = candidates[scores.argmin(axis=0), np.arange(len(rows))]
    return chosen


def check_batch(tables: Sequence[SpeedTable], batch_size: int | None) -> None:
    """Return if every kind holds the batch.

    Raises:
        ConfigurationError: one does not.
    """
    for table in tables:
        if batch_size is not None and batch_size > table.largest_batch:
            raise ConfigurationError(
                f"{table.name}: a batch of {batch_size} does not fit, {table.largest_batch} does; make it smaller, or "
                "exclude these devices"
            )


def subset_numbers(counts: Counts) -> Counts:
    """Return (rows,) the number of each configuration's subset of kinds."""
    return np.asarray((counts > 0) @ (1 << np.arange(counts.shape[1])))


def knees(tables: Sequence[SpeedTable], rules: SelectionRules) -> Floats:
    """Return (kinds,) batches about which tables are believed to be off by a factor alone."""
    if rules.batch_size is not None:
        return np.full(len(tables), float(rules.batch_size))
    return np.array([float(table.knee(rules.tuning.knee)) for table in tables])
