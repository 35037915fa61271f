"""A model's weights as arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from firmware_agent.common.errors import ModelError
from firmware_agent.common.slices import Array


def state_arrays(model: nn.Module) -> dict[str, Array]:
    """Return parameters and buffers as NumPy arrays that share the model's memory.

    Raises:
        ModelError: a tensor has a dtype that NumPy does not know, such as bfloat16.
    """
    try:
        return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    except TypeError as error:
        raise ModelError(f"the model has a tensor that cannot cross the wire ({error}); use float32 weights") from error


def load_arrays(model: nn.Module, arrays: Mapping[str, Array]) -> None:
    """Copy arrays, named and shaped as by `state_arrays`, into the model; what lies in its memory already stays."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            array = arrays[name]
            if not np.may_share_memory(array, tensor.numpy()):
                tensor.copy_(torch.from_numpy(array if array.flags.writeable else array.copy()))


def trained_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters that have a gradient, in the model's order; tied ones by their first name."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def buffer_names(model: nn.Module) -> list[str]:
    """Return the names of what is in the model's state beside parameters, such as running statistics."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return [name for name in model.state_dict() if name not in parameters]


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return each further name of a parameter that has several, and the first one."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in every if name != first[id(parameter)]}
