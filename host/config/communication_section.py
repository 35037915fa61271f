"""The job file's `communication`: how the tensors of a synchronous step are sent; a schedule alone, or a mapping."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, model_validator

from csd_emu.util.config_files import Bytes, Config, RegisteredName, ShortForm
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.frames.frame_fields import MAX_EXCHANGE_BYTES
from firmware_agent.common.send_queue import TransferSettings
from host.config.plugins.kinds import TRANSFER_TUNER

ScheduleName = Annotated[str, RegisteredName(TRANSFER_TUNER)]


class CommunicationSection(Config):
    """How tensors are sent in a synchronous job (see docs/communication.md).

    Attributes:
        schedule: ``fifo`` sends whole tensors as they become ready; ``priority`` slices, those first that the next
            forward pass needs first; ``search`` finds slice and credit in the first steps and keeps them, ``autobyte``
            chooses them again and again. The last two need overlap.
        slice: of ``priority``: tensors are cut at multiples of this; left out, it follows from model and link.
        credit: of ``priority``: so much may be under way, not yet read by the other side, when another slice leaves;
            left out, it follows from model and link.
        overlap: whether slices cross while drives compute. On the clock ``wall`` they really do; on the other clocks
            the array's time is composed as if they did. ``auto``: really where all drives are real ones; composed for
            every schedule but ``fifo``.
        predictor: of ``autobyte``: what compares settings. ``model`` simulates each under the conditions that were
            measured; ``network`` is AutoByte's way, a network that was trained on simulated steps of made-up models.
    """

    schedule: ScheduleName = "fifo"
    slice: Bytes | None = None
    credit: Bytes | None = None
    overlap: Literal["auto"] | bool = "auto"
    predictor: Literal["model", "network"] = "model"

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        if self.predictor != "model" and self.schedule in ("fifo", "priority", "search"):
            raise ValueError(f"predictor is of schedule: autobyte; {self.schedule} predicts nothing, so leave it out")
        for name, size in (("slice", self.slice), ("credit", self.credit)):
            if size is None:
                continue
            if self.schedule != "priority":
                why = "sends whole tensors without a limit" if self.schedule == "fifo" else "chooses it itself"
                raise ValueError(f"{name} is of schedule: priority; {self.schedule} {why}, so leave it out")
            if size != int(size) or not 1 <= size <= MAX_EXCHANGE_BYTES:
                raise ValueError(f"{name} must be a whole number of bytes, 1 B to {MAX_EXCHANGE_BYTES >> 30} GiB")
        return self

    def sending(self, model_bytes: int, usual: TransferSettings) -> TransferSettings:
        """Return the settings of the first step for a model whose tensors take so many bytes together.

        Args:
            model_bytes: of all tensors.
            usual: what holds of a size that the job leaves out.

        Raises:
            ConfigurationError: a size is larger than the model.
        """
        if self.schedule == "fifo":
            return TransferSettings()
        for name, size in (("slice", self.slice), ("credit", self.credit)):
            if size is not None and size > model_bytes:
                raise ConfigurationError(
                    f"communication.{name}: {int(size)} bytes are more than the {model_bytes} that a step sends each "
                    "way; make it smaller, or leave it out"
                )
        slice_bytes = usual.slice_bytes if self.slice is None else int(self.slice)
        # What is under way beside a slice stays, whatever the slice.
        beside_bytes = (usual.credit_bytes or 0) - (usual.slice_bytes or 0)
        usual_credit_bytes = min(model_bytes, (slice_bytes or 0) + beside_bytes)
        credit_bytes = usual_credit_bytes if self.credit is None else int(self.credit)
        return replace(usual, slice_bytes=slice_bytes, credit_bytes=credit_bytes)


# The mapping that a schedule alone stands for.
_EXPAND = BeforeValidator(lambda value: {"schedule": value} if isinstance(value, str) else value)
_ALONE = ShortForm(lambda: {"type": "string", "enum": list(TRANSFER_TUNER.names)})
CommunicationKey = Annotated[CommunicationSection, _EXPAND, _ALONE]
