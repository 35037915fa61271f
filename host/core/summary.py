"""Summary of a run, in one object: what `csd-emu run --json` prints and `summary.json` holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from csd_emu.util.renamed import Renamed, old_name_of, with_new_keys
from host.core.failures import Failure
from host.core.records import RoundRecord

FEDERATED, SYNC = "federated", "sync"


class Summary(Renamed, frozen=True):
    """How a run ended. `array_seconds` is the array's composed time, `energy_joules` the whole array's energy.

    `steps` are those of the array in a synchronous run, of all drives together in a federated one. `retunes` are the
    times that batch sizes were changed, `chosen` the devices that a planner chose to train (``2 newport + host``), null
    without one. Of one of several servers all figures are its own but for accuracy, steps, seconds and
    `servers_samples`, the records of all; `servers` are those that took part in any step, null for one that is alone.
    `accuracy` is null if no round has ended. `failures` are those of the user's own code, at most 33 different ones: a
    run with any has failed, and has not `reached` what it should. Rates per record are over all records trained on in
    time, repetitions counted; 0 if there are none.
    """

    array: str
    engine: str
    clock: str
    model: str
    rounds: int
    accuracy: float | None
    target_accuracy: float | None
    reached: bool
    samples: int
    device_seconds: dict[str, float]
    records_per_device_second: float
    array_seconds: float
    energy_joules: float
    host_link_bytes: int
    wall_seconds: float
    run_directory: str
    seed: int
    mode: str = FEDERATED
    steps: int = 0
    retunes: int = 0
    records_per_array_second: float = 0.0
    joules_per_record: float = 0.0
    host_link_bytes_per_record: float = 0.0
    chosen: str | None = None
    servers: list[str] | None = None
    servers_samples: int | None = None
    failures: list[Failure] = msgspec.field(default_factory=list)
    images_per_device_second: Annotated[float, old_name_of("records_per_device_second")] = 0.0
    images_per_array_second: Annotated[float, old_name_of("records_per_array_second")] = 0.0
    joules_per_image: Annotated[float, old_name_of("joules_per_record")] = 0.0
    host_link_bytes_per_image: Annotated[float, old_name_of("host_link_bytes_per_record")] = 0.0


def decode_summary(content: bytes) -> Summary:
    """Return the summary in a summary.json, also one of the release before.

    Raises:
        msgspec.MsgspecError: it is none.
        UnicodeDecodeError, RecursionError: likewise.
    """
    return msgspec.convert(with_new_keys(msgspec.json.decode(content)), Summary)


def format_accuracy(accuracy: float | None) -> str:
    """Return an accuracy for people, also of a run without a round."""
    return "unknown" if accuracy is None else f"{accuracy:.4f}"


def summarise(rounds: Iterable[RoundRecord], mode: str | None = None, **facts: Any) -> Summary:
    """Return the summary of the `rounds`, which are gone through once; `facts` are the fields that they do not know.

    What came too late counts in bytes and energy, not in samples and seconds. Without a `mode` a run with steps of its
    own is synchronous.
    """
    seconds: dict[str, float] = {}
    servers: dict[str, None] = {}
    count = samples = array_steps = drive_steps = retunes = link_bytes = servers_samples = 0
    array_seconds = joules = 0.0
    last: RoundRecord | None = None
    for last in rounds:
        count += 1
        for part in last.devices:
            link_bytes += part.host_link_bytes
            if not part.straggler:
                seconds[part.device] = seconds.get(part.device, 0.0) + part.device_seconds.total
                samples += part.samples
                drive_steps += part.steps
        for step in last.steps:
            if step.servers is not None:
                servers |= dict.fromkeys(step.servers.present)
                servers_samples += step.samples
        array_steps += len(last.steps)
        retunes += len(last.retunes)
        array_seconds += last.array_seconds
        joules += last.total_joules
    mode = mode or (SYNC if array_steps else FEDERATED)
    return Summary(
        clock=last.clock if last else "",
        rounds=count,
        accuracy=last.accuracy if last else None,
        samples=samples,
        device_seconds=seconds,
        records_per_device_second=_over(samples, sum(seconds.values())),
        array_seconds=array_seconds,
        energy_joules=joules,
        host_link_bytes=link_bytes,
        mode=mode,
        steps=array_steps if mode == SYNC else drive_steps,
        retunes=retunes,
        records_per_array_second=_over(samples, array_seconds),
        joules_per_record=_over(joules, samples),
        host_link_bytes_per_record=_over(link_bytes, samples),
        servers=list(servers) if servers else None,
        servers_samples=servers_samples if servers else None,
        **facts,
    )


def _over(above: float, below: float) -> float:
    return above / below if below else 0.0
