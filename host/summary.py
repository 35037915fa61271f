"""How a run ended, in one object: what `csd-emu run --json` prints and `summary.json` holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from host.failures import Failure
from host.records import RoundRecord

FEDERATED, SYNC = "federated", "sync"


class Summary(msgspec.Struct, frozen=True):
    """How a run ended. `array_seconds` is the array's composed time, `energy_joules` the whole array's energy.

    `steps` are those of the array in a synchronous run, of all drives together in a federated one. `retunes` are the
    times that batch sizes were changed, `chosen` the devices that a planner chose to train (``2 newport + host``), null
    without one. Of one of several servers all figures are its own but for accuracy, steps, seconds and
    `servers_samples`, the records of all; `servers` are those that took part in any step, null for one that is alone.
    `accuracy` is null if no round has ended. `failures` are those of the user's own code, at most 33 different ones: a
    run with any has failed, and has not `reached` what it should. Rates per image are over all records trained on in
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
    images_per_device_second: float
    array_seconds: float
    energy_joules: float
    host_link_bytes: int
    wall_seconds: float
    run_directory: str
    seed: int
    mode: str = FEDERATED
    steps: int = 0
    retunes: int = 0
    images_per_array_second: float = 0.0
    joules_per_image: float = 0.0
    host_link_bytes_per_image: float = 0.0
    chosen: str | None = None
    servers: list[str] | None = None
    servers_samples: int | None = None
    failures: list[Failure] = []


def format_accuracy(accuracy: float | None) -> str:
    """Return an accuracy for people, also of a run without a round."""
    return "unknown" if accuracy is None else f"{accuracy:.4f}"


def mode_of(rounds: Sequence[RoundRecord]) -> str:
    """Return the mode of the run that these rounds are of: one with steps of its own is synchronous."""
    return SYNC if any(record.steps for record in rounds) else FEDERATED


def summarise(rounds: Sequence[RoundRecord], mode: str | None = None, **facts: Any) -> Summary:
    """Return the summary of the `rounds`; `facts` are the fields that they do not know, `mode` if there may be none.

    What came too late counts in bytes and energy, not in samples and seconds.
    """
    parts = [part for record in rounds for part in record.devices]
    counted = [part for part in parts if not part.straggler]
    seconds: dict[str, float] = {}
    for part in counted:
        seconds[part.device] = seconds.get(part.device, 0.0) + part.device_seconds.total
    samples = sum(part.samples for part in counted)
    array_seconds = sum(record.array_seconds for record in rounds)
    joules = sum(record.total_joules for record in rounds)
    link_bytes = sum(part.host_link_bytes for part in parts)
    mode = mode or mode_of(rounds)
    return Summary(
        clock=rounds[-1].clock if rounds else "",
        rounds=len(rounds),
        accuracy=rounds[-1].accuracy if rounds else None,
        samples=samples,
        device_seconds=seconds,
        images_per_device_second=_over(samples, sum(seconds.values())),
        array_seconds=array_seconds,
        energy_joules=joules,
        host_link_bytes=link_bytes,
        mode=mode,
        steps=sum(len(record.steps) for record in rounds) if mode == SYNC else sum(part.steps for part in counted),
        retunes=sum(len(record.retunes) for record in rounds),
        images_per_array_second=_over(samples, array_seconds),
        joules_per_image=_over(joules, samples),
        host_link_bytes_per_image=_over(link_bytes, samples),
        **_of_all(rounds),
        **facts,
    )


def _of_all(rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return what the rounds say of all servers; nothing if there was but one."""
    steps = [step.servers for record in rounds for step in record.steps if step.servers is not None]
    present = list(dict.fromkeys(server for step in steps for server in step.present))
    return {"servers": present, "servers_samples": sum(step.samples for step in steps)} if steps else {}


def _over(above: float, below: float) -> float:
    return above / below if below else 0.0
