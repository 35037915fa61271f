"""Schedule of a run's transfers, and whether they overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from csd_emu.config.array_file import QEMU, REMOTE, ArrayConfig
from csd_emu.perfmodel.host_node import link_of
from csd_emu.perfmodel.overlap.overlapped_step import SLICE_SECONDS
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.profiles import get_profile
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import TransferSettings
from host.config.job_file import JobConfig
from host.core.device_time import StepModel
from host.core.evaluation import WeightsJudge
from host.core.records import SendingRecord
from host.policies.transfer.link_conditions import ASSUMED_SLICE_SECONDS
from host.policies.transfer.setting_grid import default_setting
from host.policies.transfer.transfer_tuner import FixedSending, TransferTuner, make_tuner

ALWAYS_FIFO = FixedSending(TransferSettings())


@dataclass(frozen=True)
class TransferPolicy:
    """How steps are sent.

    Attributes:
        tuner: decides on the settings.
        overlap: whether slices cross while devices compute, and the next step is announced before this one is over.
        composed: whether the array's time is composed as if they did, by the scheduling core.
    """

    tuner: TransferTuner = ALWAYS_FIFO
    overlap: bool = False
    composed: bool = False

    def notes(self, job: JobConfig) -> list[str]:
        """Return what must be known of the run, in sentences."""
        if not self.overlap:
            return ["steps are composed as if their slices crossed while drives compute"] if self.composed else []
        notes = ["slices cross while drives compute: batches that follow from step k hold from step k + 2 on"]
        if job.sync.straggler_factor is not None:
            notes.append(
                "sync.straggler_factor: whom a step does not wait for is known at its end, so no step begins before it"
            )
        return notes

    def told(self, sending: TransferSettings) -> SendingRecord | None:
        """Return what a step's record says of its settings; None for what was before there were any."""
        if sending.schedule == "fifo" and not self.overlap:
            return None
        return SendingRecord(sending.schedule, sending.slice_bytes, sending.credit_bytes, self.overlap)


UNSLICED = TransferPolicy()
"""Whole tensors, sent before and after computing."""


def choose_communication(
    config: ArrayConfig, job: JobConfig, models: Mapping[str, StepModel], evaluator: WeightsJudge
) -> TransferPolicy:
    """Return how the steps of a job are sent.

    Args:
        config: the array.
        job: what it trains.
        models: device -> what its steps cost, of those whose seconds are modelled.
        evaluator: knows the model's tensors.

    Raises:
        ConfigurationError: a size is larger than the model, or slices cannot overlap computing here.
    """
    section, tied = job.communication, evaluator.structure().tied
    model_bytes = sum(a.nbytes for name, a in evaluator.initial_weights().items() if name not in tied)
    overlap = _overlaps(config, job, models)
    composed = overlap or _composed(config, job)
    usual = default_setting(model_bytes, _drive_link(config, overlap))
    tuner = make_tuner(section.schedule, section.sending(model_bytes, usual), job.seed, predictor=section.predictor)
    if tuner.learns and not composed:
        raise ConfigurationError(
            f"communication.schedule: {section.schedule} learns from slices that cross while drives compute, and with "
            f"overlap: {str(section.overlap).lower()} none does here; choose priority, or have overlap: true where all "
            "nodes are on one kind of clock"
        )
    return TransferPolicy(tuner, overlap, composed)


def _drive_link(config: ArrayConfig, really: bool) -> SharedLink:
    """Return what the slowest drive has of the link if all send at once; what a slice costs really is assumed."""
    drives = [get_profile(device.profile) for device in config.list_devices()]
    link = link_of(config.link, get_profile(config.host.profile))
    part = link.bytes_per_second / (max(1, len(drives)) if link.shared else 1)
    return SharedLink(
        min([part, *(each.link_bytes_per_second.value for each in drives)]),
        link.latency_seconds + max((each.link_latency_seconds.value for each in drives), default=0.0),
        ASSUMED_SLICE_SECONDS if really else SLICE_SECONDS.value,
    )


def _overlaps(config: ArrayConfig, job: JobConfig, models: Mapping[str, StepModel]) -> bool:
    """Return whether slices really cross while drives compute."""
    wanted = job.communication.overlap
    nodes = config.list_nodes()
    wall = [node.name for node in nodes if node.engine != QEMU and node.name not in {*models, *config.sampled}]
    if wanted is True and 0 < len(wall) < len(nodes):
        others = ", ".join(node.name for node in nodes if node.name not in wall)
        raise ConfigurationError(
            f"communication.overlap: the seconds of {others} are counted or modelled, and those of {', '.join(wall)} "
            "are the wall's: overlap is composed for some and real for others; have all nodes on one kind of clock"
        )
    if wanted == "auto":
        return bool(nodes) and all(node.engine == REMOTE for node in nodes)
    return wanted and bool(wall)


def _composed(config: ArrayConfig, job: JobConfig) -> bool:
    """Return whether overlap is composed where the wire is quiet while drives compute."""
    section = job.communication
    if section.overlap == "auto":
        return section.schedule != "fifo" and REMOTE not in config.engines
    return section.overlap
