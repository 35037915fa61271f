"""Key of a calibration table: a model, its arguments, its source, the records' shape, the core, and what is trained."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import msgspec

from csd_emu.cycles.parameters import CoreParameters
from csd_emu.util.record_shape import Shape
from firmware_agent.common.models import ZOO
from firmware_agent.common.shipped_code import ShippedCode

# The core of the counted clock: one instruction per nanosecond; a profile scales it to a drive.
REFERENCE_CORE = "reference"
# The same core with a nanosecond per cycle, as the core model counts them: a view of a table, never a file.
CYCLES_CORE = "cycles"
# The core of a table whose cycles are those of a profile's core begins so, and goes on with that core's digest.
MODELLED = "core."
_HASH_CHARACTERS = 8


def core_name(parameters: CoreParameters) -> str:
    """Return the core of a table whose cycles were counted with these parameters; the defaults are the reference's."""
    return REFERENCE_CORE if parameters == CoreParameters() else MODELLED + parameters.digest


@dataclass(frozen=True)
class CalibrationKey:
    """Two tables of one key measure the same thing.

    Attributes:
        model: as a job file names it, a model file without its folder.
        arguments: of the builder; a built-in model's number of classes is always written out.
        source_sha256: of the user's model file, so that a changed file does not get the old file's figures.
        input_shape: of what the model takes of one record; of an image (channels, height, width).
        core: `REFERENCE_CORE`, `core_name` of another core that was modelled, or the profile of the real drive, or of
            the host, that was measured.
        task: digest of what else a step depends on: loss, optimiser, fields of the records; empty for images with class
            numbers, cross-entropy and SGD with momentum.
    """

    model: str
    arguments: Mapping[str, int | float | str | bool]
    source_sha256: str | None
    input_shape: Shape
    core: str = REFERENCE_CORE
    task: str = ""

    @classmethod
    def of(cls, spec: ShippedCode, input_shape: Shape, core: str = REFERENCE_CORE, task: str = "") -> CalibrationKey:
        """Return the key of a model as a job has it."""
        arguments = ({"num_classes": ZOO[spec.name].classes} if spec.name in ZOO else {}) | dict(spec.arguments)
        if spec.source is None:
            return cls(spec.name, arguments, None, input_shape, core, task)
        source_sha256 = hashlib.sha256(spec.source.encode()).hexdigest()
        return cls(PurePath(spec.name).name, arguments, source_sha256, input_shape, core, task)

    @property
    def shape_text(self) -> str:
        """The shape as the command line has it: ``3x224x224``."""
        return "x".join(map(str, self.input_shape))

    @property
    def file_name(self) -> str:
        """Name of the table's file: readable, and one of its own for each key."""
        parts = [
            *(re.sub(r"[^A-Za-z0-9_.]+", "-", self.model).strip("-."), self.shape_text),
            *([] if self.core == REFERENCE_CORE else [self.core]),
            *([] if self._plain else [self._model_digest()[:_HASH_CHARACTERS]]),
        ]
        return "-".join(parts) + ".json"

    @property
    def _plain(self) -> bool:
        facts = dict(self.arguments), self.task
        return self.model in ZOO and facts == ({"num_classes": ZOO[self.model].classes}, "")

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, hex."""
        return _sha256([self._model_digest(), self.input_shape, self.core])

    def _model_digest(self) -> str:
        return _sha256([self.model, sorted(self.arguments.items()), self.source_sha256, *filter(None, [self.task])])


def _sha256(content: list[Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()
