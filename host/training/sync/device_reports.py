"""What devices reported of a step, as it is accounted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Trained
from firmware_agent.common.frames.step_frames import Stepped
from host.core.records import DeviceRound, DeviceStep
from host.training.accounting import DeviceReport
from host.training.sync.exchange.gradient_buffer import GradientBuffer
from host.training.sync.exchange.step_exchange import DeviceOutcome
from host.training.sync.gradient_direction import GradientSample, Sampler


def capped_seconds(seconds: PhaseSeconds, limit: float) -> PhaseSeconds:
    """Return seconds of no more than `limit` in all, shared out over the phases as they are."""
    share = min(1.0, limit / seconds.total) if seconds.total else 1.0
    return PhaseSeconds(*(share * getattr(seconds, phase) for phase in PhaseSeconds.__struct_fields__))


def returned_reports(outcomes: Sequence[DeviceOutcome]) -> list[DeviceReport]:
    """Return the reports of those devices that reported."""
    return [as_report(outcome, outcome.stepped) for outcome in outcomes if outcome.stepped is not None]


def as_report(outcome: DeviceOutcome, stepped: Stepped) -> DeviceReport:
    """Return a step's report as one of a round of one epoch."""
    return DeviceReport(
        device=outcome.device,
        hello_clock=outcome.work.session.hello.clock,
        trained=Trained(
            *(stepped.step, stepped.samples, 1, stepped.loss, stepped.seconds, stepped.read_bytes),
            stepped.peak_memory_bytes,
            stepped.metered,
        ),
        epochs=1,
        batch_size=stepped.samples,
        sent_bytes=0 if outcome.device == HOST else outcome.sent_bytes,
        received_bytes=stepped.read_bytes if outcome.device == HOST else outcome.received_bytes,
        micro_batch=outcome.work.micro_batch,
    )


def sample_gradients(
    sampler: Sampler, gathering: GradientBuffer, outcomes: Mapping[str, DeviceOutcome]
) -> dict[str, GradientSample]:
    """Return a sample of the gradient of each device that returned one."""
    gradients = {device: gathering.gradients(device) for device in outcomes}
    return {
        device: GradientSample(sampler.take(gradients[device]), outcome.stepped.samples, outcome.stepped.loss)
        for device, outcome in outcomes.items()
        if outcome.stepped is not None and gradients[device]
    }


def device_step(outcome: DeviceOutcome, accounted: DeviceRound, expected_seconds: float, records: int) -> DeviceStep:
    """Return the record of a device's part of a step.

    Args:
        outcome: of the device.
        accounted: what its part is accounted as.
        expected_seconds: by its table.
        records: in the step, of all devices in time.
    """
    return DeviceStep(
        device=outcome.device,
        batch_size=len(outcome.work.records),
        compute_seconds=accounted.device_seconds.total,
        expected_seconds=expected_seconds,
        weight=len(outcome.work.records) / records,
    )
