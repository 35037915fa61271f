"""Learning rate of a step by its number of records."""

from __future__ import annotations

import math
from typing import Literal

from firmware_agent.common.errors import ConfigurationError


def scale_learning_rate(
    rule: Literal["constant", "linear", "sqrt"], learning_rate: float, records: int, first_records: int
) -> float:
    """Return the learning rate for a global batch of `records`, when `learning_rate` is that of `first_records`.

    ``linear`` keeps what an epoch moves the weights by (Goyal et al. 2017, arXiv:1706.02677, section 2.1), ``sqrt``
    the variance of a step (Krizhevsky 2014, arXiv:1404.5997, section 3.3).

    Raises:
        ConfigurationError: a batch has no record.
    """
    if records < 1 or first_records < 1:
        raise ConfigurationError(f"a learning rate for {records} records after {first_records}: both must be positive")
    ratio = records / first_records
    return learning_rate * {"constant": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]
