"""The tuner that plans: trials of steps that count, then another tuner over the nodes that were chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.core.tuning.batch_tuner import DeviceSelector, Retune, StepCost
from host.policies.batching.fixed import FixedBatches
from host.policies.selection.cluster import Configuration
from host.policies.selection.level_changes import MOST_OF_THEM, STEPS_FOR_GOOD
from host.policies.selection.planner_protocol import TrialDecision
from host.policies.selection.planning_tuner import PlanningTuner
from tests.support.planning import FakePlanner, cluster, cost, nodes

ARRAY = cluster()
NODES = nodes(ARRAY)
ALL: Configuration = (2, 2, 1)


class World:
    """A run with a planning tuner: steps have the batches that the tuner wants, `seconds` of records."""

    def __init__(
        self,
        *wanted: Configuration,
        steps: int = 2,
        refuses: str = "",
        cold: Sequence[str] = (),
        handed_over: bool = False,
    ) -> None:
        self._handed_over = handed_over
        self.decided: list[TrialDecision] = []
        self.notes: list[str] = []
        self.planners: list[FakePlanner] = []
        self.inner: list[FixedBatches] = []
        self._wanted, self._steps, self._refuses, self._cold = wanted, steps, refuses, cold
        self.tuner = self._make()
        self.step = 0

    @property
    def planner(self) -> FakePlanner:
        return self.planners[-1]

    @property
    def training(self) -> dict[str, int]:
        pairs = zip(NODES, self.tuner.batches.tolist(), strict=True)
        return {node: batch for node, batch in pairs if batch}

    def take(self, steps_left: int = 100, missing: Sequence[str] = (), **records: int) -> Retune | None:
        """Take a step with the batches as they are, or with these `records`."""
        self.step += 1
        dealt = {name.replace("_", "-"): count for name, count in records.items()} or self.training
        there = {node: count for node, count in dealt.items() if node not in missing}
        self.tuner.watch(cost(there, seconds=float(sum(dealt.values())), missing=missing))
        seconds = np.where(self.tuner.batches > 0, 1.0, np.nan)
        return self.tuner.observe(self.step, seconds, steps_left)

    def train(self, most: int = 100) -> None:
        """Take steps until it is decided."""
        while not self.tuner.decided and most:
            self.take()
            most -= 1

    def again(self) -> PlanningTuner:
        """Return the tuner of a run that is resumed from here."""
        state = msgspec.json.decode(msgspec.json.encode(self.tuner.state()))
        tuner = self._make()
        tuner.load_state(state)
        return tuner

    def _make(self) -> PlanningTuner:
        def planner() -> FakePlanner:
            self.planners.append(FakePlanner(ARRAY, self._wanted, self._steps, refuses=self._refuses))
            return self.planners[-1]

        def inner(numbers: Sequence[int], batches: Sequence[int], _: float | None) -> FixedBatches:
            self.inner.append(FixedBatches(batches, None, [NODES[number] for number in numbers]))
            return self.inner[-1]

        told = self.decided.append, self.notes.append
        return PlanningTuner(
            dict.fromkeys(NODES, 8), planner, inner, *told, cold=self._cold, handed_over=self._handed_over
        )


def test_trials_are_taken_one_after_the_other_and_the_best_one_is_gone_on_with() -> None:
    world = World(ALL, (1, 0, 1), (0, 1, 0))
    assert isinstance(world.tuner, DeviceSelector)
    assert world.training == dict.fromkeys(NODES, 4)
    assert world.take() is None
    second = world.take()
    assert second is not None
    assert world.training == {"csd-00": 4, "host": 4}
    assert second.changed == (1, 2, 3)
    assert world.tuner.resting == frozenset()  # they may be in the next trial
    world.take()
    world.take()
    assert world.training == {"csd-02": 4}
    world.take()
    last = world.take()
    assert last is not None
    assert "was chosen" in last.reason
    assert world.training == {"csd-02": 4}
    assert world.tuner.resting == {0, 1, 3, 4}
    assert world.tuner.idle() == ["csd-00", "csd-01", "csd-03"]
    assert [len(seen) for _, seen in world.planner.observed] == [2, 2, 2]
    (decided,) = world.decided
    assert decided.batches == {"csd-02": 4}
    assert decided.step == 6
    assert not world.tuner.probes(8).any()


def test_every_device_is_waited_for_while_planning() -> None:
    world = World(ALL)
    assert np.isinf(world.tuner.slowdowns).all()
    world.train()
    assert world.tuner.slowdowns.tolist() == [1.0] * 5


@given(st.lists(st.tuples(*(st.integers(0, most) for most in ALL)).filter(any), max_size=5), st.integers(1, 4))
def test_a_trial_sees_as_many_steps_as_it_asks_for_and_only_chosen_devices_train(
    wanted: list[Configuration], steps: int
) -> None:
    world = World(*wanted, steps=steps)
    world.train()
    assert world.tuner.error is None
    assert [trial.configuration for trial, _ in world.planner.observed] == wanted
    for trial, seen in world.planner.observed:
        assert len(seen) == steps
        for one in seen:
            assert set(one.compute_seconds) == set(world.planner.choose_nodes(trial.configuration))
            assert one.step_seconds == 4 * sum(trial.configuration)
    assert world.step == steps * len(wanted)  # no step is lost between two trials
    (decided,) = world.decided
    assert world.training == decided.batches
    assert {NODES[number] for number in world.tuner.resting} == set(NODES) - set(decided.batches)


def test_steps_with_other_batches_do_not_count() -> None:
    """Steps announced ahead keep old batches; the last one of an epoch is smaller."""
    world = World((2, 0, 0), (0, 1, 0))
    for _ in range(2):
        world.take()
    assert world.training == {"csd-02": 4}
    world.take(csd_00=4, csd_01=4)
    world.take(csd_02=3)
    world.take()
    assert not world.tuner.decided
    world.take()
    assert world.tuner.decided
    assert [one.step_seconds for one in world.planner.observed[1][1]] == [4.0, 4.0]


def test_a_trial_whose_steps_never_have_its_batches_is_given_up_and_that_is_said() -> None:
    world = World((2, 0, 0), (0, 1, 0))
    for _ in range(50):
        world.take(csd_00=1)
    assert world.tuner.decided
    assert world.planner.observed == []
    assert any("steps had other batches than it asked for" in note for note in world.notes)
    assert world.training == dict.fromkeys(NODES, 4)


def test_a_device_that_fails_in_a_trial_is_in_no_other_and_what_was_seen_of_it_counts() -> None:
    world = World(ALL, (2, 0, 1), (1, 1, 0))
    world.take()
    retune = world.take(missing=["csd-01"])
    assert retune is not None
    assert world.planner.lost == ["csd-01"]
    assert [len(seen) for _, seen in world.planner.observed] == [1]
    assert world.training == {"csd-00": 4, "csd-02": 4}  # two newports there are no more
    world.train()
    assert world.decided[0].lost == ("csd-01",)
    assert "csd-01" not in world.training


def test_a_device_that_leaves_ends_the_trial_that_it_is_part_of_alone() -> None:
    world = World((2, 0, 0), (0, 1, 0))
    world.take()
    retune = world.tuner.leave(3)
    assert retune.changed == ()
    assert world.training == {"csd-00": 4, "csd-01": 4}
    assert world.tuner.leave(0).changed == (0, 1, 2)
    assert world.training == {"csd-02": 4}
    assert world.planner.lost == ["csd-03", "csd-00"]
    world.tuner.join(0)
    assert world.training == {"csd-02": 4}
    world.train()
    assert [len(seen) for _, seen in world.planner.observed] == [1, 2]


def test_of_the_chosen_one_may_leave_and_come_back_and_others_rest() -> None:
    world = World((2, 0, 0))
    world.train()
    assert world.tuner.leave(0).changed == (0,)
    assert world.training == {"csd-01": 4}
    assert world.tuner.leave(4).changed == ()
    assert world.tuner.join(4).changed == ()
    assert world.training == {"csd-01": 4}
    assert world.tuner.join(0).batches.tolist() == [4, 4, 0, 0, 0]


@given(gone=st.sets(st.integers(0, len(NODES) - 1), min_size=1, max_size=len(NODES) - 1))
def test_those_that_leave_together_are_planned_without_at_once(gone: set[int]) -> None:
    world = World(ALL, (2, 1, 0), (1, 2, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
    world.take()
    world.notes.clear()
    left = set(range(len(NODES))) - gone
    world.tuner.meet(left)
    retunes = [world.tuner.leave(device) for device in sorted(gone)]
    assert set(world.planner.lost) == {NODES[device] for device in gone}
    assert len([note for note in world.notes if note.startswith("pre-training of")]) == 1
    assert all((retune.batches == world.tuner.batches).all() for retune in retunes)
    assert set(world.training) <= {NODES[device] for device in left}
    assert len(world.planner.observed) == 1  # the step that all took part in


def test_of_chosen_ones_that_leave_together_others_are_chosen_once() -> None:
    world = World((2, 0, 0), (0, 2, 1))
    world.train()
    assert world.training == {"csd-00": 4, "csd-01": 4}
    world.tuner.meet({2, 4})
    for device in (0, 1, 3):
        world.tuner.leave(device)
    assert len(world.decided) == 2
    assert world.training == {"csd-02": 4, "host": 4}
    assert set(world.planner.lost) == {"csd-00", "csd-01", "csd-03"}


def test_planning_over_servers_begins_anew_once_for_each_that_comes_back() -> None:
    """One that comes and goes would keep it going otherwise; those that come together begin it once."""
    world, every, away = World(ALL, (0, 2, 1), handed_over=True), set(range(len(NODES))), {0, 1}
    world.take()
    for planners in (2, 2):
        world.tuner.meet(every - away)
        for device in away:
            world.tuner.leave(device)
        world.tuner.meet(every)
        for device in away:
            world.tuner.join(device)
        assert len(world.planners) == planners
    assert not {"csd-00", "csd-01"} & world.training.keys()


def test_that_nothing_is_feasible_is_handed_over() -> None:
    world = World(ALL, refuses="deadline: 5 s too much", handed_over=True)
    world.train()
    tuner = world.again()
    assert str(tuner.error) == "deadline: 5 s too much"
    assert tuner.batches.tolist() == world.tuner.batches.tolist()


def test_when_all_that_were_chosen_are_gone_others_are() -> None:
    world = World((0, 0, 1), (1, 1, 0))
    world.train()
    assert world.training == {"host": 4}
    retune = world.tuner.leave(4)
    assert "all that were chosen are gone" in retune.reason
    assert world.training == {"csd-00": 4, "csd-02": 4}
    assert len(world.decided) == 2


def test_nothing_feasible_ends_planning_with_its_error_and_whoever_is_there_trains_until_the_end() -> None:
    world = World(ALL, refuses="deadline: 5 s too much")
    world.take()
    retune = world.take()
    assert retune is not None
    assert "deadline: 5 s too much" in retune.reason
    assert str(world.tuner.error) == "deadline: 5 s too much"
    assert world.tuner.decided
    assert world.training == dict.fromkeys(NODES, 8)
    assert world.decided == []
    assert world.take() is None


def test_when_nobody_is_left_planning_ends_with_an_error() -> None:
    world = World(ALL)
    for number in range(5):
        world.tuner.leave(number)
    assert "no device" in str(world.tuner.error)
    assert not world.tuner.batches.any()


def test_the_last_step_of_a_run_decides_with_what_is_known() -> None:
    world = World(ALL, (1, 0, 0))
    assert world.take(steps_left=0) is not None
    assert [len(seen) for _, seen in world.planner.observed] == [1]
    assert world.decided


def test_a_run_that_ends_while_planning_decides_with_what_is_known() -> None:
    world = World(ALL, (1, 0, 0))
    world.take()
    world.tuner.finish()
    assert world.decided[0].batches == dict.fromkeys(NODES, 4)
    world.tuner.finish()
    assert len(world.decided) == 1


def test_without_trials_it_is_decided_at_once() -> None:
    world = World()
    assert world.tuner.decided
    assert world.decided[0].step == 0


def test_what_was_decided_is_kept_by_a_resumed_run() -> None:
    world = World(ALL, (1, 1, 0))
    world.train()
    world.tuner.leave(0)
    tuner = world.again()
    assert tuner.batches.tolist() == world.tuner.batches.tolist() == [0, 0, 4, 0, 0]
    assert tuner.resting == world.tuner.resting
    assert len(world.decided) == 1
    assert tuner.join(0).batches.tolist() == [4, 0, 4, 0, 0]


@pytest.mark.parametrize("wanted", [(), (ALL, (1, 1, 0))])
def test_a_resumed_run_that_has_decided_decides_and_notes_nothing_again(wanted: Sequence[Configuration]) -> None:
    world = World(*wanted)
    world.train()
    assert len(world.decided) == 1
    decided, notes = list(world.decided), list(world.notes)
    world.tuner = world.again()
    assert isinstance(world.tuner, DeviceSelector)
    world.take()
    world.tuner.finish()
    assert (world.decided, world.notes) == (decided, notes)
    assert world.training == decided[0].batches


def test_planning_begins_with_the_first_question_and_not_with_whether_it_is_a_chooser() -> None:
    world = World(ALL)
    assert isinstance(world.tuner, DeviceSelector)
    assert world.notes == []
    assert world.training
    assert len(world.notes) == 1


def test_planning_that_was_under_way_begins_again_without_those_that_were_lost() -> None:
    world = World(ALL, (1, 0, 0))
    world.take()
    world.tuner.leave(4)
    tuner = world.again()
    assert not tuner.decided
    assert world.planner.lost == ["host"]
    assert world.planner.observed == []
    assert tuner.batches.tolist() == [4, 0, 0, 0, 0]


def test_an_inner_tuners_retunes_are_of_its_own_devices() -> None:
    world = World((0, 2, 1))
    world.train()
    retune = world.inner[-1].retune(np.array([3, 2, 1]), "because")
    world.inner[-1].observe = lambda *_: retune  # type: ignore[method-assign]
    widened = world.take()
    assert widened is not None
    assert widened.batches.tolist() == [0, 0, 3, 2, 1]
    assert widened.changed == (2, 3, 4)


@pytest.mark.parametrize("unused", [True, False])
def test_the_joules_of_a_step_are_all_that_is_counted(unused: bool) -> None:
    world = World(ALL)
    joules = {"host": 5.0, "csd-00": 2.0} | ({"csd-03": 1.0} if unused else {})
    one = cost(world.training)
    world.tuner.watch(type(one)(one.records, one.compute_seconds, one.array_seconds, joules))
    world.tuner.finish()
    assert world.planner.observed[0][1][0].joules == sum(joules.values())


def test_the_first_step_of_a_node_that_warms_up_is_left_out_and_only_that() -> None:
    world = World((1, 1, 0), (1, 0, 0), (2, 0, 0), cold=NODES)
    world.train()
    assert [len(seen) for _, seen in world.planner.observed] == [2, 2, 2]
    # One step more where a node is new: both of the first trial, none of the second, csd-01 of the third.
    assert world.step == 3 + 2 + 3
    resumed = world.again()
    assert resumed.decided


def test_what_is_thought_beside_the_loop_is_told_when_it_is_over_and_in_order() -> None:
    told, direct = World(ALL, (1, 0, 1)), World(ALL, (1, 0, 1))
    for world in (told, direct):
        world.tuner.begin()
    while told.tuner.is_computing:
        notes, decided = list(told.notes), list(told.decided)
        with told.tuner.telling_later():
            told.take()
            assert (told.notes, told.decided) == (notes, decided)
        direct.take()
        assert told.notes == direct.notes
        assert [each.batches for each in told.decided] == [each.batches for each in direct.decided]
    assert len(told.decided) == 1
    assert len(told.notes) == 2


def slowed(
    world: World, steps: int, *, slow: str = "csd-00", factor: float = 3.0, noise: float | None = None
) -> list[Retune | None]:
    """Take steps in which a node takes longer for its records, with a gradient noise scale."""
    retunes = []
    for _ in range(steps):
        world.step += 1
        batches = world.tuner.batches
        seconds = np.where(batches > 0, batches / 4.0, np.nan)
        seconds[NODES.index(slow)] *= factor
        world.tuner.watch(replace(cost(world.training), noise_records=noise))
        retunes.append(world.tuner.observe(world.step, seconds, 1000 - world.step))
    return retunes


@pytest.mark.parametrize("follows", [True, False])
def test_a_noise_scale_that_is_news_has_the_choice_looked_at_again_if_the_job_asks_for_it(follows: bool) -> None:
    world = World((2, 0, 0), (0, 1, 0))
    world.train()
    world.planner.follows_noise = follows
    looks = []
    for scale in (None, 0.0, math.nan, 40.0, 60.0, 25.0, 90.0, 90.0):
        slowed(world, 60, factor=1.0, noise=scale)
        looks.append([again.critical_batch for _, again in world.planner.changed])
    told = [40.0] * follows
    both = [40.0, 90.0] * follows
    assert looks == [[], [], [], told, told, told, both, both]


def test_a_level_that_changed_for_good_has_the_choice_looked_at_again_and_a_blip_has_not() -> None:
    world = World((2, 0, 0), (0, 1, 0))
    world.train()
    slowed(world, 12, slow="csd-02")
    slowed(world, 50, slow="csd-02", factor=1.0)
    assert world.planner.changed == []
    inner = world.inner[-1]
    slowed(world, MOST_OF_THEM - 1, slow="csd-02")
    assert not world.tuner.is_computing
    slowed(world, 1, slow="csd-02")
    assert world.planner.changed == []
    assert world.tuner.is_computing  # the next step thinks, beside the loop
    slowed(world, 1, slow=sorted(world.training)[0])
    ((changed, again),) = world.planner.changed
    assert set(changed) == set(again.nodes) == {"csd-02"}
    assert 0 < again.share <= 1
    assert again.margin > 0.02
    # It decides as before, so the tuner goes on that knows its devices, and nothing is told twice.
    assert world.tuner._inner is inner
    assert len(world.decided) == 1
    assert any("looked at again" in note for note in world.notes)


def test_others_take_over_where_the_planner_says_so() -> None:
    world = World((2, 0, 0))
    world.train()
    assert world.training == {"csd-00": 4, "csd-01": 4}
    world.planner.lose("csd-00")  # stands for a drive that is worth nothing any more
    retune = slowed(world, STEPS_FOR_GOOD + 1)[-1]
    assert retune is not None
    assert "csd-00" not in world.training
    assert len(world.decided) == 2


def test_limits_that_can_be_kept_no_more_do_not_end_a_training() -> None:
    world = World((2, 0, 0))
    world.train()
    world.planner.refuses = "deadline: 5 s too much"
    slowed(world, STEPS_FOR_GOOD + 1)
    assert world.tuner.error is None
    assert world.training == {"csd-00": 4, "csd-01": 4}
    slowed(world, 3)


def test_where_a_chosen_one_leaves_and_others_rest_they_are_looked_at() -> None:
    world = World((2, 0, 0), (0, 2, 1))
    world.train()
    assert world.training == {"csd-00": 4, "csd-01": 4}
    world.tuner.leave(0)
    assert world.training == {"csd-01": 4}  # nobody waits for the decision
    assert world.tuner.is_computing
    world.take()
    assert world.planner.lost == ["csd-00"]
    ((changed, again),) = world.planner.changed
    assert (changed, again.nodes) == ({}, ("csd-01",))
    assert world.training == {"csd-02": 4, "csd-03": 4, "host": 4}


def test_one_that_comes_back_is_looked_at_and_one_that_was_chosen_trains_on() -> None:
    world = World((0, 2, 0))
    world.tuner.meet({0, 1, 2, 3})
    world.tuner.leave(4)
    world.train()
    assert world.training == {"csd-02": 4, "csd-03": 4}
    world.tuner.join(4)
    assert world.tuner.is_computing
    world.take()
    assert world.planner.lost == []
    assert len(world.planner.changed) == 1
    world.tuner.leave(2)
    world.tuner.join(2)
    assert world.training == {"csd-02": 4, "csd-03": 4}
    assert world.planner.lost == []


@pytest.mark.parametrize("device", [0, 4])
def test_one_that_comes_and_goes_has_ever_fewer_looks(device: int) -> None:
    world = World((2, 0, 0), (0, 1, 0))
    world.train()
    for _ in range(400):
        world.tuner.leave(device)
        world.tuner.join(device)
        world.take(steps_left=1000)
    assert 3 <= len(world.planner.changed) <= 6
    assert world.planner.lost == []


def test_a_change_that_stays_is_looked_at_once_also_by_a_resumed_run() -> None:
    world = World((2, 0, 0), (0, 1, 0))
    world.train()
    slowed(world, 240, slow="csd-02", factor=2.0)
    assert len(world.planner.changed) == 1
    world.tuner = world.again()
    slowed(world, 240, slow="csd-02", factor=2.0)
    assert len(world.planner.changed) == 1  # what the other one was told


def test_that_somebody_left_or_came_is_looked_at_by_a_resumed_run_too() -> None:
    world = World((2, 0, 0), (0, 2, 1))
    world.train()
    world.tuner.leave(0)
    world.tuner = world.again()
    assert world.tuner.is_computing
    world.take()
    assert world.training == {"csd-02": 4, "csd-03": 4, "host": 4}


def test_a_decision_of_a_release_that_did_not_look_again_is_kept_whoever_comes_and_goes() -> None:
    world = World((2, 0, 0), (0, 2, 1))
    world.train()
    state = world.tuner.state()
    for key in ("levels", "records", "due", "beside_seconds", "planning", "looks", "came", "step", "begun"):
        state.pop(key, None)
    world.tuner.load_state(msgspec.json.decode(msgspec.json.encode(state)))
    world.tuner.leave(0)
    world.tuner.join(0)
    world.tuner.leave(4)
    world.tuner.join(4)
    world.take()
    assert world.training == {"csd-00": 4, "csd-01": 4}
    assert world.planner.changed == []


def test_near_the_end_nobody_is_looked_at() -> None:
    world = World((2, 0, 0), (0, 2, 1))
    world.train()
    world.tuner.leave(0)
    world.take(steps_left=STEPS_FOR_GOOD)
    assert world.training == {"csd-01": 4}


def exchanging(world: World, steps: int, beside: float) -> None:
    """Take steps that last so much longer than their computing."""
    for _ in range(steps):
        world.step += 1
        records = world.training
        compute = dict.fromkeys(records, 1.0)
        world.tuner.watch(StepCost(records, compute, 1.0 + beside, {"host": 1.0}))
        seconds = np.where(world.tuner.batches > 0, 1.0, np.nan)
        world.tuner.observe(world.step, seconds, 10_000)


def test_another_exchange_has_the_choice_looked_at_again_and_one_that_alternates_ever_more_seldom() -> None:
    world = World((2, 0, 0), (0, 1, 0))
    world.train()
    inner = world.inner[-1]
    exchanging(world, 10 + STEPS_FOR_GOOD, 0.5)
    assert world.planner.changed == []
    exchanging(world, STEPS_FOR_GOOD + 1, 3.0)
    ((changed, again),) = world.planner.changed
    assert (changed, again.exchange) == ({}, True)
    assert world.tuner._inner is inner  # batches came out as they were
    for number in range(20):
        exchanging(world, 40, 0.5 if number % 2 else 3.0)
    assert len(world.planner.changed) <= 6


def test_servers_do_not_look_again() -> None:
    world = World((2, 0, 0), handed_over=True)
    world.train()
    slowed(world, 2 * STEPS_FOR_GOOD)
    assert world.planner.changed == []


@given(st.integers(0, STEPS_FOR_GOOD + 3))
def test_a_resumed_run_looks_again_where_the_other_would(steps: int) -> None:
    world = World((2, 0, 0))
    world.train()
    slowed(world, steps)
    tuner, others = world.again(), world.tuner
    twin = world.planner
    world.tuner = tuner
    slowed(world, STEPS_FOR_GOOD + 2 - min(steps, STEPS_FOR_GOOD))
    resumed = [(sorted(changed), again) for changed, again in world.planner.changed]
    world.tuner, world.step = others, world.step - (STEPS_FOR_GOOD + 2 - min(steps, STEPS_FOR_GOOD))
    slowed(world, STEPS_FOR_GOOD + 2 - min(steps, STEPS_FOR_GOOD))
    assert resumed == [(sorted(changed), again) for changed, again in twin.changed]
    assert world.planner.observed == twin.observed  # of the trials before


def test_it_ponders_until_it_is_decided() -> None:
    world = World(ALL)
    assert world.tuner.is_computing
    assert world.notes == []  # asking begins nothing
    world.train()
    assert not world.tuner.is_computing
    refused = World(ALL, refuses="deadline: 5 s too much")
    refused.train()
    assert not refused.tuner.is_computing


def test_a_server_that_took_over_a_decision_repeats_no_trials_to_take_steps() -> None:
    world = World((2, 0, 0), handed_over=True)
    world.train()
    world.tuner.load_state(msgspec.json.decode(msgspec.json.encode(world.tuner.state())))
    world.take()
    assert world.planner.observed == []
    assert not world.tuner.is_computing
    resumed = World((2, 0, 0))
    resumed.train()
    resumed.tuner = resumed.again()
    assert resumed.tuner.is_computing  # what nodes are expected to take follows from trials
