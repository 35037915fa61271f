import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common import wire
from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.frame_fields import (
    MAX_FRAME_BYTES,
    MAX_LAYERS,
    MAX_RAW_STEPS,
    MAX_REDUCE_BYTES,
    MAX_SLICE_BYTES,
    MAX_STEP_RECORDS,
    WARM_UP_STEPS,
    Frame,
    PhaseSeconds,
)
from firmware_agent.common.frames.measure_frames import LayerTime, LayerTimes, Measure, Measured
from firmware_agent.common.frames.session_frames import Failed, Hello, Received, Slice, Welcome
from tests.support import strategies
from tests.support.examples import examples

# One valid frame of each kind, as plain data: the sender need not use our classes.
VALID: dict[str, dict[str, object]] = {
    "Hello": {"protocol": 1, "device": "csd-00", "incarnation": 1, "clock": "wall", "manifest_sha256": "a" * 64}
    | {"samples": 5, "facts": {"torch": "2.9.1"}, "instance": "0123456789abcdef"},
    "Welcome": {},
    "Job": {"model": "digits_cnn", "arguments": {"n": 1, "b": True}, "source": None, "input_scale": 0.1, "seed": 0}
    | {"learning_rate": 0.1, "momentum": 0.9, "batch_size": 8},
    "Ready": {"parameters": 5},
    "Tensors": {"exchange": 1, "specs": [{"name": "w", "dtype": "<f4", "shape": [2, 2]}]},
    "Slice": {"exchange": 1, "tensor": "w", "offset": 0, "checksum": b"12345678", "data": b"1234"},
    "Received": {"exchange": 1, "size_bytes": 5},
    "Train": {"round": 1, "epochs": 1},
    "Exchange": {"round": 1, "number": 2},
    "Trained": {"round": 1, "samples": 5, "steps": 1, "loss": 0.5, "seconds": {"forward": 0.1}, "read_bytes": 10},
    "Step": {"step": 1, "records": b"\0\0\0\0", "micro_batch": 1},
    "Resend": {"step": 1, "sending": {"schedule": "priority", "slice_bytes": 1, "credit_bytes": 2}},
    "Stepped": {"step": 1, "samples": 1, "loss": 0.5, "seconds": {"forward": 0.1}, "read_bytes": 10},
    "Timed": {
        "step": 1,
        "now_seconds": 2.0,
        "end_seconds": 1.0,
        "slices": [[0, 0, 5, 0.5, 1.0]],
        "tensors": [[0, 0.0, 0.5]],
    },
    "Reduce": {"step": 1, "index": 0, "values": bytes(8)},
    "Reduced": {"step": 1, "index": 0, "values": bytes(8)},
    "Activations": {"step": 1, "part": 0, "specs": []},
    "ActivationGradients": {"step": 1, "part": 0, "loss": 0.5, "specs": []},
    "Measure": {"batch_size": 8, "device_seconds": 1.0, "bare": False},
    "Measured": {"samples": 5, "steps": 1, "seconds": {}, "elapsed_seconds": 1.0},
    "Disturb": {"weight": 100},
    "Disturbed": {"weight": 100},
    "ProbeRead": {"size_bytes": 1, "limit_bytes_per_second": 0},
    "ProbeSend": {"size_bytes": 1, "limit_bytes_per_second": 5, "address": "10.0.2.2:5000"},
    "Probed": {"counted_bytes": 5, "seconds": 1.0},
    "Sabotage": {"harm": "fill"},
    "Sabotaged": {"filled_bytes": 4096},
    "Failed": {"task": "Train", "error": "no"},
}
BAD_VALUES: list[tuple[str, str, object]] = [
    ("Hello", "protocol", 0),
    ("Hello", "device", ""),
    ("Hello", "device", "x" * 257),
    ("Hello", "incarnation", -1),
    ("Hello", "incarnation", 1.5),
    ("Hello", "incarnation", "1"),
    ("Hello", "incarnation", 2**53 + 1),
    ("Hello", "incarnation", 2**70),
    ("Hello", "manifest_sha256", "A" * 64),
    ("Hello", "manifest_sha256", "a" * 63),
    ("Hello", "samples", 0),
    ("Hello", "facts", {"torch": 2}),
    ("Hello", "facts", {"": "2"}),
    ("Hello", "facts", {"torch": "x" * (17 << 10)}),
    ("Job", "learning_rate", 0.0),
    ("Job", "momentum", 1.0),
    ("Job", "momentum", -0.1),
    ("Job", "batch_size", 0),
    ("Job", "arguments", {"n": [1]}),
    ("Job", "source", b"x"),
    ("Tensors", "exchange", -1),
    ("Tensors", "specs", [{"name": "w", "dtype": "<f4", "shape": [-1]}]),
    ("Tensors", "specs", [{"name": "w", "dtype": "<f4", "shape": [1], "more": 1}]),
    ("Tensors", "specs", [{"name": "w", "dtype": "<f4"}]),
    ("Slice", "data", b""),
    ("Slice", "data", bytes(MAX_SLICE_BYTES + 1)),
    ("Slice", "data", "text"),
    ("Slice", "checksum", b"1234567"),
    ("Slice", "checksum", b"123456789"),
    ("Slice", "checksum", 12345678),
    ("Slice", "offset", -1),
    ("Slice", "tensor", ""),
    ("Train", "round", 0),
    ("Train", "epochs", -1),
    ("Trained", "samples", -1),
    ("Trained", "steps", -1),
    ("Trained", "read_bytes", -1),
    ("Trained", "seconds", {"forward": -0.1}),
    ("Trained", "seconds", {"sleep": 0.1}),
    ("Job", "batch_norm", "none"),
    ("Job", "precision", "float16"),
    ("Step", "step", 0),
    ("Step", "records", b""),
    ("Step", "records", bytes(4 * MAX_STEP_RECORDS + 4)),
    ("Step", "micro_batch", 0),
    ("Stepped", "samples", 0),
    ("Stepped", "peak_memory_bytes", -1),
    ("Reduce", "index", -1),
    ("Reduce", "values", b"1234567"),
    ("Reduced", "values", bytes(MAX_REDUCE_BYTES + 1)),
    ("Measure", "device_seconds", 0.0),
    ("Measure", "device_seconds", 3601.0),
    ("Measure", "bare", 1),
    ("Measure", "steps", 0),
    ("Measure", "steps", MAX_RAW_STEPS + 1),
    ("Measure", "warm_up_steps", -1),
    ("Measure", "warm_up_batch_size", 0),
    ("Measure", "restore", 1),
    ("Measured", "step_seconds", [{"forward": -1.0}]),
    ("Measured", "peak_memory_bytes", -1),
    ("Measured", "encode_seconds", -1.0),
    ("Measured", "elapsed_seconds", -1.0),
    ("Measure", "layers", 1),
    ("Measured", "layers", {"layers": [], "watched": {}, "passes": 1}),
    ("Measured", "layers", {"layers": [["0", -1.0, 0.0]], "watched": {}, "passes": 1}),
    ("Measured", "layers", {"layers": [["0", float("nan"), 0.0]], "watched": {}, "passes": 1}),
    ("Measured", "layers", {"layers": [["0", 0.0, float("inf")]], "watched": {}, "passes": 1}),
    ("Measured", "layers", {"layers": [["0", 0.0]], "watched": {}, "passes": 1}),
    ("Measured", "layers", {"layers": [["0", 0.0, 0.0, 0.0]], "watched": {}, "passes": 1}),
    ("Measured", "layers", {"layers": [["x" * 257, 0.0, 0.0]], "watched": {}, "passes": 1}),
    ("Measured", "layers", {"layers": [["0", 0.0, 0.0]] * (MAX_LAYERS + 1), "watched": {}, "passes": 1}),
    ("Measured", "layers", {"layers": [["0", 0.0, 0.0]], "watched": {}, "passes": 0}),
    ("Measured", "layers", [["0", 0.0, 0.0]]),
    ("Disturb", "weight", 10_001),
    ("ProbeRead", "size_bytes", 0),
    ("ProbeRead", "limit_bytes_per_second", -1),
    ("ProbeRead", "limit_bytes_per_second", 1.5),
    ("ProbeSend", "size_bytes", 0),
    ("ProbeSend", "limit_bytes_per_second", -1),
    ("ProbeSend", "address", ""),
    ("ProbeSend", "address", "x" * 257),
    ("Probed", "counted_bytes", -1),
    ("Probed", "seconds", -1.0),
    ("Sabotage", "harm", "explode"),
    ("Sabotaged", "filled_bytes", -1),
    ("Hello", "instance", "0" * 15),
    ("Hello", "instance", "0" * 16 + "\n"),
    ("Failed", "error", "x" * (17 << 10)),
    ("Failed", "error", None),
]
WRONG_DTYPES = ["O", "|O", "<c8", "<M8", "<f1", "|b8", "<b4", "|f4", ">f4", "<f4\n", "<f4,<f4", "float32", "<U4", "|V8"]


def packed(kind: str, **changes: object) -> bytes:
    return msgspec.msgpack.encode({"type": kind} | VALID[kind] | changes)


@settings(max_examples=examples(400))
@given(frame=strategies.frames())
def test_what_is_encoded_comes_back_equal(frame: Frame) -> None:
    assert wire.decode(wire.encode(frame)) == frame


def test_every_kind_of_frame_has_an_example_here_and_can_be_decoded() -> None:
    assert set(VALID) == {kind.__name__ for kind in strategies.FRAMES}
    for kind in VALID:
        assert type(wire.decode(packed(kind))).__name__ == kind


def test_a_value_out_of_range_is_refused(subtests: pytest.Subtests) -> None:
    for kind, field, value in BAD_VALUES:
        with subtests.test(kind=kind, field=field, value=value):
            try:
                data = packed(kind, **{field: value})
            except OverflowError:
                # The largest integer that msgpack has.
                data = packed(kind, **{field: msgspec.Raw(b"\xcf" + b"\xff" * 8)})
            with pytest.raises(ProtocolError):
                wire.decode(data)


def test_a_dtype_that_is_no_plain_little_endian_number_is_refused(subtests: pytest.Subtests) -> None:
    for dtype in WRONG_DTYPES:
        with subtests.test(dtype=dtype), pytest.raises(ProtocolError):
            wire.decode(packed("Tensors", specs=[{"name": "w", "dtype": dtype, "shape": [1]}]))


@pytest.mark.parametrize("field", ["seconds", "elapsed_seconds"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_seconds_are_finite(field: str, value: float) -> None:
    with pytest.raises(ProtocolError):
        wire.decode(packed("Measured", **{field: {"forward": value} if field == "seconds" else value}))


def test_an_unknown_field_a_missing_field_and_a_wrong_tag_are_refused(subtests: pytest.Subtests) -> None:
    for kind in VALID:
        with subtests.test(kind=kind):
            with pytest.raises(ProtocolError):
                wire.decode(packed(kind, record=b"private"))
            for field in VALID[kind]:
                fields = {name: value for name, value in VALID[kind].items() if name != field}
                if (kind, field) != ("Measure", "bare"):  # the only field with a default
                    with pytest.raises(ProtocolError):
                        wire.decode(msgspec.msgpack.encode({"type": kind} | fields))
            for tag in ("", kind.lower(), "Record", 1, None):
                with pytest.raises(ProtocolError):
                    wire.decode(msgspec.msgpack.encode({"type": tag} | VALID[kind]))
            with pytest.raises(ProtocolError):
                wire.decode(msgspec.msgpack.encode(VALID[kind]))


@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(wire.decode(data), Frame)


@settings(max_examples=examples(300))
@given(frame=strategies.frames(), data=st.data())
def test_a_damaged_frame_is_a_frame_or_a_protocol_error(frame: Frame, data: st.DataObject) -> None:
    encoded = bytearray(wire.encode(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        assert isinstance(wire.decode(bytes(encoded)), Frame)


@given(frame=strategies.frames(), data=st.data())
def test_a_frame_cut_short_or_followed_by_more_is_refused(frame: Frame, data: st.DataObject) -> None:
    encoded = wire.encode(frame)
    with pytest.raises(ProtocolError):
        wire.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(ProtocolError):
        wire.decode(encoded + data.draw(st.binary(min_size=1, max_size=8)))


def test_a_frame_that_is_too_long_is_refused_before_it_is_read_and_never_sent() -> None:
    with pytest.raises(ProtocolError, match=str(MAX_FRAME_BYTES)):
        wire.decode(bytes(MAX_FRAME_BYTES + 1))
    facts = {f"fact {n}": "x" * (16 << 10) for n in range(80)}
    hello = Hello(1, "csd-00", 1, "wall", "a" * 64, 1, facts, "0" * 16)
    with pytest.raises(ProtocolError, match="Hello"):
        wire.encode(hello)
    largest = Slice(2**53, "w" * 256, 2**53, b"12345678", memoryview(bytes(MAX_SLICE_BYTES)))
    assert wire.decode(wire.encode(largest)) == largest


@pytest.mark.parametrize("byte", [b"\x91", b"\x81\xa1x", b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc1"])
def test_deep_nesting_and_boasting_lengths_are_refused(byte: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.decode(byte * (200_000 // len(byte)))


@given(frames=st.lists(strategies.frames(), max_size=12), data=st.data())
def test_packed_frames_come_back_in_order_and_a_large_one_travels_alone(
    frames: list[Frame], data: st.DataObject
) -> None:
    large = Slice(1, "w", 0, b"12345678", memoryview(bytes(MAX_SLICE_BYTES)))
    frames.insert(data.draw(st.integers(0, len(frames))), large)
    encoded = [wire.encode(frame) for frame in frames]
    messages = list(wire.pack(encoded))
    assert [frame for message in messages for frame in wire.unpack(message)] == frames
    assert wire.encode(large) in messages
    assert len(messages) <= 3
    assert list(wire.pack([encoded[0]])) == encoded[:1]


@given(sizes=st.lists(st.integers(1, 1 << 16), min_size=1, max_size=12))
def test_nothing_small_waits_in_a_message_for_something_large(sizes: list[int]) -> None:
    frames = [wire.encode(Slice(1, "w", 0, b"12345678", memoryview(bytes(size)))) for size in sizes]
    waiting, sent = iter(frames), list[bytes]()
    while (first := next(waiting, None)) is not None:
        sent += wire.join(first, lambda: next(waiting, None))
    assert [frame for message in sent for frame in wire.unpack(message)] == [wire.decode(frame) for frame in frames]
    for message in sent:
        assert len(message) < 5 << 10 or message in frames


def test_small_frames_that_wait_go_together_and_no_more_is_taken_than_goes() -> None:
    read, taken = wire.encode(Received(1, 5)), list[int]()

    def take() -> bytes:
        taken.append(1)
        return read

    messages = wire.join(read, take)
    assert sum(len(wire.unpack(message)) for message in messages) == 1 + len(taken) > 50
    assert len(messages) <= 2
    assert wire.join(read, lambda: None) == [read]


def test_messages_of_many_frames_stay_small() -> None:
    welcome, failed = wire.encode(Welcome()), wire.encode(Failed("Train", "x" * 10_000))
    for frames in ([welcome] * 5000, [failed] * 100, [failed, *[welcome] * 3000] * 3):
        messages = list(wire.pack(frames))
        assert sum(len(wire.unpack(message)) for message in messages) == len(frames)
        assert max(map(len, messages)) < 1 << 17
        assert len(messages) < len(frames) / 4
    assert list(wire.pack([])) == []


def test_a_message_without_a_frame_with_too_many_or_with_something_else_is_refused() -> None:
    welcome = wire.encode(Welcome())
    assert wire.unpack(b"\x92" + 2 * welcome) == [Welcome()] * 2
    for message in (
        b"\x90",
        b"\x91\x90",
        b"\x92" + welcome + b"\x91" + welcome,
        b"\x92" + welcome,
        b"\x91" + 2 * welcome,
        b"\xdd\x00\x01\x00\x00" + (1 << 16) * welcome,
    ):
        with pytest.raises(ProtocolError):
            wire.unpack(message)
    with pytest.raises(ProtocolError, match="2 frames came in where one was due"):
        wire.decode(b"\x92" + 2 * welcome)


def test_the_data_of_a_decoded_slice_are_a_view_of_its_frame() -> None:
    encoded = wire.encode(Slice(1, "w", 0, b"12345678", memoryview(b"1234")))
    decoded = wire.decode(encoded)
    assert isinstance(decoded, Slice)
    assert decoded.data.obj is encoded


def test_the_sum_of_phases() -> None:
    assert PhaseSeconds(1.0, 2.0, 4.0, 8.0).total == 15.0


class OlderMeasure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="Measure"):
    """What an agent of before layers were measured knows."""

    batch_size: int
    device_seconds: float
    bare: bool = False
    steps: int | None = None
    warm_up_steps: int = WARM_UP_STEPS
    warm_up_batch_size: int | None = None
    restore: bool = True


class OlderMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="Measured"):
    """What such an agent sends, and a host of before takes."""

    samples: int
    steps: int
    seconds: PhaseSeconds
    elapsed_seconds: float
    step_seconds: list[PhaseSeconds] = []
    encode_seconds: float = 0.0
    peak_memory_bytes: int = 0
    peak_memory_source: str = ""
    monitor_seconds: float = 0.0


@given(st.integers(1, 100), st.none() | st.integers(1, 50), st.booleans(), st.booleans())
def test_an_agent_that_cannot_measure_layers_understands_whoever_does_not_ask(
    batch: int, steps: int | None, bare: bool, restore: bool
) -> None:
    asked = Measure(batch, 2.0, bare, steps, restore=restore)
    older = msgspec.msgpack.decode(wire.encode(asked), type=OlderMeasure)
    assert all(getattr(older, name) == getattr(asked, name) for name in OlderMeasure.__struct_fields__)
    with pytest.raises(msgspec.ValidationError, match="layers"):
        msgspec.msgpack.decode(wire.encode(msgspec.structs.replace(asked, layers=True)), type=OlderMeasure)


def test_measurements_without_layers_are_what_they_were() -> None:
    older = OlderMeasured(8, 2, PhaseSeconds(1.0), 2.0, [PhaseSeconds(0.5)] * 2, 0.5, 10, "VmHWM", 0.1)
    (frame,) = wire.unpack(msgspec.msgpack.encode(older))
    assert isinstance(frame, Measured)
    assert frame.layers is None
    assert msgspec.msgpack.decode(wire.encode(frame), type=OlderMeasured) == older
    times = LayerTimes([LayerTime("", 0.5, 0.0)], PhaseSeconds(0.6), 3)
    (told,) = wire.unpack(wire.encode(msgspec.structs.replace(frame, layers=times)))
    assert isinstance(told, Measured)
    assert told.layers == times


def test_as_many_layers_as_may_be_told_of_fit_into_a_frame() -> None:
    layers = [LayerTime("x" * 256, 1.0, 1.0)] * MAX_LAYERS
    steps = [PhaseSeconds(1.0, 1.0, 1.0, 1.0)] * 32
    told = Measured(1, 1, steps[0], 1.0, steps, layers=LayerTimes(layers, steps[0], 8))
    assert wire.unpack(wire.encode(told)) == [told]
