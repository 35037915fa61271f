"""The job file's section `planner`, and from an array to the kinds of devices that a planner chooses from."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.util.config_files import parse_config
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.shipped_code import ShippedCode
from host.config.job_file import JobConfig, check_mode
from host.config.planner_section import PlannerSection
from host.config.sync_section import SyncSection, TuningSection
from host.core.model_facts import inspect_load
from host.fleet.checkpoint import job_sha256
from host.training.first_batches import StepOverhead
from host.training.selection.make_cluster import (
    Exchanged,
    chosen_overhead,
    make_cluster,
    planned_private,
    planned_records,
    planner_rules,
    section_rules,
)
from host.training.selection.planning import Planning
from host.training.sync_plan import Records, SyncPlan, make_plan
from tests.support.examples import examples

STORE = CalibrationStore(Path("/nonexistent"))
JOB: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync", "rounds": 2}


def section(**keys: Any) -> PlannerSection:
    return parse_config(keys, PlannerSection, "job.yaml: planner")


def plan(
    devices: list[dict[str, Any]],
    trains: bool = False,
    wall: bool = False,
    private: Sequence[int] | None = None,
    **job: Any,
) -> tuple[ArrayConfig, SyncPlan]:
    array = {"name": "lab", "engine": "native", "host": {"trains": trains}, "devices": devices}
    config = parse_config(array, ArrayConfig, "array.yaml")
    nodes = len(config.list_nodes())
    records = Records((0,) * nodes if private is None else tuple(private), 100, 72)
    fields = parse_config(JOB | {"planner": {}} | job, JobConfig, "job.yaml")
    return config, make_plan(config, fields, ShippedCode("digits_cnn"), (1, 8, 8), None if wall else STORE, records)


EXCHANGED = Exchanged(40_000, 40_000, 72)
DRIVES: list[dict[str, Any]] = [{"profile": "newport", "count": 2}, {"profile": "generic-a53"}, {"profile": "newport"}]


def test_its_rules_are_what_it_says() -> None:
    written = section(
        prefer="energy=1, time=2",
        steps=7,
        deadline="10 min",
        watts="450 W",
        joules="2 Wh",
        include=["host"],
        exclude=["csd-01"],
        unused="off",
        critical_batch=500,
    )
    rules = section_rules(written, None, TuningSection(margin=0.1))
    assert (rules.preference.time, rules.preference.energy, rules.preference.power) == (2, 1, 0)
    assert (rules.steps, rules.batch_size, rules.tuning.margin) == (7, None, 0.1)
    assert (rules.critical_batch, rules.follows_noise) == (500, False)
    measured = section_rules(section(critical_batch="measured"), None, TuningSection())
    assert (measured.critical_batch, measured.follows_noise) == (None, True)
    assert section_rules(section(), None, TuningSection()).critical_batch is None
    asked = rules.constraints
    assert (asked.deadline_seconds, asked.watts, asked.joules) == (600, 450, 7200)
    assert (asked.include, asked.exclude, asked.unused_powered) == ({"host"}, {"csd-01"}, False)
    again = parse_config(written.model_dump(mode="json"), PlannerSection, "again")
    assert again == written


def test_what_it_cannot_be_is_named_with_its_remedy(subtests: pytest.Subtests) -> None:
    for keys, message in [
        ({"prefer": "speed"}, "planner: prefer: 'speed' is no quantity; write time, power"),
        ({"prefer": "time=-1"}, "'-1' is no weight from 0 to 100"),
        ({"prefer": "time=0"}, "all weights are 0"),
        ({"deadline": "5"}, "deadline: '5' has no unit"),
        ({"watts": "0 W"}, "watts must be more than 0"),
        ({"joules": "3 W"}, "has the unit 'W', which does not fit here"),
        ({"include": ["a"], "exclude": ["a"]}, "a: is both in include and in exclude"),
        ({"steps": -1}, "steps: Input should be greater than or equal to 0"),
        ({"critical_batch": 0}, "critical_batch: 0 is no number of records; write one more than 0, or measured"),
        ({"critical_batch": "much"}, "critical_batch: 'much' is no number of records"),
        ({"critical_batch": "nan"}, "critical_batch: 'nan' is no number of records"),
        ({"critical_batch": True}, "critical_batch: True is no number of records"),
        ({"unused": "gone"}, "unused: Input should be 'powered' or 'off'"),
        ({"prefers": "time"}, "prefers: unknown key; did you mean 'prefer'?"),
    ]:
        with (
            subtests.test(keys=keys, message=message),
            pytest.raises(ConfigurationError, match=re.escape(message)),
        ):
            section(**keys)


def test_no_key_of_it_is_in_a_runs_hash() -> None:
    array, _ = plan(DRIVES)
    hashes = {
        job_sha256(array, parse_config(JOB | {"planner": keys}, JobConfig, "job.yaml"), None, [])
        for keys in ({}, {"critical_batch": 64}, {"steps": 9})
    }
    assert len(hashes) == 1


def test_off_needs_no_quotes() -> None:
    assert section(**yaml.safe_load("unused: off")).unused == "off"
    with pytest.raises(ConfigurationError, match="'powered' or 'off'"):
        section(**yaml.safe_load("unused: on"))


def test_it_is_for_synchronous_jobs() -> None:
    job = parse_config(JOB | {"mode": "federated", "planner": {}}, JobConfig, "job.yaml")
    with pytest.raises(ConfigurationError, match="planner is for mode: sync"):
        check_mode(job, "job.yaml")


def test_equal_devices_are_a_kind_and_the_host_is_one_of_its_own() -> None:
    config, known = plan(DRIVES, trains=True)
    cluster = make_cluster(config, known, EXCHANGED)
    assert [(kind.name, kind.nodes, kind.local) for kind in cluster.kinds] == [
        ("newport", ("csd-00", "csd-01", "csd-03"), False),
        ("generic-a53", ("csd-02",), False),
        ("host", ("host",), True),
    ]
    for kind in cluster.kinds:
        speed = known.classes[kind.nodes[0]].speed
        assert kind.speed is not None
        assert kind.speed.step_seconds.tolist() == speed.step_seconds.tolist()
        assert kind.encode_seconds == known.expected[kind.nodes[0]].encode_seconds > 0


def test_devices_of_two_engines_are_two_kinds() -> None:
    config, known = plan([{"profile": "newport", "count": 2}, {"profile": "newport", "engine": "qemu"}])
    names = [kind.name for kind in make_cluster(config, known, EXCHANGED).kinds]
    assert names == ["newport (native)", "newport (qemu)"]


def test_without_tables_nothing_is_known_of_speeds_and_batches_are_the_jobs() -> None:
    config, known = plan(DRIVES, wall=True, batch_size=24)
    assert [kind.speed for kind in make_cluster(config, known, EXCHANGED).kinds] == [None, None]
    assert planner_rules(known).batch_size == 24
    assert planner_rules(plan(DRIVES, batch_size=24)[1]).batch_size == 24
    assert planner_rules(plan(DRIVES, tuner="stannis")[1]).batch_size is None


@functools.cache
def small_steps() -> SyncPlan:
    return plan(DRIVES, batch_size=5)[1]


@given(st.integers(0, 1000), st.integers(1, 100))
def test_where_servers_add_up_after_several_steps_trials_have_whole_multiples_of_them(steps: int, every: int) -> None:
    job = small_steps().job.model_copy(update={"planner": PlannerSection(steps=steps)})
    rules = planner_rules(dataclasses.replace(small_steps(), job=job), every)
    assert rules.window == every
    assert steps <= rules.steps < steps + every
    assert rules.steps % every == 0


@given(st.integers(1, 100), st.one_of(st.none(), st.integers(1, 40)))
def test_a_window_is_no_longer_than_a_round_or_an_epoch(every: int, round_steps: int | None) -> None:
    sync = SyncSection() if round_steps is None else SyncSection(round_steps=round_steps)
    known = dataclasses.replace(small_steps(), job=small_steps().job.model_copy(update={"sync": sync}))
    longest = known.epoch_steps(known.batches) if round_steps is None else round_steps
    assert known.window_steps(every) == min(every, longest)


def test_no_step_of_all_devices_takes_more_records_than_an_epoch_has() -> None:
    config, known = plan(DRIVES, tuner="stannis")
    assert sum(known.batches) > 100  # which is all there are
    for kind in make_cluster(config, known, EXCHANGED).kinds:
        assert kind.speed is not None
        assert kind.speed.largest_batch == 25


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.integers(0, 90), min_size=4, max_size=4), st.integers(1, 5), st.integers(1, 5))
def test_estimates_are_of_the_records_within_reach(private: list[int], rounds: int, epochs: int) -> None:
    """By tables alone; where rounds have so many steps, of as many records whoever takes part."""
    config, known = plan(DRIVES, private=private, rounds=rounds, epochs=epochs, batch_size=4)
    planning = Planning(known, make_cluster(config, known, EXCHANGED), planner_rules(known))
    planner = planning.make_planner()
    own = dict(zip(known.nodes, private, strict=True))
    for each in planner.decide().ranked:
        nodes = planner.choose_nodes(each.configuration)
        assert each.trained_records == rounds * epochs * (100 + sum(own[node] for node in nodes))
    _, counted = plan(DRIVES, private=private, sync={"round_steps": 7})
    assert planned_private(counted) == {}


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 40))
def test_a_job_trains_on_its_epochs_or_on_its_steps_with_all_devices(rounds: int, epochs: int, steps: int) -> None:
    _, whole = plan(DRIVES, rounds=rounds, epochs=epochs)
    assert planned_records(whole) == 100 * rounds * epochs
    _, counted = plan(DRIVES, rounds=rounds, batch_size=3, sync={"round_steps": steps})
    assert planned_records(counted) == rounds * steps * 4 * 3


def test_fewer_devices_exchange_for_less_time() -> None:
    config, known = plan(DRIVES, trains=True)
    load = inspect_load(ShippedCode("digits_cnn"), (1, 8, 8))
    cluster = make_cluster(config, known, Exchanged(load.state_bytes, load.gradient_bytes, load.record_bytes))
    some = (["csd-00"], ["csd-00", "csd-02"], known.nodes)
    one, more, every = (chosen_overhead(cluster, nodes).step_seconds for nodes in some)
    assert 0 < one < more < every == known.overhead.step_seconds
    assert 0 < chosen_overhead(cluster, ["host"]).step_seconds < one


def test_a_plan_of_some_nodes_has_their_records_and_batches_alone() -> None:
    _, known = plan(DRIVES, tuner="hypertune")
    some = known.of_nodes([1, 2], [5, 3], StepOverhead(0.5))
    assert (some.nodes, some.batches, some.overhead.step_seconds) == (("csd-01", "csd-02"), (5, 3), 0.5)
    assert list(some.classes) == ["csd-01", "csd-02"]
    assert some.make_tuner().batches.tolist() == [5, 3]


def notes(chosen: Sequence[str], **job: Any) -> str:
    """Return what is said of this choice."""
    config, known = plan(DRIVES, **job)
    cluster = make_cluster(config, known, EXCHANGED)
    planning = Planning(known, cluster, planner_rules(known))
    return "\n".join(planning.notes(chosen))


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.integers(0, 90), min_size=4, max_size=4), st.sets(st.integers(0, 3), min_size=1))
def test_private_records_that_rest_are_told(private: list[int], chosen: set[int]) -> None:
    told = notes([f"csd-{number:02d}" for number in sorted(chosen)], private=private)
    whole, trained = 100 + sum(private), 100 + sum(private[number] for number in chosen)
    assert ("take no part" in told) == (trained < whole)
    assert (f"an epoch has {trained} of {whole} records" in told) == (trained < whole)
    assert ("compared by the time and energy of a record" in told) == (trained < whole)


def test_rounds_of_steps_have_as_many_records_whoever_has_them() -> None:
    told = notes(["csd-00"], private=[9, 9, 9, 9], sync={"round_steps": 5})
    assert "27 private records lie on csd-01, csd-02, csd-03" in told
    assert "an epoch has" not in told


@pytest.mark.parametrize(
    ("chosen", "unused", "said"),
    [
        ("host", "off", True),
        ("host", "powered", False),
        ("csd-00", "off", False),
        ("host csd-00 csd-01 csd-02 csd-03", "off", False),
    ],
)
def test_the_host_reads_from_drives_that_are_off_and_that_is_said(chosen: str, unused: str, said: bool) -> None:
    told = notes(chosen.split(), trains=True, planner={"unused": unused})
    assert ("their idle power while it reads is left out" in told) == said


@pytest.mark.parametrize("limit", [{"deadline": "1 h"}, {"watts": "450 W"}, {"joules": "2 Wh"}, {}])
def test_limits_are_said_to_be_of_the_whole_job(limit: dict[str, str]) -> None:
    assert ("limits are of the whole job" in notes(["csd-00"], planner=limit)) == bool(limit)
