"""What a job minimises on a data set, where the job does not say it."""

from __future__ import annotations

from firmware_agent.common.datafiles.record_set import target_of
from firmware_agent.common.errors import DataError
from firmware_agent.common.losses.objective import ObjectiveSpec
from firmware_agent.common.shipped_code import ShippedCode
from host.core.datasets import Dataset


def default_objective(dataset: Dataset) -> ObjectiveSpec:
    """Return the cross-entropy of class numbers, or the mean squared error of other values.

    Raises:
        DataError: no field is called as one that is to be predicted, or the one that the model takes is to be named.
    """
    if target_of(dataset.fields) is None:
        raise DataError(
            f"loss: {dataset.name} has no field that is to be predicted ({', '.join(dataset.fields)}); name a loss, "
            "such as next_token or my_loss.py:function, or call the field label, y or target"
        )
    return with_loss(dataset, ShippedCode("mean_squared_error" if dataset.labels is None else "cross_entropy"))


def with_loss(dataset: Dataset, loss: ShippedCode) -> ObjectiveSpec:
    """Return what a job with this loss minimises.

    Raises:
        DataError: the field that the model takes is to be named.
    """
    return ObjectiveSpec(loss, tuple(dataset.input_fields), dataset.input_scale)
