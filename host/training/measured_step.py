"""The step of a job that a calibration table is of: the frame that has a drive take it, and what it depends on."""

from __future__ import annotations

import hashlib

import msgspec

from firmware_agent.common.datafiles.record_set import IMAGE, LABEL
from firmware_agent.common.frames.session_frames import Code, Job
from firmware_agent.common.losses.objective import ObjectiveSpec
from firmware_agent.common.shipped_code import ShippedCode
from host.config.job_file import JobConfig
from host.config.plugins.plugin_loading import Plugin
from host.core.datasets import Dataset
from host.training.round_exchange import job_frame

# Small, so that weights stay finite; it changes no count.
LEARNING_RATE = 1e-4
_DIGITS = 16


def step_frame(job: JobConfig, spec: ShippedCode, objective: ObjectiveSpec, optimizer: Plugin | None) -> Job:
    """Return the frame that has a drive take a job's steps alone, without what they exchange with others."""
    frame = job_frame(job, spec, objective, optimizer=optimizer)
    return msgspec.structs.replace(frame, learning_rate=LEARNING_RATE, batch_norm="device")


def task_of(frame: Job, dataset: Dataset) -> str:
    """Return the digest of what a step costs beside model and input shape, empty for what plain tables are of.

    That is loss, optimiser, precision, what is not trained, and the form of the records; see `CalibrationKey.task`.

    Args:
        frame: of `step_frame`.
        dataset: the job's.
    """
    code = [frame.loss, frame.optimiser, frame.clip_norm, frame.freeze, frame.precision, frame.momentum > 0]
    plain = [Code("cross_entropy"), None, None, [], "float32", True]
    if code == plain and dataset.are_images and dataset.fields.keys() == {IMAGE, LABEL}:
        return ""
    fields = sorted((name, column.dtype.str, column.shape[1:]) for name, column in dataset.fields.items())
    content = msgspec.json.encode([*code, frame.input_field, fields])
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
