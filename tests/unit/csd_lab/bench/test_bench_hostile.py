"""What a hostile drive of the bench does to frames, and what its runs come to."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.bench.security.hostile_behaviour import HOSTILE, Behaviour, HostileFrames
from csd_lab.bench.security.hostile_runs import NEVER, CaseOutcome, judge, short_events
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Job, Slice, Tensors, Train, Trained
from firmware_agent.common.frames.step_frames import Activations, Reduce, Step, Stepped
from firmware_agent.common.slices import Assembler, cut_slices, tensor_specs
from firmware_agent.common.wire import AnyFrame, decode, encode
from host.core.records import EventKind, EventRecord

SENT = {"w": np.array([1.0, 2.0, 3.0], np.float32), "n": np.array(5)}
RETURNED = {"w": np.array([1.5, 1.0, 3.0], np.float32), "n": np.array(6)}
JOB = Job("digits_cnn", {}, None, 1.0, 0, 0.01, 0.9, 8)
DRIVE = "csd-03"


def frames(number: int, arrays: dict[str, np.ndarray], closing: AnyFrame) -> list[AnyFrame]:
    pieces = [decode(encode(piece)) for piece in cut_slices(number, arrays)]
    return [Tensors(number, tensor_specs(arrays)), *pieces, closing]


def do_task(hostile: HostileFrames, number: int, step: bool = False) -> list[AnyFrame]:
    """Everything, but of an endless answer its beginning, that goes to the host in place of an honest answer."""
    task = Step(number, bytes(4), 8) if step else Train(number, 1)
    seconds = PhaseSeconds(1.0, 1.0)
    done = Stepped(number, 8, 0.5, seconds, 64) if step else Trained(number, 8, 1, 0.5, seconds, 64)
    for frame in frames(number, SENT, task):
        hostile.take(frame)
    answers = [itertools.islice(hostile.give(frame), 1000) for frame in frames(number, RETURNED, done)]
    return list(itertools.chain.from_iterable(answers))


def arrays_of(answer: list[AnyFrame]) -> dict[str, np.ndarray]:
    announced = answer[0]
    assert isinstance(announced, Tensors)
    assembler = Assembler(announced.exchange, announced.specs)
    for piece in answer:
        if isinstance(piece, Slice):
            assembler.add(piece)  # its checksum is right
    return assembler.arrays()


@given(number=st.integers(1, 99), step=st.booleans(), changes=st.lists(st.sampled_from(HOSTILE), max_size=3))
def test_an_honest_one_changes_nothing_whatever_it_was_before(
    number: int, step: bool, changes: list[Behaviour]
) -> None:
    hostile = HostileFrames()
    for behaviour in changes:
        hostile.behaviour = behaviour
        do_task(hostile, number)
    hostile.behaviour = Behaviour.HONEST
    hostile.take(JOB)
    answer = do_task(hostile, number, step)
    assert [type(frame) for frame in answer][-1] is (Stepped if step else Trained)
    for name, array in arrays_of(answer).items():
        assert np.array_equal(array, RETURNED[name])


@pytest.mark.parametrize(
    ("behaviour", "federated", "sync"),
    [
        (Behaviour.NAN, [math.nan] * 3, [math.nan] * 3),
        (Behaviour.INF, [math.inf] * 3, [math.inf] * 3),
        (Behaviour.HUGE, [1e30] * 3, [1e30] * 3),
        (Behaviour.SIGN_FLIP, [0.5, 3.0, 3.0], [-1.5, -1.0, -3.0]),
        (Behaviour.SCALED, [51.0, -98.0, 3.0], [150.0, 100.0, 300.0]),
    ],
)
def test_what_becomes_of_an_update_and_of_a_gradient(
    behaviour: Behaviour, federated: list[float], sync: list[float]
) -> None:
    for step, expected in ((False, federated), (True, sync)):
        arrays = arrays_of(do_task(HostileFrames(behaviour), 1, step))
        np.testing.assert_allclose(arrays["w"], np.array(expected, np.float32))
        assert arrays["n"] == 6  # integers stay


def test_reports_shapes_and_what_is_held_back_or_never_ends() -> None:
    def closing(behaviour: Behaviour) -> Trained:
        last = do_task(HostileFrames(behaviour), 1)[-1]
        assert isinstance(last, Trained)
        return last

    assert closing(Behaviour.FALSE_SAMPLES).samples == 2**53
    assert closing(Behaviour.FALSE_SECONDS).seconds.total == 1e-9
    announced = do_task(HostileFrames(Behaviour.WRONG_SHAPES), 1)[0]
    assert isinstance(announced, Tensors)
    assert [spec.shape for spec in announced.specs] == [(3, 2), (2,)]
    assert do_task(HostileFrames(Behaviour.SILENCE), 1) == []
    for behaviour in (Behaviour.SLOW_DRIP, Behaviour.FLOOD):
        assert sum(isinstance(frame, Slice) for frame in do_task(HostileFrames(behaviour), 1)) == 2000


def within_step(behaviour: Behaviour, number: int, hostile: HostileFrames | None = None) -> list[AnyFrame]:
    """What goes to the host in place of an honest step with a sum and activations."""
    hostile = hostile or HostileFrames(behaviour)
    for frame in frames(number, SENT, Step(number, bytes(8), 8)):
        hostile.take(frame)
    crossing = {"0": np.ones(2, np.float32), "labels": np.zeros(2, np.int64)}
    pieces = [decode(encode(piece)) for piece in cut_slices(number, crossing)]
    report = Stepped(number, 2, 0.5, PhaseSeconds(1.0), 64)
    answer = [Reduce(number, 0, np.ones(3).tobytes()), Activations(number, 0, tensor_specs(crossing)), *pieces]
    answer += frames(number, RETURNED, report)
    return list(itertools.chain.from_iterable(hostile.give(frame) for frame in answer))


def test_within_a_step_what_the_others_wait_for_is_wrong_or_left_out() -> None:
    honest = within_step(Behaviour.HONEST, 2)
    vain = within_step(Behaviour.REDUCE_IN_VAIN, 2)
    assert [frame for frame in vain if frame not in honest] == [Reduce(2, 0, bytes(8))]
    (wrong,) = [frame for frame in within_step(Behaviour.SUMS_NAN, 2) if frame not in honest]
    assert isinstance(wrong, Reduce)
    assert np.isnan(np.frombuffer(wrong.values)).all()
    (huge,) = [frame for frame in within_step(Behaviour.ACTIVATIONS_HUGE, 2) if frame not in honest]
    assert isinstance(huge, Slice)
    assert (huge.tensor, np.frombuffer(huge.data, np.float32).tolist()) == ("0", [np.float32(1e30)] * 2)


def test_a_step_that_ends_early_has_gradients_of_nothing_and_no_sums() -> None:
    hostile = HostileFrames(Behaviour.STEPPED_EARLY)
    first = within_step(Behaviour.STEPPED_EARLY, 1, hostile)
    assert first == within_step(Behaviour.HONEST, 1)  # it has to know what its gradients are called
    second = within_step(Behaviour.STEPPED_EARLY, 2, hostile)
    assert not [frame for frame in second if isinstance(frame, Reduce | Activations)]
    assert not any(array.any() for array in arrays_of(second).values())
    assert second[-1] == Stepped(2, 2, 0.5, PhaseSeconds(1.0), 0)


def test_a_replay_sends_its_first_answer_again_until_there_is_another_job() -> None:
    hostile = HostileFrames(Behaviour.REPLAY)
    first = do_task(hostile, 1)
    assert arrays_of(first)["w"].tolist() == RETURNED["w"].tolist()
    assert do_task(hostile, 2) == do_task(hostile, 3) == first
    hostile.take(JOB)
    assert do_task(hostile, 4) != first


def outcome(mode: str = "federated", behaviour: Behaviour = Behaviour.NAN, **changes: object) -> CaseOutcome:
    facts: dict[str, object] = {
        "error": "",
        "finite": True,
        "accuracy": 0.95,
        "reference": 0.96 if mode == "federated" else None,
        "events": [EventRecord(DRIVE, EventKind.REJECTED, "in round 1: why [norm]")],
    }
    return CaseOutcome(mode=mode, behaviour=behaviour, seed=0, strategy="fedavg", seconds=1.0, **(facts | changes))  # type: ignore[arg-type]


def test_the_figures_of_runs_that_held() -> None:
    aside = [EventRecord(DRIVE, EventKind.REJECTED, f"in step {n}: why [direction]") for n in (5, 6, 7)]
    flip = outcome(
        "sync", Behaviour.SIGN_FLIP, events=[*aside, EventRecord(DRIVE, EventKind.SET_ASIDE, "refused 3 times")]
    )
    figures = judge([outcome(), outcome(accuracy=0.97), flip], DRIVE)
    expected = {"cases": 3, "runs_lost": 0, "honest_drives_lost": 0, "unnamed": 0, "sign_flip_steps": 7}
    assert figures == expected | {"final_accuracy": pytest.approx(-0.01)}


def test_what_counts_against_a_case(subtests: pytest.Subtests) -> None:
    for changes, figure, value in [
        ({"error": "DeviceLost: gone"}, "runs_lost", 1),
        ({"finite": False}, "runs_lost", 1),
        ({"events": []}, "unnamed", 1),
        ({"events": [EventRecord(DRIVE, EventKind.JOINED, "")]}, "unnamed", 1),
        ({"events": [EventRecord("host", EventKind.NOTE, "about csd-03")]}, "unnamed", 1),
        (
            {"events": [EventRecord("csd-01", EventKind.LOST, ""), EventRecord("csd-01", EventKind.LOST, "")]},
            "honest_drives_lost",
            1,
        ),
        ({"events": [EventRecord("csd-01", EventKind.SET_ASIDE, "")]}, "honest_drives_lost", 1),
        ({"accuracy": 0.5}, "final_accuracy", pytest.approx(-0.46)),
    ]:
        with subtests.test(changes=changes, figure=figure, value=value):
            assert judge([outcome(**changes)], DRIVE)[figure] == value


def test_a_flip_that_nobody_is_set_aside_for_never_is() -> None:
    refused = [EventRecord(DRIVE, EventKind.REJECTED, "in step 3: why [direction]")]
    assert judge([outcome("sync", Behaviour.SIGN_FLIP, events=refused)], DRIVE)["sign_flip_steps"] == NEVER


def test_a_report_has_the_first_events_that_matter_and_no_more() -> None:
    noise = [EventRecord("csd-00", EventKind.JOINED, "")]
    told = [EventRecord(DRIVE, EventKind.REJECTED, "x" * 1000)] * 20
    short = short_events([*noise, *told], DRIVE)
    assert len(short) == 12
    assert all(text.startswith("csd-03: rejected x") and len(text) == 300 for text in short)
