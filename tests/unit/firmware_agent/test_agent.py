"""The agent's side of a session, over a fake session: it answers, and what the host may not do it survives."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from firmware_agent.agent import Agent, describe_failure
from firmware_agent.clock import Stopwatch
from firmware_agent.common.errors import (
    AgentRefused,
    ConfigurationError,
    DataError,
    DeviceLost,
    ModelError,
    ProtocolError,
)
from firmware_agent.common.frames.frame_fields import MEASURES_LAYERS, Frame
from firmware_agent.common.frames.measure_frames import Measure, Measured, ProbeRead, ProbeSend
from firmware_agent.common.frames.session_frames import (
    Disturb,
    Disturbed,
    Failed,
    Hello,
    Ready,
    Sabotage,
    Sabotaged,
    Slice,
    Tensors,
    Train,
    Trained,
    Welcome,
)
from firmware_agent.common.frames.step_frames import Reduce, Reduced, Step, Stepped
from firmware_agent.common.health.drive_health import DriveHealth, IoCounters
from firmware_agent.common.identity import Identity
from firmware_agent.common.shard import Shard, open_shard, write_shard
from firmware_agent.common.slices import Assembler, cut_slices, make_slice, tensor_specs
from firmware_agent.common.weights import state_arrays
from firmware_agent.common.wire import AnyFrame, encode, unpack
from firmware_agent.faults.competing_task import Disturbance
from firmware_agent.faults.fault_injection import Saboteur, damage
from firmware_agent.health_reader import SMART, HealthReader
from firmware_agent.host_session import HostSession
from firmware_agent.training.trainer import Trainer
from tests.support.fakes import JOB, random_shard

IDENTITY = Identity("lab", "csd-00", 3, "127.0.0.1:1", "wall", 0.0, b"e" * 64, "", "", "")


class FakeHost:
    """A session that plays a script: frames to hand out, then the end, or an error to raise."""

    def __init__(self, *script: Frame | Exception) -> None:
        self._script: Iterator[Frame | Exception] = iter(script)
        self.sent: list[Frame] = []

    def send(self, frame: Frame) -> None:
        self.sent.append(frame)

    def send_encoded(self, data: bytes) -> None:
        self.sent += unpack(data)

    def receive(self) -> AnyFrame:
        step = next(self._script, DeviceLost("the script has ended"))
        if isinstance(step, Exception):
            raise step
        return cast(AnyFrame, step)

    def __enter__(self) -> "FakeHost":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return random_shard(tmp_path_factory.mktemp("shard"), 40)


def serve(
    shard: Shard,
    *hosts: FakeHost,
    saboteur: Saboteur | None = None,
    stop: threading.Event | None = None,
    health: HealthReader | None = None,
) -> Agent:
    """Let an agent serve one host after the other, then stop."""
    agent = Agent(IDENTITY, shard, Disturbance(None), saboteur=saboteur)
    agent.health = health
    stop, left = stop or NeverWaits(), list(hosts)

    def dial(identity: Identity) -> HostSession:
        assert identity is IDENTITY
        host = left.pop(0)
        if not left:
            stop.set()
        return cast(HostSession, host)

    agent.serve_forever(stop, dial)
    assert not left
    return agent


class NeverWaits(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def weights_frames(exchange: int, shard: Shard) -> list[Frame]:
    arrays = state_arrays(Trainer(JOB, shard, 0, Stopwatch()).model)
    return [Tensors(exchange, tensor_specs(arrays)), *cut_slices(exchange, arrays, 1000)]


def test_it_says_hello_and_does_what_the_host_asks(shard: Shard) -> None:
    host = FakeHost(Welcome(), JOB, *weights_frames(1, shard), Train(1, 2))
    serve(shard, host)
    first, ready, announced, *pieces, done = host.sent
    assert isinstance(first, Hello)
    assert (first.device, first.incarnation, first.clock, first.samples) == ("csd-00", 3, "wall", 40)
    assert first.manifest_sha256 == shard.manifest_sha256
    assert isinstance(ready, Ready)
    assert ready.parameters == sum(
        array.size for array in state_arrays(Trainer(JOB, shard, 0, Stopwatch()).model).values()
    )
    assert isinstance(announced, Tensors)
    assert isinstance(done, Trained)
    assembler = Assembler(1, announced.specs)
    for piece in pieces:
        assert isinstance(piece, Slice)
        assembler.add(piece)
    assert (done.round, done.samples, done.steps) == (1, 80, 4)
    assert done.seconds.total > 0
    assert all(part > 0 for part in (done.seconds.forward, done.seconds.backward, done.seconds.update))


def test_without_an_epoch_it_returns_exactly_what_was_sent(shard: Shard) -> None:
    generator = np.random.default_rng(0)
    model = state_arrays(Trainer(JOB, shard, 0, Stopwatch()).model)
    arrays = {name: np.asarray(generator.standard_normal(a.shape), a.dtype) for name, a in model.items()}
    pieces = cut_slices(5, arrays, 1000)
    host = FakeHost(Welcome(), JOB, Tensors(5, tensor_specs(arrays)), *pieces, Train(5, 0))
    serve(shard, host)
    _, _, announced, *returned, done = host.sent
    assert isinstance(announced, Tensors)
    assembler = Assembler(5, announced.specs, tensor_specs(arrays))
    for piece in returned:
        assert isinstance(piece, Slice)
        assembler.add(piece)
    assert {name: a.tobytes() for name, a in assembler.arrays().items()} == {n: a.tobytes() for n, a in arrays.items()}
    assert isinstance(done, Trained)
    assert (done.round, done.samples, done.steps, done.loss, done.read_bytes) == (5, 0, 0, 0.0, 0)
    assert done.seconds.forward == done.seconds.backward == done.seconds.update == 0
    assert done.seconds.encode > 0


def test_weights_with_a_flipped_bit_are_not_trained_on(shard: Shard) -> None:
    tensors, first, *pieces = weights_frames(1, shard)
    assert isinstance(first, Slice)
    damaged = msgspec.structs.replace(first, data=memoryview(bytes(first.data[:-1]) + b"\x55"))
    host = FakeHost(Welcome(), JOB, tensors, damaged, *pieces, Train(1, 1), AssertionError("still listening"))
    serve(shard, host)
    assert [type(frame) for frame in host.sent] == [Hello, Ready]


@pytest.mark.slow
def test_two_agents_with_the_same_shard_and_weights_send_the_same_bits(shard: Shard) -> None:
    script = [Welcome(), JOB, *weights_frames(1, shard), Train(1, 1)]
    one, other = FakeHost(*script), FakeHost(*script)
    serve(shard, one)
    serve(shard, other)
    slices = [[frame for frame in host.sent if isinstance(frame, Slice)] for host in (one, other)]
    assert slices[0] == slices[1]
    assert slices[0]


def test_it_redials_a_host_that_breaks_the_rules_ever_more_slowly(shard: Shard) -> None:
    class Waits(NeverWaits):
        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float | None] = []

        def wait(self, timeout: float | None = None) -> bool:
            self.seconds.append(timeout)
            return super().wait(timeout)

    waits, broken = Waits(), ProtocolError("a malformed frame came in")
    serve(shard, *(FakeHost(Welcome(), broken) for _ in range(8)), FakeHost(Welcome()), FakeHost(), stop=waits)
    assert waits.seconds == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0, 0.25, 0.25]


def test_it_redials_after_a_lost_stream_and_begins_anew(shard: Shard) -> None:
    cut = FakeHost(Welcome(), JOB, *weights_frames(1, shard)[:3], DeviceLost("cut"))
    broken = FakeHost(Welcome(), JOB, ProtocolError("garbage"))
    again = FakeHost(Welcome(), Train(1, 1))
    serve(shard, cut, broken, again)
    assert [type(host.sent[0]) for host in (cut, broken, again)] == [Hello] * 3
    assert len(again.sent) == 1  # a task before any job breaks the rules: the stream ends


def test_one_who_is_refused_does_not_come_back(shard: Shard) -> None:
    with pytest.raises(AgentRefused, match="stale"):
        serve(shard, FakeHost(AgentRefused("stale")), FakeHost())


@pytest.mark.parametrize(
    "script",
    [
        [Ready(1)],
        [Welcome(), Ready(1)],
        [Welcome(), Train(1, 1)],
        [Welcome(), Tensors(1, [])],
        [Welcome(), JOB, Train(1, 1)],
        [Welcome(), JOB, make_slice(1, "w", 0, b"1")],
        [Welcome(), JOB, Tensors(1, [])],
        [Welcome(), Measure(8, 1.0)],
        [Welcome(), Step(1, b"1234", 1)],
        [Welcome(), JOB, Step(1, b"1234", 1)],
        [Welcome(), JOB, Reduced(1, 0, b"12345678")],
    ],
)
def test_a_host_that_breaks_the_rules_is_left_and_dialled_again(shard: Shard, script: list[Frame]) -> None:
    bad, good = FakeHost(*script, AssertionError("still listening")), FakeHost(Welcome())
    serve(shard, bad, good)
    assert isinstance(good.sent[0], Hello)


def test_weights_that_are_not_whole_are_not_trained_on(shard: Shard) -> None:
    frames = weights_frames(1, shard)
    host = FakeHost(Welcome(), JOB, *frames[:-1], Train(1, 1), AssertionError("still listening"))
    serve(shard, host)
    assert [type(frame) for frame in host.sent] == [Hello, Ready]


def test_a_failure_of_the_users_model_is_told_and_the_session_goes_on(shard: Shard) -> None:
    source = (
        "from torch import nn\nclass Net(nn.Linear):\n    def forward(self, x):\n        raise ValueError('no 4D')\n"
    )
    changes: dict[str, Any] = {name: getattr(JOB, name) for name in JOB.__struct_fields__}
    bad = type(JOB)(
        **changes | {"model": "net.py:Net", "arguments": {"in_features": 64, "out_features": 10}, "source": source}
    )
    missing = type(JOB)(**changes | {"model": "net.py:build", "source": "import not_on_a_drive"})
    host = FakeHost(Welcome(), missing, bad, Measure(8, 0.01), JOB)
    serve(shard, host)
    _, first, ready, second, again = host.sent
    assert isinstance(first, Failed)
    assert first.task == "Job"
    assert "not_on_a_drive" in first.error
    assert isinstance(second, Failed)
    assert (second.task, second.error) == ("Measure", "ValueError: no 4D")
    assert isinstance(ready, Ready)
    assert isinstance(again, Ready)


def test_a_native_agent_cannot_be_slowed_down_and_says_so(shard: Shard) -> None:
    host = FakeHost(Welcome(), Disturb(100), Disturb(0))
    serve(shard, host)
    _, failed, ended = host.sent
    assert isinstance(failed, Failed)
    assert "use qemu" in failed.error
    assert ended == Disturbed(0)


def test_a_native_agent_has_no_throttles_and_says_so(shard: Shard) -> None:
    host = FakeHost(Welcome(), ProbeRead(1, 1000), ProbeSend(1, 1000, "127.0.0.1:9"))
    serve(shard, host)
    for failed, task in zip(host.sent[1:], ("ProbeRead", "ProbeSend"), strict=True):
        assert isinstance(failed, Failed)
        assert failed.task == task
        assert "use qemu" in failed.error


def test_a_slice_is_damaged_on_request_in_the_next_round_alone(shard: Shard) -> None:
    script = [Welcome(), JOB, *weights_frames(1, shard), Train(1, 1), *weights_frames(2, shard), Train(2, 1)]
    good, bad = FakeHost(*script), FakeHost(*script[:2], Sabotage("corrupt"), *script[2:])
    serve(shard, good)
    serve(shard, bad)
    wanted, got = ([frame for frame in host.sent if isinstance(frame, Slice)] for host in (good, bad))
    assert got == [damage(wanted[0]), *wanted[1:]]
    assert Sabotaged(0) in bad.sent


def test_a_full_disk_is_given_back_when_the_session_ends(shard: Shard, tmp_path: Path) -> None:
    class Remembers(Saboteur):
        def do(self, harm: str) -> int:
            (tmp_path / "csd-filler").write_text(harm)
            return 4096

    host = FakeHost(Welcome(), Sabotage("fill"))
    serve(shard, host, saboteur=Remembers(tmp_path))
    assert host.sent[-1] == Sabotaged(4096)
    assert list(tmp_path.iterdir()) == []


def test_a_native_agent_does_not_fill_the_hosts_disk_and_says_so(shard: Shard) -> None:
    host = FakeHost(Welcome(), Sabotage("fill"), Sabotage("clear"), Disturb(0))
    serve(shard, host)
    assert [type(frame) for frame in host.sent] == [Hello, Failed, Failed, Disturbed]


def test_each_agent_is_an_instance_of_its_own_and_stays_it(shard: Shard) -> None:
    hosts = [FakeHost(Welcome()) for _ in range(3)]
    serve(shard, *hosts[:2])
    serve(shard, hosts[2])
    instances = [host.sent[0].instance for host in hosts if isinstance(host.sent[0], Hello)]
    assert instances[0] == instances[1] != instances[2]


def test_it_measures(shard: Shard) -> None:
    host = FakeHost(Welcome(), JOB, Measure(8, 0.001))
    serve(shard, host)
    assert isinstance(host.sent[-1], Measured)
    assert host.sent[-1].samples == 8 * host.sent[-1].steps


def test_it_measures_layers_and_says_before_that_it_can(shard: Shard) -> None:
    host = FakeHost(Welcome(), JOB, Measure(8, 0.001, steps=2, layers=True))
    serve(shard, host)
    greeting, *_, measured = host.sent
    assert isinstance(greeting, Hello)
    assert greeting.facts[MEASURES_LAYERS] == "yes"
    assert isinstance(measured, Measured)
    assert measured.layers is not None
    assert [layer.name for layer in measured.layers.layers] == ["0", "2", "6", "8"]


def test_the_records_themselves_never_leave_the_drive(shard: Shard, tmp_path: Path) -> None:
    """The bytes of the shard's images, planted so that they are easy to see, are in no frame that the agent sends."""
    images = np.frombuffer(b"PRIVATE RECORD! " * 4 * 8, np.uint8).reshape(8, 1, 8, 8)
    write_shard(tmp_path / "shard.tar", "planted", {"image": images, "label": np.arange(8)})
    planted = open_shard(tmp_path / "shard.tar")
    tasks = [Train(1, 1), *weights_frames(2, planted), step(2, list(range(8))), Measure(8, 0.001)]
    host = FakeHost(Welcome(), JOB, *weights_frames(1, planted), *tasks)
    serve(planted, host)
    assert len(host.sent) > 4
    assert not any(b"PRIVATE RECORD!" in encode(frame) for frame in host.sent)


def test_a_step_is_answered_with_gradients_and_buffers(shard: Shard) -> None:
    host = FakeHost(Welcome(), JOB, *weights_frames(7, shard), step(7, [1, 2, 3]))
    serve(shard, host)
    _, _, announced, *pieces, done = host.sent
    assert isinstance(announced, Tensors)
    model = Trainer(JOB, shard, 0, Stopwatch()).model
    assert announced.specs == tensor_specs(state_arrays(model))  # digits_cnn has no buffer
    assembler = Assembler(7, announced.specs)
    for piece in pieces:
        assert isinstance(piece, Slice)
        assembler.add(piece)
    assert assembler.complete
    assert isinstance(done, Stepped)
    assert (done.step, done.samples, done.read_bytes) == (7, 3, 3 * 72)
    assert done.seconds.update == 0
    assert all(part > 0 for part in (done.seconds.forward, done.seconds.backward, done.seconds.encode))


def test_a_step_that_reaches_for_records_of_another_drive_is_refused(shard: Shard) -> None:
    """A planted leak: the drive holds 40 records. It says no, sends no tensor, and goes on."""
    planted = [Welcome(), JOB, *weights_frames(1, shard), step(1, [0, 40])]
    host = FakeHost(*planted, *weights_frames(2, shard), step(2, [0, 39]))
    serve(shard, host)
    _, _, failed, announced, *_, done = host.sent
    assert isinstance(failed, Failed)
    assert failed.task == "Step"
    assert "names record 40, but this drive holds 40" in failed.error
    assert isinstance(announced, Tensors)
    assert announced.exchange == 2
    assert isinstance(done, Stepped)


def test_a_damaged_slice_of_a_gradient_too(shard: Shard) -> None:
    script = [Welcome(), JOB, *weights_frames(1, shard), step(1, [0, 1])]
    good, bad = FakeHost(*script), FakeHost(*script[:2], Sabotage("corrupt"), *script[2:])
    serve(shard, good)
    serve(shard, bad)
    wanted, got = ([frame for frame in host.sent if isinstance(frame, Slice)] for host in (good, bad))
    assert got == [damage(wanted[0]), *wanted[1:]]


def step(number: int, records: list[int]) -> Step:
    return Step(number, np.array(records, "<u4").tobytes(), 100)


NORMED = """
from torch import nn
def build():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 10))
"""


class Meets(FakeHost):
    """Answers every exchange of a step, as if this drive were alone or with what `answer` makes of it."""

    def __init__(self, *script: Frame | Exception, answer: Callable[[Reduce], Frame]) -> None:
        super().__init__(*script)
        self._answer = answer

    def receive(self) -> AnyFrame:
        if isinstance(last := self.sent[-1], Reduce):
            return cast(AnyFrame, self._answer(last))
        return super().receive()


def normed_script(shard: Shard) -> list[Frame]:
    job = msgspec.structs.replace(JOB, model="n.py:build", source=NORMED, batch_norm="synchronised")
    arrays = state_arrays(Trainer(job, shard, 0, Stopwatch()).model)
    return [Welcome(), job, Tensors(1, tensor_specs(arrays)), *cut_slices(1, arrays), step(1, [1, 2, 3])]


def test_within_a_step_it_meets_the_others_by_the_host(shard: Shard) -> None:
    host = Meets(*normed_script(shard), answer=lambda mine: Reduced(mine.step, mine.index, mine.values))
    serve(shard, host)
    assert [(frame.step, frame.index) for frame in host.sent if isinstance(frame, Reduce)] == [(1, 0), (1, 1)]
    assert isinstance(host.sent[-1], Stepped)


@pytest.mark.parametrize(
    "answer",
    [
        lambda mine: Reduced(mine.step, mine.index + 1, mine.values),
        lambda mine: Reduced(mine.step + 1, mine.index, mine.values),
        lambda mine: Reduced(mine.step, mine.index, mine.values[8:]),
        lambda mine: Disturb(1),
    ],
)
def test_another_answer_than_the_sum_ends_the_session(shard: Shard, answer: Callable[[Reduce], Frame]) -> None:
    bad, good = Meets(*normed_script(shard), answer=answer), FakeHost(Welcome())
    serve(shard, bad, good)
    assert isinstance(bad.sent[-1], Reduce)
    assert isinstance(good.sent[0], Hello)


NET = """\
import torch
from torch import nn

class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("in backward")

class Net(nn.Module):
    def __init__(self, where):
        super().__init__()
        self.body, self.where, self.calls = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), where, 0

    def forward(self, x):
        self.calls += 1
        y = self.body(x)
        if self.calls > 1:
            if self.where == "forward":
                raise RuntimeError("in forward")
            if self.where == "exit":
                raise SystemExit(0)
            if self.where == "backward":
                return Broken.apply(y)
            if self.where == "long":
                raise ValueError("\\ud800" + "long " * (1 << 18))
            if self.where == "disk":
                open("/absent/file")
            if self.where == "assert":
                assert x is None
            if self.where == "memory":
                torch.empty(1 << 50)
            if self.where == "cancel":
                from asyncio import CancelledError
                raise CancelledError("mine")
            if self.where == "close":
                raise GeneratorExit
            if self.where == "own":
                raise type("Boom", (BaseException,), {})("mine")
            return y[:-1]
        return y

def build(where):
    if where == "builder":
        raise KeyError("in builder")
    return Net(where)
"""


@pytest.mark.parametrize(
    ("where", "exception", "lines"),
    [
        ("forward", "RuntimeError", ['  File "nets.py", line 22, in forward', '    raise RuntimeError("in forward")']),
        ("backward", "RuntimeError", ['  File "nets.py", line 10, in backward', "RuntimeError: in backward"]),
        ("shape", "ValueError", ["self._functional.cross_entropy(", "to match target batch_size"]),
        ("exit", "SystemExit", ['  File "nets.py", line 24, in forward', "SystemExit: 0"]),
        ("long", "ValueError", ['  File "nets.py", line 28, in forward', "ValueError: ?long long"]),
        ("disk", "FileNotFoundError", ['  File "nets.py", line 30, in forward', "/absent/file"]),
        ("assert", "AssertionError", ['  File "nets.py", line 32, in forward', "    assert x is None"]),
        (
            "cancel",
            "CancelledError",
            ['    raise CancelledError("mine")', "CancelledError: mine"],
        ),
        ("close", "GeneratorExit", ["    raise GeneratorExit"]),
        ("own", "Boom", ["Boom: mine"]),
        ("builder", "KeyError", ["    raise KeyError(", "KeyError: 'in builder'"]),
    ],
)
@pytest.mark.parametrize("mode", ["federated", "sync"])
def test_a_failure_of_the_users_code_travels_with_its_lines(
    shard: Shard, mode: str, where: str, exception: str, lines: list[str]
) -> None:
    job = msgspec.structs.replace(JOB, model="nets.py:build", source=NET, arguments={"where": where}, batch_size=8)
    arrays = {"body.1.weight": np.zeros((10, 64), np.float32), "body.1.bias": np.zeros(10, np.float32)}
    weights: list[Frame] = [Tensors(1, tensor_specs(arrays)), *cut_slices(1, arrays)]
    steps: list[Frame] = [*weights, Step(1, np.arange(16, dtype="<u4").tobytes(), 8)]
    script = [
        Welcome(),
        job,
        *([] if where == "builder" else [*weights, Train(1, 1)] if mode == "federated" else steps),
    ]
    host = FakeHost(*script)
    serve(shard, host)
    failed = host.sent[-1]
    assert isinstance(failed, Failed)
    assert (failed.exception, failed.user) == (exception, True)
    for line in lines:
        assert line in failed.traceback
    assert re.search(r"\.\.\. \d+ frames? of csd-emu", failed.traceback)
    assert len(encode(failed)) < 24 << 10


def test_a_drive_that_runs_out_of_memory_does_not_blame_the_users_code(shard: Shard) -> None:
    job = msgspec.structs.replace(JOB, model="nets.py:build", source=NET, arguments={"where": "memory"}, batch_size=8)
    arrays = {"body.1.weight": np.zeros((10, 64), np.float32), "body.1.bias": np.zeros(10, np.float32)}
    host = FakeHost(Welcome(), job, Tensors(1, tensor_specs(arrays)), *cut_slices(1, arrays), Train(1, 1))
    serve(shard, host)
    failed = host.sent[-1]
    assert isinstance(failed, Failed)
    assert (failed.user, failed.traceback) == (False, "")
    assert "can't allocate memory" in failed.error


def test_a_failure_that_is_not_the_users_says_so(shard: Shard) -> None:
    host = FakeHost(Welcome(), JOB, Disturb(7))
    serve(shard, host)
    failed = host.sent[-1]
    assert isinstance(failed, Failed)
    assert (failed.user, failed.traceback) == (False, "")
    assert "cgroup" in failed.error


@pytest.mark.parametrize(
    ("error", "user"),
    [
        (OSError(5, "Input/output error"), False),
        (DataError("images.npz: is damaged"), True),
        (ModelError("model 'nets.py:build': cannot be imported"), True),
        (KeyError("conv9"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), True),
        (MemoryError(), False),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
            False,
        ),
        (OSError(12, "Cannot allocate memory"), False),
        (AssertionError(), False),
        (ConfigurationError("the model has no layer conv9"), False),
    ],
)
def test_whose_failure_it_is(error: Exception, user: bool) -> None:
    failed = describe_failure("Train", error)
    assert (failed.user, failed.task) == (user, "Train")
    assert failed.exception == type(error).__name__
    assert unpack(encode(failed)) == [failed]


def test_a_real_drive_tells_its_health_with_every_report_and_others_none(shard: Shard, tmp_path: Path) -> None:
    log = {"critical_warning": 0, "temperature": 310, "host_read_commands": 5}
    (tmp_path / SMART).write_text(json.dumps(log))
    script = [Welcome(), JOB, *weights_frames(1, shard), Train(1, 0), *weights_frames(2, shard), step(2, [0])]
    hosts = FakeHost(*script), FakeHost(*script)
    serve(shard, hosts[0], health=HealthReader(tmp_path, lambda: (tmp_path / SMART).stat().st_mtime))
    serve(shard, hosts[1])
    reports = [[frame for frame in host.sent if isinstance(frame, Trained | Stepped)] for host in hosts]
    for report in reports[0]:
        assert isinstance(report.health, DriveHealth)
        assert report.health.temperature_celsius == 37.0
        assert report.health.io_of_job == IoCounters(read_commands=0)
    assert [report.health or None for report in reports[1]] == [None, None]
    assert all(b"health" not in encode(report) for report in reports[1])
