"""A cut where slices cross while drives compute: real agents in threads, the host's part of the model, and faults."""

from __future__ import annotations

import asyncio
import copy
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from csd_lab.bench.training.gradient_reference import ReferenceParticipant, reference_step
from firmware_agent.common.errors import DeviceFailed, DeviceLost
from firmware_agent.common.frames.session_frames import Job, Received, Slice, Tensors
from firmware_agent.common.frames.step_frames import ActivationGradients, Activations, Step, Stepped
from firmware_agent.common.models import build_model
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.shard import Shard
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array
from firmware_agent.common.split.cutting import Cut, cut_model
from firmware_agent.common.weights import load_arrays, state_arrays, tied_names, trained_names
from firmware_agent.common.wire import AnyFrame
from firmware_agent.training import loaded_job
from host.core.records import EventKind, StepRecord
from host.policies.transfer.transfer_tuner import FixedSending
from host.training.sync.exchange.activation_exchange import ActivationExchange
from host.training.sync.exchange.slice_log import SliceLog
from host.training.sync.exchange.step_extension import part_sizes
from host.training.sync.host_part import HostPartStep
from host.training.sync.server_model.activation_types import ActivationBatch, ActivationGrads
from host.training.sync.server_model.server_model import ServerModel, ServerModelPass
from host.training.transfer_policy import TransferPolicy
from tests.support.examples import examples
from tests.support.fakes import JOB, random_shard
from tests.support.pipes import ModelEvaluator, PipeDrive, Tamper, honest
from tests.support.sync import SyncRun
from tests.unit.firmware_agent.training.test_overlapped_passes import Changing

RECORDS, STEPS = 60, 5
# Normalises on both sides of most cuts; two values cross before `after`; a layer that no record goes through.
SOURCE = """
import torch
from torch import nn
class build(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(64, 24), nn.BatchNorm1d(24)
        self.second, self.after = nn.Linear(24, 20), nn.BatchNorm1d(20)
        self.idle, self.out = nn.Linear(2, 2), nn.Linear(44, 10)
    def forward(self, images):
        x = self.norm(self.first(images.flatten(1))).tanh()
        y = self.after(self.second(x)).relu()
        return self.out(torch.cat([x, y], 1))
"""
FRAME = msgspec.structs.replace(JOB, model="net.py:build", source=SOURCE, precision="float64")
LAYERS = ("norm", "second", "after", "out")
CROSSING = ("0", "1", "labels", "random")
PRIORITY = TransferPolicy(FixedSending(TransferSettings("priority", 1000, 4000)), True)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return random_shard(tmp_path_factory.mktemp("shard"), RECORDS)


@pytest.fixture(autouse=True)
def _cut_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have models cut before drives do: while torch traces one, every module of the process behaves otherwise."""
    fronts = {layer: cut_before(layer) for layer in LAYERS}
    monkeypatch.setattr(loaded_job, "build_front", lambda _, __, layer: copy.deepcopy(fronts[layer]))


class Doubles(ModelEvaluator):
    """Starts from the model's weights in double precision."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._model.double()


def whole_model() -> torch.nn.Module:
    torch.manual_seed(FRAME.seed)
    return build_model(ShippedCode(FRAME.model, SOURCE)).double().train()


def cut_before(layer: str) -> Cut:
    return cut_model(whole_model(), torch.zeros(2, 1, 8, 8, dtype=torch.float64), layer)


def tail_of(layer: str, batch_norm: str) -> Callable[[dict[str, Array]], ServerModel]:
    def make(weights: dict[str, Array]) -> ServerModel:
        model = whole_model()
        return ServerModel(cut_before(layer), weights, trained_names(model), tied_names(model), batch_norm, FRAME.seed)

    return make


class Trial:
    """A run of drives, cut before a layer or whole; what they were dealt by step."""

    def __init__(
        self,
        shard: Shard,
        layer: str | None,
        communication: TransferPolicy,
        tampers: Sequence[tuple[Tamper, Tamper]] = ((honest, honest),) * 2,
        **job: Any,
    ) -> None:
        self.shard, self.layer, self.communication, self.tampers = shard, layer, communication, tampers
        self.fields: dict[str, Any] = {"sync": {"round_steps": STEPS}, "batch_size": 7, "learning_rate": 0.05} | job
        self.drives: list[PipeDrive] = []
        self.dealt: dict[int, dict[str, list[int]]] = {}

    def make(self) -> SyncRun:
        """Return the run; its drives are there."""
        batch_norm = self.fields["sync"].get("batch_norm", "device")
        for number, (to_drive, to_host) in enumerate(self.tampers):
            device = f"csd-{number:02d}"
            self.drives.append(PipeDrive(device, self.shard, self._watch(device, to_drive), to_host))
        tail = None if self.layer is None else tail_of(self.layer, batch_norm)
        frame = msgspec.structs.replace(FRAME, cut=self.layer)
        fields = {"records": RECORDS} | self.fields
        return SyncRun(
            *self.drives, evaluator=Doubles(FRAME), frame=frame, communication=self.communication, tail=tail, **fields
        )

    async def run(self) -> SyncRun:
        run = self.make()
        try:
            await run.run()
        finally:
            for drive in self.drives:
                await asyncio.to_thread(drive.end)
        return run

    def _watch(self, device: str, tamper: Tamper) -> Tamper:
        def watched(frame: AnyFrame) -> list[AnyFrame]:
            if isinstance(frame, Step):
                self.dealt.setdefault(frame.step, {})[device] = np.frombuffer(frame.records, "<u4").tolist()
            return tamper(frame)

        return watched

    def groups(self, step: StepRecord, micro_batch: int) -> list[ReferenceParticipant]:
        """Return the records of a step as groups that have statistics of their own."""
        groups = []
        for part in step.devices:
            records = self.dealt[step.step][part.device]
            images = torch.from_numpy(self.shard.fields["image"][records]).double() * FRAME.input_scale
            labels = torch.from_numpy(self.shard.fields["label"][records])
            groups.append(ReferenceParticipant(part.device, images, labels, part_sizes(len(records), micro_batch)))
        return groups


def go(shard: Shard, layer: str | None, communication: TransferPolicy, **more: Any) -> SyncRun:
    return asyncio.run(Trial(shard, layer, communication, **more).run())


def steps_of(run: SyncRun) -> list[StepRecord]:
    return [step for record in run.rounds for step in record.steps]


def weights(run: SyncRun) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in run.training.weights.items()}


def whole_steps(trial: Trial, run: SyncRun, batch_norm: str, micro_batch: int = 100) -> dict[str, Array]:
    """Return the weights after the run's steps, taken by one process with the whole model and plain SGD."""
    state = {name: array.copy() for name, array in state_arrays(whole_model()).items()}
    momentum = {name: np.zeros_like(array) for name, array in state.items()}
    trained = trained_names(whole_model())
    for step in steps_of(run):
        model = whole_model()
        load_arrays(model, state)
        for name, value in reference_step(
            model, batch_norm, trial.groups(step, micro_batch), FRAME.seed, step.step
        ).items():
            if name in trained:
                momentum[name] = trial.fields.get("momentum", 0.0) * momentum[name] + value
                state[name] = state[name] - step.learning_rate * momentum[name]
            else:
                state[name] = value
    return state


sizes = st.one_of(st.none(), st.integers(1, 20_000))
sendings = st.builds(lambda size, credit: TransferSettings("priority", size, credit), st.integers(200, 20_000), sizes)
KINDS: list[dict[str, Any]] = [
    {}, {"micro_batch": 3}, {"batch_norm": "synchronised"}, {"batch_norm": "frozen"}, {"clip_norm": 0.5},
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    layer=st.sampled_from(LAYERS),
    sending=st.one_of(sendings, st.just(TransferSettings())),
    kind=st.sampled_from(KINDS),
    private=st.sampled_from([None, [20, 0]]),
)
def test_weights_are_those_without_overlap_bit_for_bit_and_those_of_the_whole_model(
    shard: Shard, layer: str, sending: TransferSettings, kind: dict[str, Any], private: list[int] | None
) -> None:
    sync = {"round_steps": STEPS} | kind
    job: dict[str, Any] = {"sync": sync, "private": private, "records": 30 if private else RECORDS, "momentum": 0.9}
    run = go(shard, layer, TransferPolicy(FixedSending(sending), True), **job)
    assert run.told(EventKind.LOST) == run.told(EventKind.FAILED) == []
    assert len(steps_of(run)) == STEPS
    assert weights(run) == weights(go(shard, layer, TransferPolicy(), **job))
    whole = go(shard, None, TransferPolicy(), **job)
    for name, array in run.training.weights.items():
        np.testing.assert_allclose(array, whole.training.weights[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["norm", "second"])  # drives have nothing to push at all; statistics alone
@pytest.mark.parametrize("barrier", [{}, {"clip_norm": 0.5}])
def test_drives_without_anything_that_is_trained_push_activations_alone(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, layer: str, barrier: dict[str, Any]
) -> None:
    frozen = "".join(
        f"        self.{name}.requires_grad_(False)\n" for name in ("first", "norm")[: LAYERS.index(layer) + 1]
    )
    source = SOURCE.replace("    def forward", f"{frozen}    def forward")
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", source)
    monkeypatch.setattr(sys.modules[__name__], "FRAME", msgspec.structs.replace(FRAME, source=source))
    front = cut_before(layer)
    monkeypatch.setattr(loaded_job, "build_front", lambda _, __, ___: copy.deepcopy(front))
    assert not any(value.requires_grad for value in front.front.parameters())
    job: dict[str, Any] = {"sync": {"round_steps": STEPS} | barrier, "momentum": 0.9}
    pushed = set[str]()

    def note(frame: AnyFrame) -> list[AnyFrame]:
        pushed.update([frame.tensor] if isinstance(frame, Slice) else [])
        return [frame]

    run = go(shard, layer, PRIORITY, tampers=((honest, note),) * 2, **job)
    assert run.told(EventKind.LOST) == run.told(EventKind.FAILED) == []
    assert len(steps_of(run)) == STEPS
    statistics = {name for name in state_arrays(front.front) if "running" in name or "batches" in name}
    assert pushed >= {"0", "labels"}
    assert pushed - set(CROSSING) == statistics
    assert weights(run) == weights(go(shard, layer, TransferPolicy(), **job))
    whole = go(shard, None, TransferPolicy(), **job)
    for name, array in run.training.weights.items():
        np.testing.assert_allclose(array, whole.training.weights[name], rtol=1e-10, atol=1e-10, err_msg=name)
    assert run.training.weights["first.weight"].tobytes() == state_arrays(whole_model())["first.weight"].tobytes()


@pytest.mark.slow
def test_batches_that_hypertune_changes_give_the_steps_of_the_whole_model(shard: Shard) -> None:
    """A drive that has become slow gets less to do, two steps later, and then as much as before."""
    trial = Trial(
        shard,
        "second",
        PRIORITY,
        tuner="hypertune",
        modelled=True,
        sync={"round_steps": 24, "batch_norm": "frozen", "tuning": {"slow_batch": 12}},
        disturb=[{"device": "csd-01", "at_step": 3, "weight": 200, "steps": 10}],
    )
    run = asyncio.run(trial.run())
    assert run.told(EventKind.LOST) == run.told(EventKind.FAILED) == []
    after = [retune.after["csd-01"] for record in run.rounds for retune in record.retunes]
    assert min(after) < 12
    assert len({len(dealt["csd-01"]) for dealt in trial.dealt.values()}) > 1
    want = whole_steps(trial, run, "frozen")
    for name, array in run.training.weights.items():
        np.testing.assert_allclose(array, want[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.slow
def test_the_hosts_part_waits_for_its_weights_of_the_step_before(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations of step 2 are all there before what step 1 makes of the host's part: they wait for it."""
    want = weights(go(shard, "second", TransferPolicy()))
    here, computed = threading.Event(), list[int]()
    apply, add, compute = HostPartStep._apply, ActivationExchange.add, ServerModelPass.compute
    trial, loops = Trial(shard, "second", PRIORITY), list[asyncio.AbstractEventLoop]()
    added: set[str] = set()

    async def have_its_chance() -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)  # behind whatever wants the only thread that is free

    def late(self: HostPartStep, passing: ServerModelPass) -> None:
        if self.number == 1:
            assert here.wait(30.0)
            asyncio.run_coroutine_threadsafe(have_its_chance(), loops[0]).result(30.0)
            assert len(computed) == 1
        apply(self, passing)

    async def told(self: ActivationExchange, part: int, batch: ActivationBatch) -> ActivationGrads | DeviceFailed:
        if self._step == 2:
            added.add(batch.device)
            asyncio.get_running_loop().call_soon(lambda: here.set() if len(added) == 2 else None)
        return await add(self, part, batch)

    def noted(self: ServerModelPass, batches: Sequence[ActivationBatch]) -> list[ActivationGrads]:
        computed.append(len(batches))
        return compute(self, batches)

    async def run() -> SyncRun:
        loops.append(asyncio.get_running_loop())
        loops[0].set_default_executor(ThreadPoolExecutor(2))
        return await trial.run()

    monkeypatch.setattr(HostPartStep, "_apply", late)
    monkeypatch.setattr(ActivationExchange, "add", told)
    monkeypatch.setattr(ServerModelPass, "compute", noted)
    assert weights(asyncio.run(run())) == want


class Seen:
    """What crosses one drive's wire, in order, by what it is."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, str, int]] = []

    def to_drive(self, frame: AnyFrame) -> list[AnyFrame]:
        self._note("down", frame)
        return [frame]

    def to_host(self, frame: AnyFrame) -> list[AnyFrame]:
        self._note("up", frame)
        return [frame]

    def places(self, way: str, kind: str, step: int) -> list[int]:
        return [place for place, each in enumerate(self.frames) if each == (way, kind, step)]

    def _note(self, way: str, frame: AnyFrame) -> None:
        if isinstance(frame, Slice):
            self.frames.append((way, "crossing" if frame.tensor in CROSSING else "tensor", frame.exchange))
        elif isinstance(frame, Step | Stepped):
            self.frames.append((way, type(frame).__name__, frame.step))


@pytest.mark.slow
def test_what_crosses_goes_between_the_weights_and_the_gradients_of_its_step_and_the_next_is_announced_ahead(
    shard: Shard,
) -> None:
    seen = Seen()
    go(shard, "after", PRIORITY, tampers=[(seen.to_drive, seen.to_host), (honest, honest)])
    for step in range(1, STEPS + 1):
        up, down = seen.places("up", "crossing", step), seen.places("down", "crossing", step)
        assert max(seen.places("down", "tensor", step)) < min(up)
        assert max(up) < min(down)
        assert max(down) < min(seen.places("up", "tensor", step))
    ahead = [step for step in range(2, STEPS + 1)]
    # An epoch has four steps and the rest of one.
    assert sum(seen.places("down", "Step", n)[0] < seen.places("up", "Stepped", n - 1)[0] for n in ahead) >= 3


@pytest.mark.slow
def test_credit_is_kept_for_what_crosses_too(shard: Shard) -> None:
    under_way, most = [0, 0], [0, 0]

    def tamper(mine: int) -> Tamper:
        def watch(frame: AnyFrame) -> list[AnyFrame]:
            if isinstance(frame, Slice):
                under_way[mine] += len(frame.data)
                most[mine] = max(most[mine], under_way[mine])
            elif isinstance(frame, Received):
                under_way[1 - mine] -= frame.size_bytes
            return [frame]

        return watch

    sending = FixedSending(TransferSettings("priority", 300, 1000))
    go(shard, "out", TransferPolicy(sending, True), tampers=[(tamper(0), tamper(1)), (honest, honest)])
    assert 0 < max(most) < 1000 + 300
    assert under_way == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [100, 3])
def test_the_log_holds_every_byte_that_crosses_once_in_the_order_of_its_life(shard: Shard, micro_batch: int) -> None:
    logs: list[SliceLog] = []
    trial = Trial(shard, "after", PRIORITY, on_log=logs.append)
    trial.fields["sync"] = {"round_steps": STEPS, "micro_batch": micro_batch}
    run = asyncio.run(trial.run())
    assert len(logs) == 2 * STEPS
    steps = {step.step: step for step in steps_of(run)}
    states = Counter[int]()
    for log in logs:
        records = len(trial.dealt[log.step][log.device])
        crossing = [each for each in log.records() if each.tensor.startswith("crossing/")]
        # Drives are threads here and share a generator: each believes at times that its layers have drawn.
        states[log.step] += sum(e.size_bytes for e in crossing if e.direction == "pull" and "random" in e.tensor)
        down = sum(each.size_bytes for each in crossing if each.direction == "pull" and "random" not in each.tensor)
        up = [each for each in crossing if each.direction == "push" and "random" not in each.tensor]
        assert down == records * (24 + 20) * 8
        assert sum(each.size_bytes for each in up) == down + records * 8
        assert all(each.ready_seconds <= each.begin_seconds <= each.end_seconds for each in log.records())
        parts = len(part_sizes(records, micro_batch))
        assert len(up) >= 3 * parts
    for number, step in steps.items():
        assert step.placement is not None
        assert step.placement.clock == "wall"
        total = sum(map(len, trial.dealt[number].values()))
        assert step.placement.down_bytes == total * (24 + 20) * 8 + states[number]


@pytest.mark.slow
def test_a_tuner_is_told_of_the_drives_layers_and_may_change_settings_in_every_step(shard: Shard) -> None:
    tuner = Changing(
        [TransferSettings("priority", 1000, 3000), TransferSettings(), TransferSettings("priority", 300, None)]
    )
    run = go(shard, "after", TransferPolicy(tuner, True))
    assert [seen.step for seen in tuner.seen] == list(range(1, STEPS))  # the last one is an epoch's, and smaller
    for drive in (drive for seen in tuner.seen for drive in seen.drives):
        assert [layer.name for layer in drive.costs] == ["first", "norm", "second"]
        exchanged = {tensor.name: tensor.size_bytes for layer in drive.costs for tensor in layer.tensors}
        assert exchanged == {name: run.training.weights[name].nbytes for name in exchanged}
        assert drive.slices[:, 1].min() > 0
    assert weights(run) == weights(go(shard, "after", TransferPolicy()))


# Faults.


class Dying:
    """Ends its drive's stream in one step: before what crosses has left, behind it, or when its gradient has come."""

    def __init__(self, step: int, when: str) -> None:
        self.step, self.when = step, when
        self.trial: Trial | None = None
        self._gone = False

    def to_drive(self, frame: AnyFrame) -> list[AnyFrame]:
        if isinstance(frame, ActivationGradients) and frame.step == self.step and self.when == "between":
            return self._die()
        return [] if self._gone else [frame]

    def to_host(self, frame: AnyFrame) -> list[AnyFrame]:
        if self.when == "before" and isinstance(frame, Activations) and frame.step == self.step:
            return self._die()
        gradient = isinstance(frame, Slice) and frame.exchange == self.step and frame.tensor not in CROSSING
        if self.when == "behind" and gradient:
            return self._die()
        return [] if self._gone else [frame]

    def _die(self) -> list[AnyFrame]:
        assert self.trial is not None
        if not self._gone:
            self._gone = True
            self.trial.drives[-1].far.cancel("switched off")
        return []


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "between", "behind"])
@pytest.mark.parametrize("layer", ["second", "out"])
def test_a_drive_lost_around_the_cut_neither_holds_a_step_up_nor_spoils_it(shard: Shard, when: str, layer: str) -> None:
    dying = Dying(2, when)
    trial = dying.trial = Trial(
        shard, layer, PRIORITY, tampers=[*((honest, honest),) * 2, (dying.to_drive, dying.to_host)], batch_size=4,
        sync={"round_steps": 8},
    )  # fmt: skip
    run = asyncio.run(trial.run())
    assert len(run.told(EventKind.LOST)) == 1
    assert run.told(EventKind.FAILED) == []
    first, second, *others = steps_of(run)
    assert len(first.devices) == 3
    assert second.lost == ["csd-02"]
    for step in (second, *others):
        assert [part.device for part in step.devices] == ["csd-00", "csd-01"]
        assert sum(part.weight for part in step.devices) == pytest.approx(1.0)
    # What crossed in time went through the host's part: it counts there, and no gradient of the drive's own.
    assert second.mixed in {"before": [False], "between": [True], "behind": [True]}[when]
    counted = {step.step: [part.device for part in step.devices] for step in others}
    again = {record for number, devices in counted.items() for each in devices for record in trial.dealt[number][each]}
    assert set(trial.dealt[2]["csd-02"]) <= again
    assert all(np.isfinite(array).all() for array in run.training.weights.values())
    if when == "before":  # nothing of it counts: the steps of those that are left, and no others
        want = whole_steps(trial, run, "device")
        for name, array in run.training.weights.items():
            np.testing.assert_allclose(array, want[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "between", "behind"])
async def test_a_step_in_which_everyone_is_lost_leaves_the_weights_as_they_are(shard: Shard, when: str) -> None:
    dying = Dying(1, when)
    trial = dying.trial = Trial(shard, "second", PRIORITY, tampers=[(dying.to_drive, dying.to_host)])
    run = trial.make()
    before = {name: array.copy() for name, array in run.training.weights.items()}
    with pytest.raises(DeviceLost):
        async with asyncio.timeout(60):
            await run.run()
    await asyncio.to_thread(trial.drives[0].end)
    for name, array in run.training.weights.items():
        assert np.array_equal(array, before[name]), name


@pytest.mark.slow
def test_a_drive_that_falls_silent_at_the_cut_is_given_up_and_those_that_wait_for_it_are_not(shard: Shard) -> None:
    def silent(frame: AnyFrame) -> list[AnyFrame]:
        return [] if isinstance(frame, Activations | Slice) and step_of(frame) == 2 else [frame]

    run = go(shard, "second", PRIORITY, tampers=[(honest, honest), (honest, silent)], watchdog_seconds=2.0)
    (told,) = run.told(EventKind.LOST)
    assert told.startswith("csd-01")
    assert [part.device for part in steps_of(run)[-1].devices] == ["csd-00"]


def step_of(frame: Activations | Slice) -> int:
    return frame.exchange if isinstance(frame, Slice) else frame.step


@pytest.mark.slow
async def test_a_drive_that_joins_takes_part_from_the_next_step_on(shard: Shard) -> None:
    late = threading.Event()

    def to_host(frame: AnyFrame) -> list[AnyFrame]:
        if isinstance(frame, Stepped) and frame.step == 3:
            late.set()
        return [frame]

    trial = Trial(
        shard, "second", PRIORITY, tampers=[(honest, to_host), (honest, honest)], batch_size=3,
        sync={"round_steps": 12},
    )  # fmt: skip
    run = trial.make()
    joiner = run.fleet.drives.pop()
    going = asyncio.ensure_future(run.run())
    await asyncio.to_thread(late.wait, 30.0)
    run.fleet.join(joiner)
    await going
    for drive in trial.drives:
        await asyncio.to_thread(drive.end)
    assert run.told(EventKind.LOST) == run.told(EventKind.FAILED) == []
    took = [len(step.devices) for step in steps_of(run)]
    assert took[:3] == [1] * 3
    assert 2 in took[3:]
    want = whole_steps(trial, run, "device")
    for name, array in run.training.weights.items():
        np.testing.assert_allclose(array, want[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.slow
def test_a_host_part_that_fails_once_fails_that_step_and_the_session_goes_on(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, count = ServerModel.compute, iter(range(10**9))

    def fail(self: ServerModel, *arguments: Any) -> Any:
        if next(count) == 1:
            raise MemoryError("no room")
        return compute(self, *arguments)

    monkeypatch.setattr(ServerModel, "compute", fail)
    run = go(shard, "second", PRIORITY)
    assert run.told(EventKind.LOST) == []
    assert [("no room" in told, "the host's part" in told) for told in run.told(EventKind.FAILED)] == [(True, True)] * 2
    assert len(steps_of(run)) == STEPS


@pytest.mark.slow
def test_an_answer_that_nobody_waits_for_ends_the_session(shard: Shard) -> None:
    def to_drive(frame: AnyFrame) -> list[AnyFrame]:
        early = isinstance(frame, Tensors) and frame.exchange == 2
        return [ActivationGradients(2, 0, 0.0, []), frame] if early else [frame]

    trial = Trial(shard, "second", PRIORITY, tampers=[(to_drive, honest), (honest, honest)])
    run = asyncio.run(trial.run())
    assert len(run.told(EventKind.LOST)) == 1
    assert "the host sent" in trial.drives[0].far.why


def test_the_hosts_part_computes_one_pass_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are the module's own: a probe's pass beside another one must leave them alone."""
    compute, held = ServerModel.compute, list[bool]()

    def noted(self: ServerModel, *arguments: Any) -> Any:
        held.append(self.turn.locked())
        return compute(self, *arguments)

    monkeypatch.setattr(ServerModel, "compute", noted)
    tail = tail_of("out", "frozen")(state_arrays(whole_model()))
    tail.begin(1).compute([ActivationBatch("csd-00", [np.ones((3, 44))], np.array([1, 2, 3]))])
    assert held == [True]
    assert not tail.turn.locked()
