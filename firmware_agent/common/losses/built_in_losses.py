"""Built-in losses: each returns the mean over the records of a batch, whose fields are tensors.

Torch is imported when one is made: whoever only reads a job has no need of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from firmware_agent.common.datafiles.record_set import LENGTH, target_of
from firmware_agent.common.errors import ModelError
from firmware_agent.common.shipped_code import BuiltIns

if TYPE_CHECKING:
    from torch import Tensor

    Fields = Mapping[str, Tensor]


LOSSES = BuiltIns()


class _Loss:
    def __init__(self) -> None:
        from torch.nn import functional

        self._functional: Any = functional


@LOSSES.register("cross_entropy", "Of (records, classes, ...) logits and class numbers.")
class CrossEntropy(_Loss):
    """Softmax cross-entropy."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        """Make it.

        Args:
            label_smoothing: share of the target that is spread over all classes, 0 to 1.
        """
        super().__init__()
        self._label_smoothing = label_smoothing

    def __call__(self, outputs: Tensor, batch: Fields) -> Tensor:
        """Return the mean."""
        wanted = target(batch)
        found: Tensor = self._functional.cross_entropy(
            outputs, wanted if wanted.is_floating_point() else wanted.long(), label_smoothing=self._label_smoothing
        )
        return found


@LOSSES.register("mean_squared_error", "Of as many outputs as the target has values.")
class MeanSquaredError(_Loss):
    """Squared differences."""

    def __call__(self, outputs: Tensor, batch: Fields) -> Tensor:
        """Return the mean."""
        wanted = target(batch)
        found: Tensor = self._functional.mse_loss(outputs.reshape(wanted.shape), wanted.to(outputs.dtype))
        return found


@LOSSES.register("binary_cross_entropy", "Of as many logits as the target has values, each 0 to 1.")
class BinaryCrossEntropy(_Loss):
    """Sigmoid cross-entropy."""

    def __call__(self, outputs: Tensor, batch: Fields) -> Tensor:
        """Return the mean."""
        wanted = target(batch)
        found: Tensor = self._functional.binary_cross_entropy_with_logits(
            outputs.reshape(wanted.shape), wanted.to(outputs.dtype)
        )
        return found


@LOSSES.register("next_token", "Cross-entropy of (records, places, tokens) logits and the token at the next place.")
class NextToken(_Loss):
    """What a language model learns: each token from those before it, of the field ``tokens``."""

    def __call__(self, outputs: Tensor, batch: Fields) -> Tensor:
        """Return the mean over all places but the last; of ragged records, over records' means of their own places.

        Raises:
            ModelError: records have no field of that name.
        """
        if (tokens := batch.get("tokens")) is None:
            raise ModelError(
                f"loss: next_token is of the field tokens, and records have {', '.join(batch)}; call it so"
            )
        logits, wanted = outputs[:, :-1].flatten(0, 1), tokens[:, 1:].flatten().long()
        lengths = batch.get("tokens" + LENGTH)
        found: Tensor = self._functional.cross_entropy(logits, wanted, reduction="mean" if lengths is None else "none")
        if lengths is not None:
            behind = found.new_ones(len(tokens), tokens.shape[1] - 1).cumsum(1) >= lengths[:, None]
            found = (found.view_as(behind).masked_fill(behind, 0).sum(1) / (lengths - 1).clamp(min=1)).mean()
        return found


def target(batch: Fields) -> Tensor:
    """Return what is to be predicted.

    Raises:
        ModelError: no field of the records is called so.
    """
    name = target_of(batch)
    if name is None:
        raise ModelError(
            f"loss: no field of the records ({', '.join(batch)}) says what is to be predicted; call one label, y or "
            "target, or name another loss"
        )
    return batch[name]
