"""Parts of a run that a competing task slowed down, and their counterpart in the baseline.

The task was put on the drive by `csd-emu inject ARRAY DEVICE slow`. The baseline's host does not have it, so its
compute must not come from such parts where the run has others. Parts in, parts out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from host.core.records import DeviceRound, EventKind, EventRecord, RoundRecord

# What `host.training.run_faults` writes down; without a weight the task has ended.
_WEIGHT = re.compile(r"slow.* weight (\d+)")
# With its session a drive's competing task ends too; a resumed run has new sessions.
_SESSION_ENDS = (EventKind.LOST, EventKind.LEFT, EventKind.REJOINED)


def stand_ins(
    rounds: Sequence[RoundRecord], events: Sequence[EventRecord], kinds: Mapping[str, str]
) -> dict[tuple[int, str], DeviceRound | None]:
    """Return what stands for each slowed part that came in time.

    That is the drive's own part with the least seconds per record among those with the same batch size and clock that
    no task slowed; without any, that of a drive of the same profile.

    Args:
        rounds: of the run.
        events: of the run.
        kinds: drive -> name of its profile.

    Returns:
        (round, drive) -> a part that was not slowed, None if there is none. Nothing of a synchronous run: its steps say
        themselves what was disturbed (see `undisturbed_share`).
    """
    if not (spells := list(_spells(events))) or any(record.steps for record in rounds):
        return {}
    slowed: list[tuple[int, DeviceRound]] = []
    fastest: dict[tuple[object, ...], DeviceRound] = {}
    for record in rounds:
        for part in record.in_time:
            if any(
                device == part.device and record.start_seconds < end and begin < record.end_seconds
                for device, begin, end in spells
            ):
                slowed.append((record.round, part))
            elif part.samples:
                for key in _keys(part, kinds):
                    fastest[key] = min(
                        fastest.get(key, part), part, key=lambda each: each.device_seconds.total / each.samples
                    )
    return {
        (number, part.device): next(filter(None, map(fastest.get, _keys(part, kinds))), None) for number, part in slowed
    }


def explain(rounds: Sequence[RoundRecord], events: Sequence[EventRecord], kinds: Mapping[str, str]) -> str:
    """Return what a reader must know of competing tasks, in a sentence or two; empty without any."""
    if not (found := stand_ins(rounds, events, kinds)):
        return _explain_steps(rounds)
    without = sum(part is None for part in found.values())
    text = f"A competing task slowed drives down in {len(found)} parts of rounds. "
    if without == len(found):
        return text + "No like part was free of it, so the baseline is slowed down too and looks slower than it is."
    text += "The baseline's compute is taken from like parts without it"
    rest = f", but {without} have none: there the baseline is slowed down too and looks slower than it is"
    return text + (rest if without else "") + "."


def _explain_steps(rounds: Sequence[RoundRecord]) -> str:
    """Return the same of work that a synchronous job has compete with its drives."""
    steps = [step for record in rounds for step in record.steps]
    if not (parts := [part for step in steps for part in step.devices if part.device in step.disturbed]):
        return ""
    text = f"Competing work ran in drives in {sum(bool(step.disturbed) for step in steps)} steps. "
    if all(part.expected_seconds > 0 for part in parts):
        return text + "The baseline's compute is taken without it: from the tables there."
    return text + "Without tables the baseline is slowed down there too and looks slower than it is."


def undisturbed_share(record: RoundRecord, device: str) -> float:
    """Return what a device's compute in the steps of a round would have been of what it was, without competing work.

    Disturbed steps are taken to last what the device's table expects; without a table, what they did. 1 in a round
    without steps.
    """
    parts = [
        (part.compute_seconds, part.expected_seconds if device in step.disturbed else 0.0)
        for step in record.steps
        for part in step.devices
        if part.device == device
    ]
    total = math.fsum(seconds for seconds, _ in parts)
    return math.fsum(expected or seconds for seconds, expected in parts) / total if total else 1.0


def _keys(part: DeviceRound, kinds: Mapping[str, str]) -> list[tuple[object, ...]]:
    """Return what the like parts of the same drive have in common, and then those of drives of its profile."""
    like = part.batch_size, part.clock
    return [("drive", part.device, *like), ("profile", kinds.get(part.device), *like)]


def _spells(events: Sequence[EventRecord]) -> Iterator[tuple[str, float, float]]:
    """Yield drive, begin and end, in array seconds, of each time in which a competing task ran."""
    begun: dict[str, float] = {}
    for event in events:
        weight = _weight(event)
        if event.what is EventKind.RESUMED:
            ended = list(begun)
        else:
            ended = [event.device] if weight == 0 or event.what in _SESSION_ENDS else []
        for device in ended:
            if device in begun:
                yield device, begun.pop(device), event.array_seconds
        if weight:
            begun.setdefault(event.device, event.array_seconds)
    yield from ((device, begin, float("inf")) for device, begin in begun.items())


def _weight(event: EventRecord) -> int | None:
    """Return the weight of the task that an event begins, 0 if it ends one, None if it is of something else."""
    if event.what is not EventKind.INJECTED or not event.detail.startswith("slow"):
        return None
    found = _WEIGHT.match(event.detail)
    return int(found[1]) if found else 0
