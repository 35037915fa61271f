"""What every registered strategy, tuner, transfer tuner and split policy promises."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.split.split_problem import SplitProblem
from csd_emu.util.registry import Registry
from firmware_agent.common.send_queue import TransferSettings
from host.config.job_file import JobConfig
from host.config.plugins.kinds import SPLIT_POLICY, STRATEGY, TRANSFER_TUNER, TUNER
from host.config.sync_section import TuningSection
from host.core.tuning.batch_tuner import BatchTuner
from host.policies.aggregation import Contribution, Strategy, make_strategy
from host.policies.batching.make import TunerArguments, make_rules, make_tuner
from host.policies.split.cut_decision import SplitPolicy
from host.policies.transfer import transfer_tuner as transfer
from host.policies.transfer.setting_grid import MOST_SLICE_BYTES
from host.policies.transfer.transfer_tuner import make_tuner as make_transfer_tuner
from tests.support.communication_tuning import FIRST, seen
from tests.support.placement import situations
from tests.support.tuning import line

PARAMETERS = ("w", "b")
TABLES = [line("fast", 0.01, 0.001), line("slow", 0.02, 0.004, largest=64)]


def every(registry: Registry) -> pytest.MarkDecorator:
    """Run a test for each class that is built in."""
    return pytest.mark.parametrize("name", registry.built_in)


def job_of(**keys: Any) -> JobConfig:
    return JobConfig.model_validate({"model": "m", "data": {"source": "digits"}} | keys)


def strategy_of(name: str) -> Strategy:
    return make_strategy(job_of(strategy=name).strategy, 0.9, PARAMETERS)


def tuner_of(name: str) -> BatchTuner:
    rules = make_rules(TuningSection())
    arguments = TunerArguments(TABLES, np.array([40, 10]), ["fast-00", "slow-00"], 1000, 0.001, rules)
    return make_tuner(job_of(mode="sync", tuner=name).tuner, arguments)


def weights(draw: np.random.Generator) -> dict[str, Any]:
    return {
        "w": draw.normal(size=(2, 3)).astype(np.float32),
        "running_mean": draw.normal(size=2).astype(np.float32),
        "b": draw.normal(size=2),
        "seen": np.asarray(draw.integers(0, 100)),
    }


@every(STRATEGY)
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_a_strategy_keeps_names_types_shapes_and_its_inputs(name: str, seed: int) -> None:
    draw, strategy = np.random.default_rng(seed), strategy_of(name)
    before = weights(draw)
    parts = [Contribution(weights(draw), int(draw.integers(1, 9)), 3) for _ in range(strategy.least_contributions + 3)]
    copies = [{n: a.tobytes() for n, a in each.items()} for each in (before, *(part.weights for part in parts))]
    after = strategy.aggregate(before, parts)
    assert [(n, a.dtype, a.shape) for n, a in after.items()] == [(n, a.dtype, a.shape) for n, a in before.items()]
    assert all(np.isfinite(array).all() for array in after.values())
    assert copies == [{n: a.tobytes() for n, a in each.items()} for each in (before, *(part.weights for part in parts))]
    assert strategy.proximal >= 0


@every(STRATEGY)
def test_a_strategy_stays_where_no_drive_moves(name: str) -> None:
    strategy, before = strategy_of(name), weights(np.random.default_rng(1))
    parts = [Contribution(before, 5, 3) for _ in range(strategy.least_contributions)]
    after = strategy.aggregate(before, parts)
    noise = 0.5 if name == "private_fedavg" else 0.0  # five times its standard deviation
    assert all(np.allclose(after[key], before[key], rtol=1e-6, atol=noise) for key in before)


@every(STRATEGY)
def test_a_strategy_goes_on_from_its_state(name: str) -> None:
    draw, first, second = np.random.default_rng(2), strategy_of(name), strategy_of(name)
    before = weights(draw)
    turns = [[Contribution(weights(draw), 4, 2) for _ in range(first.least_contributions)] for _ in range(2)]
    middle = first.aggregate(before, turns[0])
    second.load_state(first.state())
    one, other = first.aggregate(middle, turns[1]), second.aggregate(middle, turns[1])
    assert all(np.array_equal(one[key], other[key]) for key in one)


@every(TUNER)
@settings(max_examples=10)
@given(slowdowns=st.lists(st.floats(0.5, 8.0), min_size=1, max_size=40))
def test_a_tuner_keeps_to_what_devices_hold_and_goes_on_from_its_state(name: str, slowdowns: list[float]) -> None:
    tuner = tuner_of(name)
    for step, slowdown in enumerate(slowdowns, 1):
        batches, probes = tuner.batches, tuner.probes(step)
        assert ((batches >= 0) & (batches <= [each.largest_batch for each in TABLES])).all()
        assert not (probes[batches > 0]).any()
        loads = np.maximum(batches, probes)
        took = [t.seconds(int(n)) * slowdown if n else np.nan for t, n in zip(TABLES, loads, strict=True)]
        retune = tuner.observe(step, np.array(took), 1000 - step)
        if retune is not None:
            assert retune.reason
            assert (retune.batches == tuner.batches).all()
        assert np.isfinite(tuner.slowdowns).all()
        assert tuner.possible_records_per_second() > 0
    again = tuner_of(name)
    again.load_state(json.loads(json.dumps(tuner.state())))
    assert (again.batches == tuner.batches).all()


@every(TUNER)
def test_a_tuner_gives_nothing_to_a_device_that_is_gone(name: str) -> None:
    tuner = tuner_of(name)
    before = tuner.batches
    assert tuner.leave(1).batches[1] == 0
    assert tuner.batches[0] > 0
    assert (tuner.join(1).batches == before).all()


@every(TRANSFER_TUNER)
def test_a_transfer_tuner_changes_only_what_it_announces(name: str) -> None:
    tuner: transfer.TransferTuner = make_transfer_tuner(name, FIRST, seed=3)
    announced: dict[int, TransferSettings] = {}
    for step in range(1, 60):
        sending = tuner.sending(step)
        if step > 1 and step not in announced:
            assert sending == tuner.sending(step - 1)
        if (change := tuner.observe(seen(step, sending, 1.0 + step % 3))) is not None:
            assert change.step >= step + transfer.LEAST_AHEAD_STEPS
            assert (change.sending.slice_bytes or 1) <= MOST_SLICE_BYTES
            announced[change.step] = change.sending
    again = make_transfer_tuner(name, FIRST, seed=3)
    again.load_state(json.loads(json.dumps(tuner.state())))
    assert isinstance(again.sending(60), TransferSettings)


@every(SPLIT_POLICY)
@settings(max_examples=10)
@given(situation=situations())
def test_a_split_policy_makes_a_cut_that_there_is(name: str, situation: SplitProblem) -> None:
    policy: SplitPolicy = SPLIT_POLICY.load(name)()
    decision = policy.decide(situation)
    assert decision.layer in (None, *(layer.name for layer in situation.layers))
    assert not decision.row.refused
    assert decision.step_seconds > 0
    assert decision.reason
    assert policy.decide(dataclasses.replace(situation)) == decision
