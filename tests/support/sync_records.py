"""Records of a synchronous run that never was: unequal devices, competing work in drives, batches that follow it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from csd_emu.perfmodel.power import add_up, device_energy, host_energy
from csd_emu.perfmodel.timeline import Activity, Link, Span, compose, shift
from csd_emu.profiles import PROFILES
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import DeviceRound, DeviceStep, RetuneRecord, RoundRecord, StepRecord
from tests.support.records import round_record

GRADIENT_BYTES, RECORD_BYTES = 153_875, 256
DRIVE, SERVER = PROFILES["newport"], PROFILES["xeon-4108"]
FIXED_SECONDS, RECORD_SECONDS, HOST_RATIO = 0.02, 0.01, 15.2
FIRST_BATCH = 32


@dataclass(frozen=True)
class Disturbed:
    """Competing work of `weight` in a drive, in `steps` steps from `at_step` on; the run finds out after `notice`."""

    device: str
    at_step: int
    steps: int
    weight: int
    notice: int = 4

    def covers(self, step: int) -> bool:
        """Whether the work runs in this step."""
        return self.at_step <= step < self.at_step + self.steps

    @property
    def slowdown(self) -> float:
        """Observed over expected seconds."""
        return (100 + self.weight) / 100


@dataclass(frozen=True)
class SyncRun:
    """A whole run; see `make`.

    Attributes:
        drives: how many.
        steps: in all.
        round_steps: per round.
        disturbed: what competes with the drives.
        spoiled: step -> fields of its record that are replaced.
    """

    drives: int = 4
    steps: int = 200
    round_steps: int = 50
    disturbed: Sequence[Disturbed] = (Disturbed("csd-01", 60, 60, 100), Disturbed("csd-03", 150, 20, 300))
    spoiled: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the drives."""
        return [f"csd-{number:02d}" for number in range(self.drives)]

    def make(self) -> list[RoundRecord]:
        """Return the run's rounds, with steps, retunes, spans and energy."""
        rounds: list[RoundRecord] = []
        start = 0.0
        for first in range(1, self.steps + 1, self.round_steps):
            rounds.append(
                self._round(len(rounds) + 1, range(first, min(self.steps + 1, first + self.round_steps)), start)
            )
            start += rounds[-1].array_seconds
        return rounds

    def batches(self, step: int) -> dict[str, int]:
        """Return the batch of every device in a step: what the run believes of them by then."""
        believed = {d.device: d.slowdown for d in self.disturbed if d.covers(step - d.notice)}
        pace = _seconds(FIRST_BATCH)
        drives = {
            name: math.floor((pace / believed.get(name, 1.0) - FIXED_SECONDS) / RECORD_SECONDS) for name in self.names
        }
        return drives | {HOST: math.floor((pace * HOST_RATIO - FIXED_SECONDS) / RECORD_SECONDS)}

    def step(self, step: int) -> tuple[StepRecord, list[Span]]:
        """Return the record of a step, and its spans from 0 on."""
        batches, slowdowns = self.batches(step), {d.device: d.slowdown for d in self.disturbed if d.covers(step)}
        total = sum(batches.values())
        parts = [
            DeviceStep(
                device=name,
                batch_size=batch,
                compute_seconds=expected * slowdowns.get(name, 1.0) * (1 + 0.005 * math.sin(step + len(name) + batch)),
                expected_seconds=expected,
                weight=batch / total,
            )
            for name, batch in batches.items()
            for expected in [_seconds(batch) / (HOST_RATIO if name == HOST else 1.0)]
        ]
        composed = compose(
            [_activity(part) for part in parts if part.device != HOST],
            Link(SERVER.link_bytes_per_second.value, SERVER.link_latency_seconds.value),
        )
        own = next(part for part in parts if part.device == HOST)
        spans = [*composed.spans, Span(HOST, "forward", 0.0, own.compute_seconds)]
        known = {d.device: d.slowdown for d in self.disturbed if d.covers(step - d.notice)}
        fastest = {
            name: batch if known.get(name, 1.0) > 1 else self.batches(0)[name] for name, batch in batches.items()
        }
        record: dict[str, Any] = {
            "step": step,
            "loss": 2.3 * 0.99**step,
            "learning_rate": 0.05 * total / sum(self.batches(0).values()),
            "array_seconds": max(composed.seconds, own.compute_seconds),
            "possible_records_per_second": sum(fastest.values()) / _seconds(FIRST_BATCH),
            "devices": parts,
            "disturbed": {d.device: d.weight for d in self.disturbed if d.covers(step)},
        }
        return StepRecord(**record | dict(self.spoiled.get(step, {}))), spans

    def _round(self, number: int, steps: range, start: float) -> RoundRecord:
        made = [self.step(step) for step in steps]
        records, spans, now = [record for record, _ in made], [], start  # type: ignore[var-annotated]
        for record, own in made:
            spans += shift(own, now)
            now += record.array_seconds
        parts = [_part(name, records, spans, now - start) for name in [*self.names, HOST]]
        idle = {HOST: host_energy(SERVER, now - start, 0.0, 0.0, 2 * GRADIENT_BYTES * self.drives * len(steps))}
        return round_record(
            parts,
            round=number,
            clock="counted+modelled",
            accuracy=1 - 0.9 * 0.6**number,
            test_loss=2.3 * 0.6**number,
            train_loss=sum(record.loss for record in records) / len(records),
            start_seconds=start,
            array_seconds=now - start,
            spans=spans,
            energy_joules=idle,
            steps=records,
            retunes=[retune for step in steps for retune in self._retunes(step)],
        )

    def _retunes(self, step: int) -> list[RetuneRecord]:
        before, after = self.batches(step - 1), self.batches(step)
        changed = [name for name in after if before[name] != after[name]]
        if step == 1 or not changed:
            return []
        words = ", ".join(
            f"{name} {'slower' if after[name] < before[name] else 'as fast as its table again'}" for name in changed
        )
        return [
            RetuneRecord(
                step=step, reason=f"{words} since step {step - 4}", before=before, after=after, gain_steps=21.5
            )
        ]


def _seconds(batch: int) -> float:
    return FIXED_SECONDS + RECORD_SECONDS * batch


def _activity(part: DeviceStep) -> Activity:
    third = part.compute_seconds / 3
    return Activity(
        device=part.device,
        receive_bytes=GRADIENT_BYTES,
        read_bytes=RECORD_BYTES * part.batch_size,
        read_operations=1,
        phases={"forward": third, "backward": 2 * third},
        send_bytes=GRADIENT_BYTES,
        flash_bytes_per_second=DRIVE.flash_bytes_per_second.value,
        flash_latency_seconds=DRIVE.flash_latency_seconds.value,
        link_bytes_per_second=DRIVE.link_bytes_per_second.value,
        link_latency_seconds=DRIVE.link_latency_seconds.value,
    )


def _part(name: str, steps: Sequence[StepRecord], spans: Sequence[Span], seconds: float) -> DeviceRound:
    """Return a device's part in a round of these steps; the host's own energy is beside that of its idle time."""
    parts = [part for record in steps for part in record.devices if part.device == name]
    profile = SERVER if name == HOST else DRIVE
    samples, compute = sum(part.batch_size for part in parts), math.fsum(part.compute_seconds for part in parts)
    did = add_up(profile, [span for span in spans if span.device == name])
    joules = device_energy(
        *(profile.power, 0.0 if name == HOST else seconds, did.busy_core_seconds, did.busy_seconds),
        *(RECORD_BYTES * samples if name != HOST else 0, did.link_bytes),
    )
    return DeviceRound(
        device=name,
        clock="modelled" if name == HOST else "counted",
        samples=samples,
        steps=len(parts),
        batch_size=parts[-1].batch_size if parts else 0,
        loss=steps[-1].loss,
        stopwatch_seconds=PhaseSeconds(),
        device_seconds=PhaseSeconds(forward=compute / 3, backward=2 * compute / 3),
        flash_read_bytes=RECORD_BYTES * samples,
        sent_bytes=0 if name == HOST else GRADIENT_BYTES * len(parts),
        received_bytes=RECORD_BYTES * samples if name == HOST else GRADIENT_BYTES * len(parts),
        energy_joules=joules,
    )
