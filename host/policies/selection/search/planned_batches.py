"""Batches of a configuration: STANNIS over what tables say, corrected by what was seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firmware_agent.common.errors import ConfigurationError
from host.core.tuning.speed_table import SpeedTable
from host.core.tuning.stannis_rule import plan_classes
from host.policies.selection.beliefs.belief import Belief
from host.policies.selection.cluster import Counts, Floats
from host.policies.selection.costs.step_costs import Points
from host.policies.selection.search.configuration_search import Goal
from host.policies.selection.selection_rules import SelectionRules

# Batches change for a rate that is better by more than this share.
WORTH_CHANGING = 0.004


def subset_batches(
    tables: Sequence[SpeedTable], devices: Sequence[int], rules: SelectionRules, sync_seconds: Floats
) -> Counts:
    """Return (2 ** kinds, kinds) batches of every subset of kinds: bit k of a row's number says whether kind k is in.

    A kind's batch hardly depends on how many of it there are, so it is worked out once per subset, with all devices.

    Args:
        tables: one per kind, corrected.
        devices: (kinds,) how many there are; a kind without any is in no subset.
        rules: a batch that all have, or how STANNIS chooses.
        sync_seconds: (2 ** kinds,) that the exchange adds to a step of each subset.

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
        batches[number, kinds], _ = plan_classes(own, counts, rules.tuning, float(sync_seconds[number]))
    return batches


def sync_seconds(belief: Belief, devices: Sequence[int]) -> Floats:
    """Return (2 ** kinds,) what the exchange is believed to add to a step of all devices of each subset of kinds."""
    subsets = np.arange(1 << len(devices))
    counts = (subsets[:, None] >> np.arange(len(devices)) & 1) * np.array(devices, np.int64)
    points = Points(counts, (counts > 0).astype(np.int64))
    seconds = belief.model.costs(belief.mode, points).seconds
    return np.asarray(np.maximum(0.0, seconds - belief.model.compute_seconds(belief.mode, points).max(axis=1)))


def keep_batches(belief: Belief, before: Counts | None, fresh: Counts, devices: Sequence[int]) -> Counts:
    """Return (subsets, kinds) batches: those of before, but where fresh ones promise to be clearly faster.

    So what was measured stays measured, and a hardly better batch costs no new trial.

    Args:
        belief: what is believed now.
        before: (subsets, kinds) batches; None: there are none.
        fresh: (subsets, kinds) batches by what is believed now.
        devices: (kinds,) how many there are.
    """
    if before is None:
        return fresh
    rows = np.flatnonzero(before.any(axis=1) & fresh.any(axis=1))
    counts = (fresh[rows] > 0) * np.array(devices)
    faster = Goal(time=1.0, power=0.0)
    old, new = (
        faster.score(belief.model.costs(belief.mode, Points(counts, batches)))
        for batches in (before[rows], fresh[rows])
    )
    kept = fresh.copy()
    good = old <= new + WORTH_CHANGING
    kept[rows[good]] = before[rows[good]]
    return kept


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
    bits: Counts = 1 << np.arange(counts.shape[1])
    return np.asarray((counts > 0) @ bits)


def knees(tables: Sequence[SpeedTable], rules: SelectionRules) -> Floats:
    """Return (kinds,) batches about which tables are believed to be off by a factor alone."""
    if rules.batch_size is not None:
        return np.full(len(tables), float(rules.batch_size))
    return np.array([float(table.knee(rules.tuning.knee)) for table in tables])
