"""Built-in losses: each returns the mean over the records of a batch, whose fields are tensors.

Of ragged records it is the mean over records of their means over their own places, so that parts of a batch add up.

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
# What torch's cross-entropy leaves out by itself.
_LEFT_OUT = -100


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
        """Return the mean; classes that are -100 do not count."""
        wanted, lengths = ragged_target(batch)
        found: Tensor = self._functional.cross_entropy(
            *(outputs, wanted if wanted.is_floating_point() else wanted.long()),
            label_smoothing=self._label_smoothing,
            reduction=_reduction(lengths),
        )
        return found if lengths is None else mean_by_record(found, lengths, wanted != _LEFT_OUT)


@LOSSES.register("mean_squared_error", "Of as many outputs as the target has values.")
class MeanSquaredError(_Loss):
    """Squared differences."""

    def __call__(self, outputs: Tensor, batch: Fields) -> Tensor:
        """Return the mean."""
        wanted, lengths = ragged_target(batch)
        found: Tensor = self._functional.mse_loss(
            outputs.reshape(wanted.shape), wanted.to(outputs.dtype), reduction=_reduction(lengths)
        )
        return found if lengths is None else mean_by_record(found, lengths)


@LOSSES.register("binary_cross_entropy", "Of as many logits as the target has values, each 0 to 1.")
class BinaryCrossEntropy(_Loss):
    """Sigmoid cross-entropy."""

    def __call__(self, outputs: Tensor, batch: Fields) -> Tensor:
        """Return the mean."""
        wanted, lengths = ragged_target(batch)
        found: Tensor = self._functional.binary_cross_entropy_with_logits(
            outputs.reshape(wanted.shape), wanted.to(outputs.dtype), reduction=_reduction(lengths)
        )
        return found if lengths is None else mean_by_record(found, lengths)


@LOSSES.register("next_token", "Cross-entropy of (records, places, tokens) logits and the token at the next place.")
class NextToken(_Loss):
    """What a language model learns: each token from those before it, of the field ``tokens``."""

    def __call__(self, outputs: Tensor, batch: Fields) -> Tensor:
        """Return the mean over all places but the last.

        Raises:
            ModelError: records have no field of that name.
        """
        if (tokens := batch.get("tokens")) is None:
            raise ModelError(
                f"loss: next_token is of the field tokens, and records have {', '.join(batch)}; call it so"
            )
        logits, wanted = outputs[:, :-1].flatten(0, 1), tokens[:, 1:].flatten().long()
        lengths = batch.get("tokens" + LENGTH)
        found: Tensor = self._functional.cross_entropy(logits, wanted, reduction=_reduction(lengths))
        return found if lengths is None else mean_by_record(found.view(len(tokens), tokens.shape[1] - 1), lengths - 1)


def ragged_target(batch: Fields) -> tuple[Tensor, Tensor | None]:
    """Return what is to be predicted, and how long each record's is; None if all are of one length."""
    wanted = target(batch)
    return wanted, batch.get(f"{target_of(batch)}{LENGTH}") if wanted.ndim > 1 else None


def _reduction(lengths: Tensor | None) -> str:
    return "mean" if lengths is None else "none"


def mean_by_record(values: Tensor, lengths: Tensor, counted: Tensor | bool = True) -> Tensor:
    """Return the mean over records of their means of (records, places, ...) values over their own, counted, places."""
    own = (lengths.new_ones(values.shape).cumsum(1) <= lengths.view(-1, *[1] * (values.ndim - 1))) & counted
    return (values.masked_fill(~own, 0).flatten(1).sum(1) / own.flatten(1).sum(1).clamp(min=1)).mean()


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
