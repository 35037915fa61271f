"""AutoByte's network: a small perceptron, trained off line (`csd_lab.generate.autobyte.train_network`).

It gives each setting one number, log of step seconds over the unit of time; the difference of two is the predicted log
speed-up of one over the other, which is what it was trained for. Here it is numpy: two products of small matrices, for
all candidates in one batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from csd_lab.generate.autobyte.network_features import NAMES, Features
from firmware_agent.common.errors import DataError
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.link_conditions import Conditions

Weights = npt.NDArray[np.float32]
WEIGHTS_FILE, RECIPE_FILE = "network.safetensors", "network.json"


class NetworkPredictor:
    """A `host.policies.transfer.speedup_predictor.Predictor`: layers of weights, ReLU between them."""

    name = "network"

    def __init__(self, tensors: Mapping[str, Weights]) -> None:
        """Take the weights.

        Args:
            tensors: `mean` and `scale` of the features; `weight0` (outputs, inputs), `bias0`, `weight1` and so on.

        Raises:
            DataError: a tensor is missing or has another shape.
        """
        layers = sum(name.startswith("weight") for name in tensors)
        wanted = {"mean", "scale"} | {f"{kind}{layer}" for kind in ("weight", "bias") for layer in range(layers)}
        if not layers or wanted != set(tensors):
            raise DataError(f"the network has the tensors {', '.join(sorted(tensors))}; train it again")
        self._mean, self._scale = tensors["mean"], tensors["scale"]
        self._layers = [(tensors[f"weight{layer}"].T, tensors[f"bias{layer}"]) for layer in range(layers)]
        widths = [len(NAMES), *(len(bias) for _, bias in self._layers)]
        shapes = [weight.shape for weight, _ in self._layers]
        fits = shapes == list(pairwise(widths)) and widths[-1] == 1
        if not fits or self._mean.shape != (len(NAMES),) or self._scale.shape != (len(NAMES),):
            raise DataError(f"the network takes other than the {len(NAMES)} features there are; train it again")
        self._features = Features()

    def log_seconds(self, conditions: Conditions, settings: Sequence[TransferSettings]) -> npt.NDArray[np.float64]:
        """See `Predictor`."""
        rows, _ = self._features.rows(conditions, settings)
        values = (rows.astype(np.float32) - self._mean) / self._scale
        for weight, bias in self._layers[:-1]:
            values = np.maximum(values @ weight + bias, 0)
        weight, bias = self._layers[-1]
        return (values @ weight + bias)[:, 0].astype(np.float64)


def load_network(path: Path) -> NetworkPredictor:
    """Return the network of a file.

    Raises:
        DataError: it cannot be read, or is not such a network.
    """
    try:
        return NetworkPredictor(load_file(path))
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: the network cannot be read ({error}); install csd-emu again, or train it") from error


@cache
def shipped_weights() -> Path:
    """Return where the network lies that csd-emu comes with."""
    return Path(str(resources.files("csd_lab.generate.autobyte"))) / WEIGHTS_FILE


def shipped_network() -> NetworkPredictor:
    """Return the network that csd-emu comes with.

    Raises:
        DataError: the installation is damaged.
    """
    return load_network(shipped_weights())
