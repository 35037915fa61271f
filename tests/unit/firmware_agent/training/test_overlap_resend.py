"""Settings that change after their step was announced: who has them in time sends by them, and nothing else changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firmware_agent.common.frames.session_frames import Slice
from firmware_agent.common.frames.step_frames import Resend, SendingSpec, Step
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.shard import Shard
from firmware_agent.common.wire import AnyFrame
from host.core.records import EventKind
from host.policies.transfer.transfer_tuner import Change, StepSeen
from host.training.sync.exchange.slice_log import SliceLog
from host.training.transfer_policy import TransferPolicy
from tests.support.examples import examples
from tests.support.fakes import random_shard
from tests.support.pipes import Tamper, honest
from tests.unit.firmware_agent.training.test_overlapped_passes import (
    RECORDS,
    Changing,
    Trial,
    go,
    reference,
    sendings,
    weights,
)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return random_shard(tmp_path_factory.mktemp("shard"), RECORDS)


@dataclass(frozen=True)
class Answering(Changing):
    """Answers each step at once: it announces for the next one what that would not have been sent with."""

    def observe(self, seen: StepSeen) -> Change | None:
        super().observe(seen)
        return Change(seen.step + 1, self.settings[(seen.step + 1) % len(self.settings)], "to see what happens")

    def sending(self, step: int) -> TransferSettings:
        return self.settings[min(step, len(self.seen) + 1) % len(self.settings)]


def patient() -> Tamper:
    """Weights of an announced step reach the drive behind its other settings."""
    held: list[AnyFrame] = []
    resent: set[int] = set()

    def to_drive(frame: AnyFrame) -> list[AnyFrame]:
        if isinstance(frame, Slice) and frame.exchange > 1 and frame.exchange not in resent:
            held.append(frame)
            return []
        if isinstance(frame, Resend):
            resent.add(frame.step)
            released = [frame, *held]
            held.clear()
            return released
        return [frame]

    return to_drive


A, B, C = (TransferSettings("priority", size, 4 * size) for size in (400, 1000, 333))
# Of one epoch: each but the first is announced before the one before it is over.
STEPS = 4


def pushed_sizes(log: SliceLog) -> list[int]:
    return [each.size_bytes for each in log.records() if each.direction == "push"]


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chosen=st.lists(st.one_of(sendings, st.just(TransferSettings())), min_size=2, max_size=4))
def test_weights_are_the_same_bit_for_bit_whenever_settings_come(shard: Shard, chosen: list[TransferSettings]) -> None:
    run = go(shard, TransferPolicy(Answering(chosen, []), True))
    assert run.told(EventKind.LOST) == run.told(EventKind.FAILED) == []
    assert weights(run) == reference(shard)


def test_what_a_step_told_is_done_in_the_next_one(shard: Shard) -> None:
    logs: list[SliceLog] = []
    tuner = Answering([A, B, C], [])
    tampers = [(patient(), honest), (patient(), honest)]
    run = go(shard, TransferPolicy(tuner, True), STEPS, tampers=tampers, on_log=logs.append)
    assert run.told(EventKind.LOST) == run.told(EventKind.FAILED) == []
    assert len(logs) == 2 * STEPS
    for log in logs:
        wanted = [A, B, C][log.step % 3]
        assert log.timed is not None
        assert log.timed.resent == (log.step > 1)
        assert max(pushed_sizes(log)) == wanted.slice_bytes
    assert [seen.sending for seen in tuner.seen] == [[A, B, C][step % 3] for step in range(1, STEPS + 1)]
    recorded = [step.sending for step in run.rounds[0].steps]
    assert [each and each.slice_bytes for each in recorded] == [seen.sending.slice_bytes for seen in tuner.seen]


def test_a_step_whose_gradients_one_device_sent_as_it_was_announced_counts_as_announced(shard: Shard) -> None:
    def deaf(frame: AnyFrame) -> list[AnyFrame]:
        return [] if isinstance(frame, Resend) else [frame]

    tuner = Answering([A, B, C], [])
    run = go(shard, TransferPolicy(tuner, True), STEPS, tampers=[(deaf, honest), (patient(), honest)])
    assert run.told(EventKind.LOST) == run.told(EventKind.FAILED) == []
    # Each step is announced when the one before it has been answered, and that was one step earlier.
    assert [seen.sending for seen in tuner.seen] == [[A, B, C][max(1, step - 1) % 3] for step in range(1, STEPS + 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("frame", "match"),
    [
        (Resend(9, SendingSpec("priority", 100, 100)), "exchange 9, which it has not announced"),
        (Resend(1, SendingSpec("fifo", 100)), "asks for settings that cannot be"),
    ],
)
def test_settings_that_cannot_be_end_the_session_and_are_named(shard: Shard, frame: Resend, match: str) -> None:
    def to_drive(sent: AnyFrame) -> Sequence[AnyFrame]:
        return [sent, frame] if isinstance(sent, Step) and sent.step == 1 else [sent]

    trial = Trial(shard, TransferPolicy(Changing([A]), True), tampers=[(to_drive, honest), (honest, honest)])  # type: ignore[list-item]
    run = asyncio.run(trial.run())
    assert match in trial.drives[0].far.why
    assert len(run.told(EventKind.LOST)) == 1
