"""Real agents and the host's end, slices crossing while models compute: weights equal, faults end in clear errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import DeviceFailed
from firmware_agent.common.frames.session_frames import Received, Slice, Tensors
from firmware_agent.common.frames.step_frames import Step, Stepped
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.shard import Shard
from firmware_agent.common.wire import AnyFrame, unpack
from host.core.records import EventKind
from host.policies.transfer.transfer_tuner import Change, FixedSending, StepSeen, check_seen
from host.training.sync.exchange.slice_log import SliceLog
from host.training.transfer_policy import TransferPolicy
from tests.support.examples import examples
from tests.support.fakes import JOB, random_shard
from tests.support.pipes import ModelEvaluator, PipeDrive, Tamper, honest
from tests.support.planning import Choosing, cluster
from tests.support.sync import SyncRun

RECORDS = 40
# A normalisation, an idle layer, a tied parameter, and a weight that is used without its module.
SOURCE = """
import torch
from torch import nn
class build(nn.Module):
    def __init__(self):
        super().__init__()
        self.idle, self.first, self.norm = nn.Linear(2, 2), nn.Linear(64, 24), nn.BatchNorm1d(24)
        self.a, self.b, self.out = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 10)
        self.b.weight = self.a.weight
        self.aside = nn.Linear(24, 24)
    def forward(self, images):
        x = self.norm(self.first(images.flatten(1))).tanh()
        x = self.b(self.a(x).tanh()) + nn.functional.linear(x, self.aside.weight)
        return self.out(x)
"""
FRAME = msgspec.structs.replace(JOB, model="net.py:build", source=SOURCE)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return random_shard(tmp_path_factory.mktemp("shard"), RECORDS)


@dataclass(frozen=True)
class Changing:
    """Settings that change with every step."""

    settings: Sequence[TransferSettings]
    seen: list[StepSeen] = field(default_factory=list)

    def observe(self, seen: StepSeen) -> Change | None:
        check_seen(seen)
        self.seen.append(seen)
        return None

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        pass

    def sending(self, step: int) -> TransferSettings:
        return self.settings[step % len(self.settings)]


async def run_to_its_end(run: SyncRun, drives: Sequence[PipeDrive]) -> SyncRun:
    """Run, and end the drives, however it ended."""
    try:
        await run.run()
    finally:
        for drive in drives:
            await asyncio.to_thread(drive.end)
    return run


class Trial:
    """A run of two drives, and what it ended with."""

    def __init__(
        self,
        shard: Shard,
        communication: TransferPolicy,
        steps: int = 6,
        tampers: Sequence[tuple[Tamper, Tamper]] = ((honest, honest),) * 2,
        watchdog_seconds: float = 30.0,
        order: tuple[str, ...] = (),
        on_log: Callable[[SliceLog], None] = lambda _: None,
        **job: Any,
    ) -> None:
        self._arguments = (shard, tampers, order)
        self._fields: dict[str, Any] = {"communication": communication, "watchdog_seconds": watchdog_seconds}
        self._on_log = on_log
        self._fields |= {"sync": {"round_steps": steps}, "momentum": 0.9, "learning_rate": 0.05, **job}

    async def run(self) -> SyncRun:
        shard, tampers, order = self._arguments
        drives = [PipeDrive(f"csd-{n:02d}", shard, *tamper) for n, tamper in enumerate(tampers)]
        self.drives = drives
        run = SyncRun(
            *drives, records=RECORDS, evaluator=ModelEvaluator(FRAME, order), frame=FRAME, batch_size=5,
            on_log=self._on_log, **self._fields
        )  # fmt: skip
        return await run_to_its_end(run, drives)


def weights(run: SyncRun) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in run.training.weights.items()}


def go(shard: Shard, communication: TransferPolicy, steps: int = 6, **more: Any) -> SyncRun:
    return asyncio.run(Trial(shard, communication, steps, **more).run())


sizes = st.one_of(st.none(), st.integers(1, 20_000))
sendings = st.builds(lambda size, credit: TransferSettings("priority", size, credit), st.integers(200, 20_000), sizes)
REFERENCE: dict[str, dict[str, bytes]] = {}


def reference(shard: Shard, batch_norm: str = "device") -> dict[str, bytes]:
    """The weights of whole tensors, sent before and after computing."""
    if batch_norm not in REFERENCE:
        sync = {"round_steps": 6, "batch_norm": batch_norm}
        REFERENCE[batch_norm] = weights(go(shard, TransferPolicy(), sync=sync))
    return REFERENCE[batch_norm]


@pytest.mark.slow
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    chosen=st.lists(st.one_of(sendings, st.just(TransferSettings())), min_size=1, max_size=4),
    overlap=st.booleans(),
    order=st.booleans(),
)
def test_weights_are_the_same_bit_for_bit_whatever_the_settings_and_their_changes(
    shard: Shard, chosen: list[TransferSettings], overlap: bool, order: bool
) -> None:
    names = tuple(name for name in ModelEvaluator(FRAME).initial_weights() if name != "b.weight")
    run = go(shard, TransferPolicy(Changing(chosen), overlap), order=names[::-1] if order else ())
    assert run.told(EventKind.LOST) == run.told(EventKind.FAILED) == []
    assert weights(run) == reference(shard)


@pytest.mark.slow
@pytest.mark.parametrize("batch_norm", ["synchronised", "frozen"])
def test_statistics_of_all_participants_are_exchanged_while_steps_overlap(shard: Shard, batch_norm: str) -> None:
    sync = {"round_steps": 6, "batch_norm": batch_norm}
    run = go(shard, TransferPolicy(FixedSending(TransferSettings("priority", 500, 1000)), True), sync=sync)
    assert run.told(EventKind.LOST) == run.told(EventKind.FAILED) == []
    assert weights(run) == reference(shard, batch_norm)


@pytest.mark.slow
def test_a_step_is_announced_before_the_one_before_it_is_over_but_for_rounds_and_epochs(shard: Shard) -> None:
    seen: list[str] = []

    def to_drive(frame: AnyFrame) -> list[AnyFrame]:
        if isinstance(frame, Step):
            seen.append(f"step {frame.step}")
        return [frame]

    def to_host(frame: AnyFrame) -> list[AnyFrame]:
        if isinstance(frame, Stepped):
            seen.append(f"stepped {frame.step}")
        return [frame]

    tampers = [(to_drive, to_host), (honest, honest)]
    go(
        shard,
        TransferPolicy(FixedSending(TransferSettings("priority", 500, 1000)), True),
        tampers=tampers,
        steps=3,
        rounds=2,
    )
    for number in (2, 3, 6):
        assert seen.index(f"step {number}") < seen.index(f"stepped {number - 1}")
    for number in (4, 5):  # a new round, a new epoch
        assert seen.index(f"step {number}") > seen.index(f"stepped {number - 1}")
    assert len(seen) == 12


@pytest.mark.slow
def test_credit_is_kept_and_every_byte_sent_once_each_way(shard: Shard) -> None:
    """As the wire shows it: what is sent and not acknowledged stays below credit and a slice."""
    under_way, most = [0], [0]
    places: set[tuple[int, str, int]] = set()

    def to_host(frame: AnyFrame) -> list[AnyFrame]:
        if isinstance(frame, Slice):
            assert (frame.exchange, frame.tensor, frame.offset) not in places
            places.add((frame.exchange, frame.tensor, frame.offset))
            under_way[0] += len(frame.data)
            most[0] = max(most[0], under_way[0])
        return [frame]

    def to_drive(frame: AnyFrame) -> list[AnyFrame]:
        if isinstance(frame, Received):
            under_way[0] -= frame.size_bytes
        return [frame]

    tampers = [(to_drive, to_host), (honest, honest)]
    go(shard, TransferPolicy(FixedSending(TransferSettings("priority", 300, 1000)), True), tampers=tampers)
    assert 0 < most[0] < 1000 + 300
    assert under_way[0] == 0


@pytest.mark.slow
def test_nothing_waits_in_a_message_of_the_hosts_for_a_slice_behind_it(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, write = list[bytes](), PipeDrive.write

    async def heard(self: PipeDrive, message: bytes) -> None:
        messages.append(message)
        await write(self, message)

    monkeypatch.setattr(PipeDrive, "write", heard)
    go(shard, TransferPolicy(FixedSending(TransferSettings("priority", 6000, 12000)), True))
    assert max(map(len, messages)) > 6000
    assert any(isinstance(frame, Received) for message in messages for frame in unpack(message))
    assert all(len(message) < 5000 or len(unpack(message)) == 1 for message in messages)


@pytest.mark.slow
def test_a_tuner_is_told_of_every_step_what_it_cost_and_every_slice_is_logged(shard: Shard) -> None:
    tuner = Changing([TransferSettings("priority", 1000, 3000)])
    run = go(shard, TransferPolicy(tuner, True))
    assert [seen.step for seen in tuner.seen] == list(range(1, 7))
    sizes = {name: array.nbytes for name, array in run.training.weights.items()}
    for seen in tuner.seen:
        assert len(seen.drives) == 2
        # A drive may begin a step before the last one's gradients are all in: its layers can take longer than a step.
        assert seen.step_seconds > 0
        for drive in seen.drives:
            assert [layer.name for layer in drive.costs][:2] == ["first", "norm"]
            exchanged = {tensor.name: tensor.size_bytes for layer in drive.costs for tensor in layer.tensors}
            assert exchanged == {name: sizes[name] for name in exchanged}
            assert exchanged.keys() == sizes.keys() - {"b.weight"}
            assert sum(layer.forward_seconds + layer.backward_seconds for layer in drive.costs) > 0
            ways, slice_bytes, left, read = drive.slices.T
            assert set(ways) == {0, 1}
            assert slice_bytes.min() > 0
            assert (read - left).min() > -0.01  # of two clocks


@pytest.mark.slow
@pytest.mark.parametrize("sending", [TransferSettings(), TransferSettings("priority", 1000, 3000)])
def test_the_log_holds_every_byte_of_both_ways_once_in_the_order_of_its_life(
    shard: Shard, sending: TransferSettings
) -> None:
    logs: list[SliceLog] = []
    run = go(shard, TransferPolicy(FixedSending(sending), True), on_log=logs.append)
    sent = sum(array.nbytes for name, array in run.training.weights.items() if name != "b.weight")
    assert len(logs) == 12
    for log in logs:
        records = list(log.records())
        for way in ("pull", "push"):
            own = [each for each in records if each.direction == way]
            assert sum(each.size_bytes for each in own) == sent
            assert len({(each.tensor, each.offset) for each in own}) == len(own)
        assert all(each.ready_seconds <= each.begin_seconds <= each.end_seconds for each in records)


# Faults.


def once(kind: type[AnyFrame], number: int, change: Any) -> Tamper:
    """Change the `number`th frame of a kind, from 0."""
    count = iter(range(10**9))

    def tamper(frame: AnyFrame) -> list[AnyFrame]:
        changed: list[AnyFrame] = change(frame) if isinstance(frame, kind) and next(count) == number else [frame]
        return changed

    return tamper


PRIORITY = TransferPolicy(FixedSending(TransferSettings("priority", 1000, 4000)), True)


def older(frame: AnyFrame) -> list[AnyFrame]:
    return [frame, msgspec.structs.replace(frame, exchange=0)]  # type: ignore[type-var, list-item]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["to the drive", "to the host"])
def test_a_repeated_slice_is_applied_once(shard: Shard, way: str) -> None:
    """A repetition is acknowledged too, more than was sent: the session ends, the run goes on, no weight is wrong."""
    tamper = once(Slice, 30, lambda frame: [frame, frame])
    tampers = [(tamper, honest) if way == "to the drive" else (honest, tamper), (honest, honest)]
    run = go(shard, PRIORITY, tampers=tampers)
    assert all(np.isfinite(array).all() for array in run.training.weights.values())
    assert len(run.told(EventKind.LOST)) <= 1
    assert [len(record.steps) for record in run.rounds] == [6]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "match"), [("to the drive", "exchange 0, which it has not announced"), ("to the host", "exchange 0")]
)
def test_a_slice_of_an_older_step_ends_the_session_and_is_named(shard: Shard, way: str, match: str) -> None:
    tamper = once(Slice, 30, older)
    trial = Trial(
        shard, PRIORITY, tampers=[(tamper, honest) if way == "to the drive" else (honest, tamper), (honest, honest)]
    )
    run = asyncio.run(trial.run())
    told = [*run.told(EventKind.LOST), trial.drives[0].far.why]
    assert any(match in each for each in told), told
    assert [part.device for part in run.rounds[0].steps[-1].devices] == ["csd-01"]


@pytest.mark.slow
def test_a_lost_slice_ends_in_a_deadline_on_either_side_and_the_others_go_on(shard: Shard) -> None:
    for way in (0, 1):
        tamper = once(Slice, 40, lambda _: [])
        tampers = [(tamper, honest) if way == 0 else (honest, tamper), (honest, honest)]
        run = go(shard, PRIORITY, tampers=tampers, watchdog_seconds=2.0)
        assert len(run.told(EventKind.LOST)) == 1
        assert [part.device for part in run.rounds[0].steps[-1].devices] == ["csd-01"]


@pytest.mark.slow
@pytest.mark.parametrize("way", [0, 1])
def test_a_peer_that_stops_acknowledging_is_given_up_after_the_deadline_and_never_waited_for_for_ever(
    shard: Shard, way: int
) -> None:
    count = iter(range(10**9))

    def deaf(frame: AnyFrame) -> list[AnyFrame]:
        return [] if isinstance(frame, Received) and next(count) > 5 else [frame]

    trial = Trial(
        shard,
        PRIORITY,
        tampers=[(deaf, honest) if way == 0 else (honest, deaf), (honest, honest)],
        watchdog_seconds=2.0,
    )
    run = asyncio.run(trial.run())
    (told,) = run.told(EventKind.LOST)
    assert "acknowledged none of" in told + trial.drives[0].far.why or "silent for" in told
    assert [part.device for part in run.rounds[0].steps[-1].devices] == ["csd-01"]


@pytest.mark.slow
def test_a_host_that_announces_what_it_must_not_is_refused(shard: Shard) -> None:
    def twice(frame: AnyFrame) -> list[AnyFrame]:
        return [frame, frame]

    trial = Trial(shard, PRIORITY, tampers=[(once(Tensors, 2, twice), honest), (honest, honest)])
    run = asyncio.run(trial.run())
    assert "announced exchange 3 after 3" in trial.drives[0].far.why
    assert len(run.told(EventKind.LOST)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("communication", [TransferPolicy(), PRIORITY], ids=["in turn", "overlapping"])
def test_a_step_that_failed_in_all_drives_is_taken_again_in_the_same_sessions(
    shard: Shard, communication: TransferPolicy
) -> None:
    def beyond(frame: AnyFrame) -> list[AnyFrame]:
        return [msgspec.structs.replace(frame, records=b"\xff\xff\xff\x7f")]  # type: ignore[type-var, list-item]

    run = go(shard, communication, tampers=[(once(Step, 5, beyond), honest) for _ in range(2)])
    assert sorted(told.split(":")[0] for told in run.told(EventKind.FAILED)) == ["csd-00", "csd-01"]
    assert not run.told(EventKind.LOST)
    assert [[part.device for part in step.devices] for step in run.rounds[0].steps] == [["csd-00", "csd-01"]] * 6


@pytest.mark.slow
async def test_a_device_that_joins_in_the_middle_of_a_change_takes_part(shard: Shard) -> None:
    """It gets the settings of the step that it joins in, and the weights as they are then."""
    changing = TransferPolicy(
        Changing([TransferSettings("priority", n, 4 * n) for n in (100, 1000, 333)] + [TransferSettings()]), True
    )
    late = threading.Event()

    def to_host(frame: AnyFrame) -> list[AnyFrame]:
        if isinstance(frame, Stepped) and frame.step == 4:
            late.set()
        return [frame]

    drives = [PipeDrive("csd-00", shard, to_host=to_host), PipeDrive("csd-01", shard)]
    run = SyncRun(
        *drives, records=RECORDS, evaluator=ModelEvaluator(FRAME), frame=FRAME, batch_size=3, communication=changing,
        sync={"round_steps": 12},
    )  # fmt: skip
    joiner = run.fleet.drives.pop()
    going = asyncio.ensure_future(run.run())
    await asyncio.to_thread(late.wait, 30.0)
    run.fleet.join(joiner)
    (record,) = await going
    for drive in drives:
        await asyncio.to_thread(drive.end)
    assert run.told(EventKind.LOST) == run.told(EventKind.FAILED) == []
    took = [len(step.devices) for step in record.steps]
    assert took[:4] == [1] * 4
    assert 2 in took[4:]


@pytest.mark.slow
def test_a_model_that_fails_in_a_step_fails_there_and_goes_on(shard: Shard) -> None:
    failing = SOURCE.replace(
        "        x = self.norm", "        self.calls = getattr(self, 'calls', 0) + 1\n"
        "        if self.calls == 3:\n            raise ValueError('no third time')\n        x = self.norm"
    )  # fmt: skip

    async def run() -> SyncRun:
        frame = msgspec.structs.replace(FRAME, source=failing)
        drives = [PipeDrive(f"csd-0{n}", shard) for n in range(2)]
        run = SyncRun(
            *drives, records=RECORDS, evaluator=ModelEvaluator(FRAME), frame=frame, batch_size=3,
            communication=PRIORITY, sync={"round_steps": 6},
        )  # fmt: skip
        return await run_to_its_end(run, drives)

    done = asyncio.run(run())
    assert len(done.told(EventKind.FAILED)) == 2
    assert all("no third time" in each for each in done.told(EventKind.FAILED))
    assert done.told(EventKind.LOST) == []
    assert [len(record.steps) for record in done.rounds] == [6]


def test_a_gradient_that_changes_after_it_was_sent_is_an_error_not_a_wrong_sum(shard: Shard) -> None:
    """A second pass within the forward pass accumulates twice, from its second step on."""
    cheating = SOURCE.replace(
        "        return self.out(x)",
        "        self.calls = getattr(self, 'calls', 0) + 1\n        y = self.out(x)\n        if self.calls > 1:\n"
        "            y = y + Again.apply(y, self.out.weight)\n        return y",
    ) + (
        "\nclass Again(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, y, w):\n"
        "        ctx.w = w\n        return y * 0\n    @staticmethod\n    def backward(ctx, g):\n"
        "        with torch.enable_grad():\n            (ctx.w.sum() * 1.0).backward()\n        return g * 0, None\n"
    )  # fmt: skip

    async def run() -> SyncRun:
        frame = msgspec.structs.replace(FRAME, source=cheating)
        drives = [PipeDrive("csd-00", shard)]
        run = SyncRun(
            *drives, records=RECORDS, evaluator=ModelEvaluator(FRAME), frame=frame, batch_size=3,
            communication=PRIORITY, sync={"round_steps": 3},
        )  # fmt: skip
        try:
            with pytest.raises(DeviceFailed, match="changed after it was sent"):
                await run.run()
        finally:
            for drive in drives:
                await asyncio.to_thread(drive.end)
        return run

    done = asyncio.run(run())
    assert "the gradient of out.weight changed after it was sent" in done.told(EventKind.FAILED)[0]


@pytest.mark.slow
def test_of_steps_announced_ahead_those_count_for_a_plan_that_have_its_batches(shard: Shard) -> None:
    choosing = Choosing(cluster(2, 0, host=False), (2,), (1,), batch=5)
    run = go(shard, PRIORITY, make_tuner=choosing, steps=8)
    took_part = [[part.device for part in step.devices] for step in run.rounds[0].steps]
    # Two of the trial, and the one that was announced before the second one had ended.
    # Behind these is whoever was faster.
    assert took_part[:5] == [["csd-00", "csd-01"]] * 3 + [["csd-00"]] * 2
    assert [[set(one.compute_seconds) for one in seen] for _, seen in choosing.planners[0].observed] == [
        [{"csd-00", "csd-01"}] * 2,
        [{"csd-00"}] * 2,
    ]
