from pathlib import Path

import numpy as np
import pytest

from csd_lab.bench.federated.federated_runs import ARRAY, make_request
from csd_lab.bench.federated.in_process_drives import InProcessDrive, in_process_fleet
from firmware_agent.clock import Stopwatch
from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.session_frames import Train
from firmware_agent.common.handover import SHARD_FILE
from firmware_agent.common.shard import Shard, open_shard
from firmware_agent.common.split.activations import device_number
from firmware_agent.common.weights import load_arrays, state_arrays
from firmware_agent.common.wire import encode
from firmware_agent.training.trainer import Trainer
from host.config.participation import RoundSelection
from host.training.round_exchange import RoundExchange, job_frame
from tests.support.fakes import random_shard

KEYS = {"learning_rate": 0.1}


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return random_shard(tmp_path, 20)


async def test_what_a_round_returns_is_what_the_trainer_makes_of_the_weights_that_were_sent(tmp_path: Path) -> None:
    request = make_request(0.3, 200, 3, KEYS)
    frame = job_frame(request.job, request.spec, request.objective)
    names, start = [device.name for device in ARRAY.list_devices()], request.evaluator.initial_weights()
    events: list[str] = []
    async with in_process_fleet(request, tmp_path) as fleet:
        exchange = RoundExchange(request.job, frame, fleet, lambda: names, lambda *event: events.append(str(event)))
        visited = await exchange.visit(1, start, RoundSelection(tuple(names), ()))
        shards = [answer.session.hello.samples for answer in visited.answers]
    assert not events
    assert [answer.returned.device for answer in visited.answers] == names
    assert sum(shards) == 200
    for answer in visited.answers:
        device = answer.returned.device
        trainer = Trainer(frame, open_shard(tmp_path / device / SHARD_FILE), device_number(device), Stopwatch())
        load_arrays(trainer.model, start)
        done = trainer.train(Train(1, request.job.epochs))
        assert (answer.returned.trained.samples, answer.returned.trained.steps) == (done.samples, done.steps)
        for name, array in state_arrays(trainer.model).items():
            np.testing.assert_array_equal(answer.weights[name], array)
        moved = sum(int((answer.weights[name] != start[name]).sum()) for name in start)
        assert moved > 0


@pytest.mark.parametrize("missing", ["job", "weights"])
async def test_a_drive_refuses_a_round_before_it_has_job_and_weights(shard: Shard, missing: str) -> None:
    drive, request = InProcessDrive("csd-00", shard), make_request(0.3, 200, 3, KEYS)
    if missing == "weights":
        await drive.write(encode(job_frame(request.job, request.spec, request.objective)))
    with pytest.raises(ProtocolError, match="csd-00: the host sent a Train before"):
        await drive.write(encode(Train(1, 1)))


async def test_bytes_are_counted_on_both_ways_and_are_at_least_those_of_the_weights(tmp_path: Path) -> None:
    request = make_request(0.3, 200, 3, KEYS)
    frame = job_frame(request.job, request.spec, request.objective)
    start = request.evaluator.initial_weights()
    weight_bytes = sum(array.nbytes for array in start.values())
    async with in_process_fleet(request, tmp_path) as fleet:
        names = list(fleet.sessions())
        exchange = RoundExchange(request.job, frame, fleet, lambda: names, lambda *_: None)
        visited = await exchange.visit(1, start, RoundSelection((names[0],), tuple(names[1:])))
    (answer,) = visited.answers
    for count in (answer.returned.sent_bytes, answer.returned.received_bytes):
        assert weight_bytes < count < 1.1 * weight_bytes
