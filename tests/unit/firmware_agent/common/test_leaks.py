"""No private record leaves its drive: every way of taking one out is planted, and seen refused."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig, Device
from firmware_agent.common.errors import ConfigurationError, DataError, ProtocolError
from firmware_agent.common.frames.frame_fields import Frame, PhaseSeconds
from firmware_agent.common.frames.session_frames import Tensors
from firmware_agent.common.frames.step_frames import Step, Stepped
from firmware_agent.common.shard import open_shard
from firmware_agent.common.slices import Array, cut_slices, make_slice, tensor_specs
from firmware_agent.common.wire import AnyFrame, decode, encode
from host.config.job_file import DataSection, JobConfig, check_mode
from host.core.datasets import load_dataset
from host.core.records import EventKind
from host.core.tensor_sums import TensorContribution
from host.fleet.shards import deal_out, write_shards
from host.training.sync.exchange.gradient_buffer import GradientBuffer
from host.training.sync.exchange.step_exchange import StepExchange
from host.training.sync.exchange.step_extension import DeviceOutcome, StepWork
from host.training.sync.exchange.weight_sender import Outbound, SentWeights
from host.training.tensor_ranges import TensorRange
from tests.support.examples import examples
from tests.support.fakes import JOB, Answer, FakeDrive

GRADIENTS: dict[str, Array] = {"fc.weight": np.ones((4, 64), np.float32), "fc.bias": np.ones(4, np.float32)}
# A private record: a byte image of 8x8, as it lies in the shard.
RECORD = np.arange(200, 264, dtype=np.uint8).reshape(1, 1, 8, 8)


class Leaks(FakeDrive):
    """A drive whose agent was tampered with: beside its gradients it sends something else, in `planted`'s place."""

    def __init__(self, *planted: Answer, announced: dict[str, Array] | None = None) -> None:
        super().__init__()
        self._planted, self._announced = planted, announced or GRADIENTS

    def answer(self, frame: AnyFrame) -> Iterator[Answer]:
        if isinstance(frame, Step):
            yield Tensors(frame.step, tensor_specs(self._announced))
            yield from cut_slices(frame.step, GRADIENTS)
            yield from self._planted
            yield Stepped(frame.step, len(frame.records) // 4, 0.5, PhaseSeconds(0.1, 0.2), 0)
        else:
            yield from super().answer(frame)


async def step(drive: FakeDrive) -> tuple[DeviceOutcome, dict[str, Array], list[str]]:
    """One synchronous step with a single drive: what came of it, what was applied, and the events."""
    applied: dict[str, Array] = {}
    events: list[str] = []

    def apply(block: TensorRange, parts: Sequence[TensorContribution]) -> None:
        applied[block.tensor] = parts[0].array.copy()

    async def nothing(*_: object) -> None:
        return None

    drive.pump()
    gathering = GradientBuffer(tensor_specs(GRADIENTS), {drive.device: 2}, apply, True)
    exchange = StepExchange(JOB, 5.0, lambda device, what, detail: events.append(f"{what} {detail}"), nothing)
    work = StepWork(drive.session, np.arange(2, dtype=np.uint32), 2)
    (outcome,) = await exchange.visit(Outbound(1, SentWeights({"fc.bias": np.zeros(4, np.float32)})), [work], gathering)
    await gathering.finish()
    return outcome, applied, events


async def test_an_honest_drives_gradients_are_applied() -> None:
    outcome, applied, events = await step(Leaks())
    assert outcome.error is None
    assert events == []
    assert set(applied) == set(GRADIENTS)


def planted_frames() -> list[tuple[str, Answer, str]]:
    stepped = msgspec.to_builtins(Stepped(1, 2, 0.5, PhaseSeconds(), 0))
    pack = msgspec.msgpack.encode
    return [
        ("a slice of a tensor that no gradient has", make_slice(1, "records", 0, RECORD.tobytes()), "'records'"),
        ("a slice behind a gradient's end", make_slice(1, "fc.bias", 16, RECORD.tobytes()), "reach past its 16"),
        ("other bytes of a gradient that is there", make_slice(1, "fc.bias", 0, RECORD.tobytes()[:16]), "other bytes"),
        ("a second announcement", Tensors(1, tensor_specs({"records": RECORD})), "no place in step 1"),
        ("a frame that the wire does not know", pack({"type": "Record", "data": RECORD.tobytes()}), "malformed"),
        ("a field that a frame does not have", pack(stepped | {"records": RECORD.tobytes()}), "malformed"),
        ("text where a name is due", pack({"type": "Record", "name": RECORD.tolist()}), "malformed"),
    ]


@pytest.mark.parametrize(("what", "planted", "match"), planted_frames(), ids=[each[0] for each in planted_frames()])
async def test_a_frame_with_a_record_in_it_ends_the_session(what: str, planted: Answer, match: str) -> None:
    drive = Leaks(planted)
    outcome, applied, events = await step(drive)
    assert outcome.stepped is None
    assert match in str(outcome.error)
    assert applied == {}
    assert [event.split()[0] for event in events] == [str(EventKind.LOST)]
    assert drive.session.closed
    assert all(RECORD.tobytes() not in message for message in drive.written)


async def test_an_announcement_of_a_record_among_the_gradients_is_refused() -> None:
    outcome, applied, _ = await step(Leaks(announced=GRADIENTS | {"records": RECORD}))
    assert "are not the model's: 3 tensors in place of 2" in str(outcome.error)
    assert applied == {}


def test_no_frame_of_the_wire_takes_what_is_not_named_in_it() -> None:
    """The host could not hand a record to another drive either: there is no frame for it in any direction."""
    for frame in (kind for kind in Frame.__subclasses__()):
        raw = {"type": frame.__name__, "record": RECORD.tobytes()}
        with pytest.raises(ProtocolError, match="malformed"):
            decode(msgspec.msgpack.encode(raw))
    assert decode(encode(Stepped(1, 2, 0.5, PhaseSeconds(), 0))).__class__ is Stepped


def nodes(drives: int, host: bool = True) -> list[Device]:
    groups = [{"profile": "newport", "count": drives}]
    config = {"name": "a", "engine": "native", "host": {"trains": host}, "devices": groups}
    return ArrayConfig.model_validate(config).list_nodes()


def data(private: float | None, dirichlet: float | None = 0.5) -> DataSection:
    return DataSection.model_validate({"source": "digits", "private": private, "partition": {"dirichlet": dirichlet}})


@pytest.mark.slow
@given(st.integers(1, 6), st.floats(0.05, 0.95), st.sampled_from([None, 0.3]), st.integers(0, 99))
@settings(max_examples=examples(25), deadline=None)
def test_each_record_is_private_to_one_drive_or_public(
    drives: int, share: float, dirichlet: float | None, seed: int
) -> None:
    dataset = load_dataset("digits", seed)
    dealt = deal_out(dataset, data(share, dirichlet), nodes(drives), seed)
    assert len(dealt.private) == drives + 1
    assert len(dealt.private[-1]) == 0
    every = np.concatenate([*dealt.private, dealt.public])
    assert np.array_equal(np.sort(every), np.arange(len(dataset.labels)))
    assert sum(map(len, dealt.private)) == round(share * len(dataset.labels))


@pytest.mark.slow
def test_no_private_record_lies_on_another_drive(tmp_path: Path) -> None:
    devices = nodes(3)
    written = write_shards(devices, data(0.4), 3, tmp_path, load_dataset("digits", 3))
    shards = [open_shard(record.path) for record in written]
    privates = [shard.fields["image"][: shard.manifest.private_samples] for shard in shards]
    pools = [shard.fields["image"][shard.manifest.private_samples :] for shard in shards]
    assert all(np.array_equal(pool, pools[0]) for pool in pools)
    assert len(privates[-1]) == 0 < len(pools[-1])
    archives = [record.path.read_bytes() for record in written]
    public = {image.tobytes() for image in pools[0]}
    for owner, private in enumerate(privates):
        own = [image.tobytes() for image in private]
        for other, archive in enumerate(archives):
            found = sum(image in archive for image in own if image not in public)
            assert found == (len([image for image in own if image not in public]) if other == owner else 0)
        assert len(own) == 0 or len(set(own) - public) > 0


def test_a_host_without_a_public_record_and_a_federated_public_pool_are_refused() -> None:
    with pytest.raises(DataError, match="host trains on public records, and there are none"):
        deal_out(load_dataset("digits", 0), data(1.0), nodes(2), 0)
    job = JobConfig.model_validate({"model": "digits_cnn", "data": {"source": "digits", "private": 0.5}})
    with pytest.raises(ConfigurationError, match=r"job\.yaml: data\.private: a public pool.*mode: sync"):
        check_mode(job, "job.yaml")
    check_mode(job.model_copy(update={"mode": "sync"}), "job.yaml")


def test_federated_shards_are_as_they_were_before_there_were_public_records() -> None:
    dataset = load_dataset("digits", 0)
    dealt = deal_out(dataset, data(1.0, None), nodes(3, host=False), 5)
    again = np.array_split(np.random.default_rng([5, 3]).permutation(len(dataset.labels)), 3)
    assert all(np.array_equal(got, np.sort(want)) for got, want in zip(dealt.private, again, strict=True))
    assert len(dealt.public) == 0
