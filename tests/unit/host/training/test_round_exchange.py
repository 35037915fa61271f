"""A drive's closing frame has to be of the kind that its tensors are: of an exchange within a round, or of its end."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from firmware_agent.common.clients.client_round import EXCHANGED
from firmware_agent.common.errors import DeviceLost, DeviceSilent, ProtocolError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Code, Exchange, Job, Trained
from host.config.job_file import JobConfig
from host.core.records import EventKind
from host.core.tensor_sums import Norms, Scan
from host.fleet.device_session import DeviceSession
from host.fleet.fleet import Fleet
from host.training.device_conduct import advice
from host.training.round_exchange import RoundExchange, RoundTask
from host.training.rounds.client_contract import AS_USUAL
from host.training.rounds.drive_meeting import DriveMeeting
from host.training.rounds.round_answer import RoundAnswer
from tests.support.fakes import JOB

BASE: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}}
END = Trained(1, 5, 1, 0.5, PhaseSeconds(), 0)


class Session:
    """A drive that sends these, one after the other."""

    device = "csd-00"

    def __init__(self, *sent: Any) -> None:
        self.sent, self.answers = list(sent), list[bytes]()

    async def receive_tensors(self, *_: Any) -> Any:
        return self.sent.pop(0)

    async def send_encoded(self, data: bytes, _: Any) -> None:
        self.answers.append(data)


def exchange_of(frame: Job = JOB) -> RoundExchange:
    config = JobConfig.model_validate(BASE)
    return RoundExchange(config, frame, cast(Fleet, SimpleNamespace()), list, lambda *_: None)


def test_weights_that_come_back_as_they_were_sent_are_told_once_for_each_drive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exchange = exchange_of(msgspec.structs.replace(JOB, client=Code("mine.py:train")))
    told: list[tuple[str, Any, str]] = []
    exchange.conduct.on_event = lambda *event: told.append(event)
    scans = [Scan(Norms()), Scan(Norms(norm=0.1)), Scan(Norms(extra_norm=0.1)), Scan(Norms(count_norm=1.0)), Scan()]
    for number, scan in enumerate(scans, 1):
        session = Session()
        session.device = f"csd-0{number % 4}"
        answer = RoundAnswer(cast(Any, session), {}, cast(Any, SimpleNamespace(trained=END)), scan)
        assert exchange._verdict(number, answer, {}) is answer
    assert [(device, kind) for device, kind, _ in told] == [(f"csd-0{each}", EventKind.NOTE) for each in (1, 0)]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert told[0][2].startswith("in round 1: client 'mine.py:train' returned the weights as they were sent")
    advised = advice(JobConfig.model_validate({**BASE, "client": {"name": "mine.py:train"}}))
    assert advised.startswith("look at what client mine.py:train returns, or lower learning_rate")
    assert advice(JobConfig.model_validate(BASE)).startswith("lower learning_rate")


async def returned(*sent: Any) -> Any:
    exchange = exchange_of()
    meeting = DriveMeeting(["csd-00"], lambda _, brought: brought)
    task = RoundTask(1, cast(Any, None), AS_USUAL, {"w": np.zeros(2)}, (), meeting)
    session = Session(*sent)
    return await exchange._returned(cast(DeviceSession, session), task), session.answers


async def test_exchanges_are_answered_until_the_round_ends() -> None:
    given, end = {EXCHANGED + "x": np.ones(2)}, {"w": np.ones(2)}
    (arrays, trained), answers = await returned((given, Exchange(1, 1)), (given, Exchange(1, 2)), (end, END))
    assert arrays is end
    assert trained is END
    assert len(answers) == 2


@pytest.mark.parametrize(
    ("arrays", "closing", "why"),
    [
        ({"w": np.ones(2)}, Exchange(1, 1), "sent Exchange after tensors of another kind"),
        ({EXCHANGED + "x": np.ones(2)}, END, "sent Trained after tensors of another kind"),
        (
            {EXCHANGED + "x": np.array([1, np.nan])},
            Exchange(1, 1),
            "exchanged exchange/x with values that are no finite",
        ),
    ],
)
async def test_what_does_not_belong_together_ends_the_session(arrays: Any, closing: Any, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        await returned((arrays, closing))


async def test_a_drive_that_asks_without_end_is_ended() -> None:
    with pytest.raises(ProtocolError, match="more than 1000 exchanges"):
        await returned(*[({EXCHANGED + "x": np.ones(1)}, Exchange(1, 1))] * 1002)


def test_a_client_program_is_named_for_a_silent_drive_alone() -> None:
    with_client = exchange_of(msgspec.structs.replace(JOB, client=Code("mine.py:train")))
    silent, broken = DeviceSilent("csd-00: nothing"), DeviceLost("csd-00: the stream broke: silent for 3 s")
    assert str(with_client._explained(silent)).startswith("csd-00: nothing: client 'mine.py:train' has not returned;")
    assert with_client._explained(broken) is broken
    assert exchange_of()._explained(silent) is silent
